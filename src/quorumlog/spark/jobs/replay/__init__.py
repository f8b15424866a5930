"""Appends an archive to a log again: the same entries in the same order, each once."""
