"""Bytes on disk: file formats are known here and nowhere else.

The packages build on one another: files, metadata, entries, recovery, log; `offline` reads and
repairs stores that no node has open. Nothing here knows Raft, messages or clocks.
"""
