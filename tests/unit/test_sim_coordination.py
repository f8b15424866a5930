"""The simulator's rules for coordinators, by commands of a log that was written by hand."""

from types import SimpleNamespace

import pytest

from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    DecideTransaction,
    Envelope,
    InitTransaction,
    OffsetToCommit,
    SavedMember,
    SaveGroup,
)
from quorumlog.machine.cluster.state import Topic
from quorumlog.machine.cluster.transactions import Transactions
from quorumlog.sim.finding import Finding
from quorumlog.sim.group_members import GroupHistory, GroupMember
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


def told(followed, member_id, assignment, *, has_filled):
    """Return whether what a member is told in generation 1 is judged."""
    cluster = SimpleNamespace(coordination=followed, has_filled=has_filled)
    requests = SimpleNamespace(cluster=cluster, random=None)
    member = GroupMember(requests, member_id, GroupHistory("g"), None, None)
    member._member_id, member.generation = member_id, 1
    return member._is_confirmed(assignment)


def test_of_a_group_that_may_be_unsaved_only_saved_assignments_are_judged():
    followed, assigned = Coordination(), bytes([0, 1])
    saved = SavedMember("m", None, "c", "h", 1_500, 1_500, b"", assigned)
    command = SaveGroup(TERM, "g", 1, "consumer", "range", "m", [saved])
    followed._take(Envelope(bytes(16), 5, command), TERM, 0)
    assert told(followed, "m", assigned, has_filled=True)
    assert not told(followed, "m", bytes([2]), has_filled=True)
    assert not told(followed, "n", assigned, has_filled=True)
    assert told(followed, "n", assigned, has_filled=False), "it must have been saved"
