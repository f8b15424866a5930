"""The state machine of `__cluster`: brokers, topics, where their partitions are, and configs."""
