"""What a client may ask of a node, and how an operator looks into it."""
