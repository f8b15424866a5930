"""Writes data frames and streams to topics: tasks as producers of Kafka's protocol, and the driver
that ends a batch by one decision for all of them.
"""
