"""Brokers: what nodes that hold topics share through the group `__cluster`."""
