"""The state of `__cluster` with two topics, which commands of coordinators change."""

import io
import os

from quorumlog.machine.cluster.commands import Envelope, decode_result, encode
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.state import ClusterState, Topic
from quorumlog.model.entry import Entry

TERM = 3
ORDERS, BILLS = bytes(15) + b"\1", bytes(15) + b"\2"


class Coordinated:
    """A machine of `__cluster` with the topics `orders` and `bills`."""

    def __init__(self):
        state = ClusterState()
        state.put_topic(Topic("orders", ORDERS, (), {}, 0))
        state.put_topic(Topic("bills", BILLS, (), {}, 0))
        self.machine = ClusterMachine()
        self.machine.load_snapshot(io.BytesIO(state.encode()))

    def do(self, command, at_ms=5, term=TERM):
        """Carry out a command, appended in a term; return its result."""
        body = encode(Envelope(os.urandom(16), at_ms, command))
        entry = Entry(index=0, term=term, pos=0, body=body)
        return decode_result(self.machine.apply([entry])[0])
