"""Partitions of topics in a group's log: what every replica derives from its record batches.

A partition is a channel of the log. An entry of that channel is one record batch, byte for byte as
the client sent it, but for the base offset and the leader epoch. Pure functions of the log, without
input or output; nothing here knows the protocol in which clients ask.
"""
