"""Copies a log to Parquet files, each entry exactly once, and reads such an archive.

A manifest lists the files of each run; a file that no manifest lists does not count.
"""
