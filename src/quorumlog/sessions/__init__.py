"""Exactly-once: what producers' entries say, and the tables that every replica derives from them.

Sessions of producers (a block is stored once however often it comes) and transactions (several
blocks count together or not at all). Pure rules: `node.replica` applies them, clients obey them.
"""
