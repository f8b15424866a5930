"""Counts what a log holds (entries, sizes, terms, rates) and plots it."""
