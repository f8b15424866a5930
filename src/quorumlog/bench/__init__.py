"""`quorumlog bench`: what a cluster does a second, how long it takes, what the machine allows."""
