"""Bytes on disk: the only room that knows file formats."""
