"""A simulated machine, to try what a real one does only rarely."""
