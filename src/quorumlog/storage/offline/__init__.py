"""Stores that no node has open: verified, repaired, read in ranges, compared by Spark's audit."""
