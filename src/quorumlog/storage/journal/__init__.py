"""One journal for what all groups of a node append: one record, and one fsync, for many groups.

Records are written to the groups' own files, too, which are fsynced later, all at once.
"""
