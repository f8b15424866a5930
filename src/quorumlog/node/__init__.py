"""Where the core meets disk, network and time: one replica per group, one node per process."""
