"""Jobs on whole logs, run by Spark: archive, audit, export, replay and stats.

Each has a package of its own; the modules here are what they share: reading a log in tasks, packing
rows, writing output files that appear whole or not at all. An audit and a replay read archives.
"""
