"""The `quorumlog` command: its options, and how results look on a terminal or in a pipe.

Each command is a module, loaded when the command is used. What a command does is elsewhere: here
arguments are checked and results are printed.
"""
