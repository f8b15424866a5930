"""Compares what the replicas of a group, and its archive, hold, entry by entry.

Plans, comparisons and the report are apart, so that each can be tested without Spark.
"""
