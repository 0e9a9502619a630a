"""Measurements of Timebound; each script explains itself with --help."""
