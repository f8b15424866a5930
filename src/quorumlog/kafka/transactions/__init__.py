"""Transactions of producers: their coordinator, and which batches partitions take."""
