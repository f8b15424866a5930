"""The `quorumlog` command: its options, and the form of results on a terminal or in a pipe.

Each command is a module, loaded when the command is used. What a command does is elsewhere: here
arguments are checked and results are printed.
"""
