"""Spark jobs on whole logs: archive, replay, audit, stats and export."""
