"""Small facts of a store that must survive: checkpoints, identity, damaged ranges, saved tables.

They are written whole or not at all, and checked when they are read.
"""
