"""The `quorumlog` command: argument trees, and how results look on a terminal or in a pipe."""
