"""Small facts of a store that must survive: checkpoints, damaged ranges, memberships, tables.

Each is a file that is replaced as a whole and checked when it is read; most have a copy. Entries
and index records do not belong here.
"""
