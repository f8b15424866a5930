"""Write levels of one replica: when each append is answered, and what becomes of it otherwise."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role, WriteLevel
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.raft.effects import AppendProposal, FailPending
from quorumlog.sessions.entries import SessionEntry
from replica_context import Surroundings

OK = ResponseCode.SUCCESS
LATE = ResponseCode.WAIT_ALL_ACK_TIMEOUT
RECEIVE, PERSISTENCE, REPLICATION, ALL = list(WriteLevel)[1:]
ENTRY = SessionEntry(producer_id=7, epoch=0, first_sequence=0, count=1, crc=1)


class Leader(Surroundings):
    """A leader whose watermarks the test moves; entries are staged when they are proposed."""

    def __init__(self, **options):
        self.on_all = -1
        core = SimpleNamespace(
            role=Role.LEADER,
            leader_id="n0",
            term=1,
            is_transferring=False,
            is_stopping=False,
            awaits_leader=False,
            self_id="n0",
            no_room_text="",
            committed_index=-1,
            durable_index=-1,
            membership=SimpleNamespace(voters=("n0", "n1")),
            peer_progress=lambda: [SimpleNamespace(peer_id="n1", match_index=self.on_all)],
            index_on_all=lambda: self.on_all,
            term_at=lambda index: 1,
        )
        self.end = -1
        log = SimpleNamespace(before_begin_index=-1, append=self.append)
        super().__init__(
            GroupConfig(group="g", peers="n0-127.0.0.1:1", **options), core=core, log=log
        )
        self.core, self.log, self.answers = core, log, []
        self.known = None
        self.appends = Appends(
            self.context,
            MachineState(core, None),
            SimpleNamespace(check=self.check, appended=lambda *_, **__: None),
            SimpleNamespace(read=None),
            SimpleNamespace(locate=lambda first, last, located: located([(first, 0)])),
            DiskSpace(self.context, None),
        )

    def append(self, block, term):
        self.end += block.count
        self.log.end_index = self.end
        return None, [(self.end - block.count + 1, 0)]

    def check(self, entry):
        return SimpleNamespace(code=OK, text="", appended=self.known)

    def repeats(self, level, index):
        """A producer sends its block again, whose only entry is at an index."""
        self.known = SimpleNamespace(index=index, last_index=index)
        self.propose(level, ENTRY)
        self.known = None

    def step(self, event, **_):
        first = self.end + 1
        last = first + event.count - 1
        self.appends.stage(AppendProposal(event.proposal_id, first, last, 1, 1))

    def propose(self, level, entry=None, count=1):
        raw = memoryview(bytearray(encode_block([b"x"] * count)))
        block = parse_block(raw, count=count, entry_bytes_max=100)
        self.appends.propose(block, lambda response, _: self.answers.append(response), entry, level)
        self.appends._proposals.flush()

    def durable(self, index):
        self.core.durable_index = index
        self.advance()

    def all_have(self, index):
        self.on_all = index
        self.advance()

    def advance(self):
        """As `Replica.step` does."""
        if self.appends.levels.is_waiting:
            self.appends.levels.advance()

    def commits(self, index):
        self.core.committed_index = index
        self.appends.applied(index, lambda first, last: [])

    def next_due_ms(self):
        return self.context.timers.next_due_ms()

    def loses(self):
        self.appends.fail(FailPending(ResponseCode.TERM_CHANGED))

    def seen(self):
        return [(one.code, one.level, one.last_index) for one in self.answers]


def test_190_f99_appends_are_answered_when_their_levels_are_reached():
    leader = Leader()
    for level in (RECEIVE, PERSISTENCE, REPLICATION, ALL):
        leader.propose(level)
    assert leader.seen() == [(OK, RECEIVE, 0)]
    leader.durable(0)
    assert len(leader.answers) == 1
    leader.durable(3)
    assert leader.seen()[1:] == [(OK, PERSISTENCE, 1)]
    leader.commits(3)
    assert leader.seen()[2:] == [(OK, REPLICATION, 2)]
    leader.all_have(2)
    assert len(leader.answers) == 3
    leader.all_have(3)
    assert leader.seen()[3:] == [(OK, ALL, 3)]
    assert leader.appends.is_idle
    assert not leader.appends.levels.is_waiting
    assert leader.appends.levels.unstaged == 0


def test_f99_an_early_answer_is_the_only_one_whatever_happens_later():
    leader = Leader(max_wait_ack_time_ms=10)
    leader.propose(RECEIVE)
    leader.propose(PERSISTENCE)
    leader.durable(1)
    leader.now_ms = 10
    leader.tick()
    leader.loses()
    leader.commits(1)
    assert leader.seen() == [(OK, RECEIVE, 0), (OK, PERSISTENCE, 1)]


def test_f99_what_is_committed_first_is_answered_with_what_that_proves():
    """The leader's own disk is the slowest: a majority without it has the entry."""
    leader = Leader()
    leader.propose(PERSISTENCE)
    leader.commits(0)
    assert leader.seen() == [(OK, REPLICATION, 0)]
    leader.durable(0)
    assert len(leader.answers) == 1
    assert not leader.appends.levels.is_waiting


