"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""
