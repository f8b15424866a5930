"""Five brokers, 200 partitions, and everything at once that can go wrong.

    python tests/torture/kafka_chaos.py --seconds 1800 --records 600000 --seed 1

As kafka_records.py and kafka_retention.py; besides, four consumer groups read along, whose members
come, go, die and stall (group_load.py), chains and pairs of transactions go on
(kafka_transactions.py), and a stream of Spark reads (stream_load.py). Disks are full at times, bits
flip in data files, links are slow, and all nodes are restarted one after the other. All must be
well within a minute after the last fault, and nodes take no more memory and files than in the quiet
time before the first one. As root nodes are in network namespaces.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture.broker_runs import TOPIC, Plan, main
from torture.group_load import GroupLoad
from torture.kafka_transactions import PARTITIONS as SOURCE_PARTITIONS
from torture.kafka_transactions import SOURCE, TransactionLoad
from torture.nemesis import ALL
from torture.stream_load import StreamLoad

PARTITIONS = 200
FILL_S = 1.0
"""Chains have to follow, on a machine that has all else to do, too."""


def loads(brokers, options):
    return [
        GroupLoad(brokers, TOPIC, PARTITIONS, options.seed),
        TransactionLoad(brokers, options.seed, chains=1, writers=1, fill_s=FILL_S),
        StreamLoad(brokers, SOURCE, SOURCE_PARTITIONS),
    ]


PLAN = Plan(
    partitions=PARTITIONS,
    faults=ALL,
    kill_pauses=(4, 12),
    is_retained=True,
    heals_s=60,
    quiet_s=60,
    settings=(("scrubIntervalHours", 0.005),),
    loads=loads,
)

if __name__ == "__main__":
    main(__doc__, PLAN, seconds=600, records=200_000, nodes=5)
