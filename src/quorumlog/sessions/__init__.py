"""Exactly-once: what the entries of producers say, and the tables that every replica derives.

Two rules live here: the session of a producer, by which a block is appended once however often it
is sent, and the transaction, whose blocks count together or not at all. They are pure functions of
the log, without input or output: `storage` saves the tables, `node.replica` applies the rules, and
clients obey them. Nothing here knows how a command, a reader or a Spark job uses them.
"""
