"""Reads evidence and stored results: metrics, checks, effects, verdicts. Starts nothing."""
