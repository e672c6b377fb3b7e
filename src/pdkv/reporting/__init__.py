"""Figures and the report, from what was analysed."""
