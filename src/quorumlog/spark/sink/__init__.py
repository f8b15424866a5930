"""Writes data frames and streams to a group, each row exactly once."""
