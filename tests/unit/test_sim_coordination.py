"""The simulator's rules for coordinators, by commands of a log that was written by hand."""

import pytest

from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    DecideTransaction,
    Envelope,
    InitTransaction,
    OffsetToCommit,
)
from quorumlog.machine.cluster.state import Topic
from quorumlog.machine.cluster.transactions import Transactions
from quorumlog.sim.finding import Finding
from quorumlog.sim.invariants.coordination import Coordination, progress_text

TERM = 1
TOPIC = bytes(15) + b"\1"


def of_two_transactions():
    """Both add an offset of the same partition, and what is added first is committed last."""
    for producer_id, name in enumerate(("t", "u")):
        yield InitTransaction(TERM, name, 0, producer_id, 0, 60_000, False)
        yield AddToTransaction(TERM, name, 1, [], ["g"])
    for name, offset, base in (("t", 300, 200), ("u", 200, 0)):
        added = OffsetToCommit(TOPIC, 0, offset, -1, progress_text(base, name))
        yield AddTransactionOffsets(TERM, name, 2, "g", [added])
    yield DecideTransaction(TERM, "u", 3, True, 0)
    yield DecideTransaction(TERM, "t", 3, True, 0)
    yield DecideTransaction(TERM, "t", 4, True, 0)


def carried_out(commands):
    followed = Coordination()
    followed.state.put_topic(Topic("t", TOPIC, (), {}, 0))
    for index, command in enumerate(commands):
        followed._take(Envelope(index.to_bytes(16), 5, command), TERM, index)
    return followed.state.consumer_groups.records["g"].offsets[TOPIC, 0].offset


def test_b5_the_offset_that_was_added_last_stays(monkeypatch):
    assert carried_out(of_two_transactions()) == 200
    monkeypatch.setattr(Transactions, "_void", lambda self, *what: None)
    with pytest.raises(Finding, match="after that of the entry 5"):
        carried_out(of_two_transactions())
