"""Brokers whose topics keep little, hurt as in kafka_records.py.

    python tests/torture/kafka_retention.py --seconds 300 --seed 1

Three topics are written all the time and give records up: by time, by bytes, and by DeleteRecords.
Their starts and ends never go back, no record is given up before its time, what is read lies where
it was acknowledged and never below the start. At the end, and after a start of all nodes, the
starts are as they were or later; what each replica has on disk is within two data files, and one
that is made ahead, of what can be read.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torture.broker_runs import Plan, main

if __name__ == "__main__":
    main(__doc__, Plan(is_retained=True))
