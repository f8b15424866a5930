"""Sockets: connections, links to peers, the listener."""
