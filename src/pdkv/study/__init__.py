"""The study as its config file states it."""
