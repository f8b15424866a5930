"""Writes the entries of a group as JSON lines or CSV, in one file or in several.

Each task writes files of its own; the export is complete once all of them were renamed.
"""
