"""Record batches, the unit in which Kafka's clients send and store records (magic 2).

Pure functions over bytes: a batch is checked, stamped and searched here, without input or output.
Record batches are all that the packages below `kafka` know of Kafka.
"""
