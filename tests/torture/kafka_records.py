"""Brokers in processes and networks of their own, hurt while clients of Kafka produce and consume.

    python tests/torture/kafka_records.py --seconds 300 --records 100000 --seed 1

Idempotent producers of librdkafka, aiokafka, kafka-python and kafkajs (`make test-clients` fetches
it) write numbered records; consumers read along; topics are made, written, read and deleted.
Meanwhile nodes are killed every 2 to 4 s, seldom a majority (half of them lose power: what was not
fsynced is undone at random); links are cut, nodes frozen, wall clocks stepped, leadership is
transferred, and answers to producers get lost. At the end all is read from the beginning: each
acknowledged record is there once, at its offset and in order, each other one at most once, and
nothing that a consumer saw is otherwise. All stores verify, and have the same partitions.
As root nodes are in network namespaces; others run without cut links.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture.broker_runs import Plan, main

if __name__ == "__main__":
    main(__doc__, Plan(partitions=6))