@pytest.mark.parametrize("level", [PERSISTENCE, REPLICATION, ALL])
def test_190_f99_leadership_that_ends_before_leaves_the_outcome_unknown(level):
    leader = Leader()
    leader.propose(level)
    leader.loses()
    assert [one.code for one in leader.answers] == [ResponseCode.TERM_CHANGED]
    assert leader.appends.is_idle


@pytest.mark.parametrize("ends_by", ["leadership", "time"])
def test_f99_committed_entries_that_not_all_have_are_said_to_be_committed(ends_by):
    leader = Leader(max_wait_ack_time_ms=100)
    leader.propose(ALL, count=3)
    leader.commits(2)
    leader.now_ms = 99
    leader.tick()
    assert leader.answers == []
    if ends_by == "time":
        leader.now_ms = 100
        leader.tick()
    else:
        leader.loses()
    (answer,) = leader.answers
    assert (answer.code, answer.first_index, answer.last_index) == (LATE, 0, 2)
    assert "entries 0 to 2 are committed" in answer.text
    assert ("but n1 did not" in answer.text) == (ends_by == "time")
    assert leader.appends.is_idle


def test_f99_what_waits_for_all_counts_among_what_waits():
    leader = Leader()
    leader.propose(ALL, count=2)
    _, waiting = leader.appends._waiting()
    leader.commits(1)
    assert leader.appends._waiting() == (1, waiting)
    leader.all_have(1)
    assert leader.appends._waiting() == (0, 0)


def test_f99_each_append_waits_for_all_until_its_own_deadline():
    """A block that came again has a later deadline than those that are appended after it."""
    leader = Leader(max_wait_ack_time_ms=100)
    leader.propose(ALL)
    leader.propose(ALL)
    leader.commits(0)
    leader.now_ms = 60
    leader.repeats(ALL, index=0)
    leader.commits(1)
    leader.now_ms = 100
    leader.tick()
    assert leader.seen() == [(LATE, REPLICATION, 0), (LATE, REPLICATION, 1)]
    assert leader.next_due_ms() == 160, "it is not due again and again"
    leader.all_have(0)
    assert leader.seen()[2:] == [(OK, ALL, 0)]
    assert leader.appends.is_idle


def test_f99_an_altered_time_counts_for_the_next_append_at_level_all():
    leader = Leader(max_wait_ack_time_ms=100)
    leader.propose(ALL)
    leader.context.config = replace(leader.context.config, max_wait_ack_time_ms=30)
    leader.propose(ALL)
    leader.commits(1)
    leader.now_ms = 30
    leader.tick()
    assert [(one.code, one.last_index) for one in leader.answers] == [(LATE, 1)]
    assert "acknowledge them in 30 ms" in leader.answers[0].text
    leader.now_ms = 100
    leader.tick()
    assert "acknowledge them in 100 ms" in leader.answers[1].text


def test_f99_a_block_that_came_again_does_not_wait_for_later_entries():
    leader = Leader()
    leader.propose(ALL, count=2)
    leader.propose(ALL, count=2)
    leader.commits(3)
    leader.repeats(ALL, index=1)
    leader.all_have(1)
    assert leader.seen() == [(OK, ALL, 1), (OK, ALL, 1)]
    leader.all_have(3)
    assert leader.seen()[2:] == [(OK, ALL, 3)]


@pytest.mark.parametrize("level", [RECEIVE, PERSISTENCE])
def test_f99_producers_blocks_are_not_answered_before_a_majority_has_them(level):
    leader = Leader()
    leader.propose(level, ENTRY)
    assert [one.code for one in leader.answers] == [ResponseCode.UNEXPECTED_ARGUMENT]
    assert leader.end == -1
    raised = Leader(min_write_level="replication")
    raised.propose(level, ENTRY)
    raised.commits(0)
    assert raised.seen() == [(OK, REPLICATION, 0)]


def test_f99_a_server_of_before_proves_a_majority():
    assert AppendResponse().level is REPLICATION
