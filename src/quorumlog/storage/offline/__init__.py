"""Stores without their node: verified, repaired, read in ranges, compared by Spark's audit.

All modules but `repair` read only, take no lock, and work while a node runs. What a live log needs
does not belong here.
"""
