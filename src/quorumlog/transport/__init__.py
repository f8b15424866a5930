"""Connections over TCP: the listener, links to peers, and bounds on memory and time.

Messages go in and out; who handles them is given by the caller. Nothing here knows the core, the
log or a group.
"""
