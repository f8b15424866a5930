"""Messages between nodes, and between clients and nodes, by subject."""
