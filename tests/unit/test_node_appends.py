"""Every append gets an answer, even if the answer has to be looked up first."""

import logging
from types import SimpleNamespace

import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.machine import StateMachine
from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.sessions.entries import SessionEntry, encode_session_block, system_entry_of
from quorumlog.sessions.producer_table import AppendedBlock
from quorumlog.storage.files.space import DiskState
from quorumlog.storage.log.interface import FreeSpace
from replica_context import Surroundings

ENTRY = SessionEntry(producer_id=7, epoch=0, first_sequence=0, count=1, crc=1)


class Leader(Surroundings):
    """A leader that has applied entry 9, with what it was asked to look up."""

    def __init__(self, checked):
        core = SimpleNamespace(
            role=Role.LEADER,
            leader_id="n0",
            term=1,
            is_transferring=False,
            is_stopping=False,
            awaits_leader=False,
            self_id="n0",
            no_room_text="",
            committed_index=9,
            term_at=lambda index: 1,
        )
        group = GroupConfig(group="g", peers="n0-127.0.0.1:1")
        log = SimpleNamespace(before_begin_index=-1, end_index=9)
        super().__init__(group, core=core, log=log, limits=Limits(pending_requests_max=1))
        self.looked_up = []
        self.appends = Appends(
            self.context,
            MachineState(core, None),
            SimpleNamespace(check=lambda entry: checked),
            SimpleNamespace(read=self.looked_up.append),
            SimpleNamespace(locate=lambda first, last, done: self.looked_up.append(done)),
            DiskSpace(self.context, None),
        )


def checked(code=ResponseCode.SUCCESS, appended=None):
    return SimpleNamespace(code=code, text="", appended=appended)


REPEATED = checked(appended=AppendedBlock(0, 1, 1, 4))
REFUSED = checked(ResponseCode.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("result", "found", "code"),
    [
        (REPEATED, ([(4, 0)],), ResponseCode.SUCCESS),
        (REFUSED, (ResponseCode.SUCCESS, "", 9), ResponseCode.PRODUCER_FENCED),
        (REFUSED, (ResponseCode.NOT_LEADER, "deposed", -1), ResponseCode.NOT_LEADER),
    ],
)
def test_a_replica_owes_an_answer_until_what_it_depends_on_was_looked_up(
    result, found, code, caplog
):
    """A leader that stopped meanwhile would leave its client without one."""
    caplog.set_level(logging.DEBUG)
    leader = Leader(result)
    appends = leader.appends
    block = parse_block(memoryview(bytearray(encode_block([b"x"]))), count=1, entry_bytes_max=100)
    answers = []

    def propose():
        appends.propose(block, lambda response, results: answers.append(response.code), ENTRY)

    propose()
    assert answers == []
    assert not appends.is_idle
    propose()
    assert answers == [ResponseCode.LEADER_PENDING_FULL], "it counts among those that wait"
    leader.looked_up.pop()(*found)
    assert answers[1:] == [code]
    assert appends.is_idle
    told = [getattr(one, EVENT_FIELDS) for one in caplog.records if one.msg == "append refused"]
    refused = [one.name for one in answers if one is not ResponseCode.SUCCESS]
    assert [(one["group"], one["code"]) for one in told] == [("g", name) for name in refused]


class Releasing(StateMachine):
    """Says of `free` that it makes room, and cannot tell of `odd`."""

    def apply(self, entries):
        return [b""] * len(entries)

    def save_snapshot(self, writer):
        """Save nothing."""

    def load_snapshot(self, reader):
        """Load nothing."""

    def releases(self, body):
        if body == b"odd":
            raise RuntimeError("odd")
        return body == b"free"


@pytest.mark.parametrize(
    ("bodies", "is_taken"),
    [([b"free"], True), ([b"more"], False), ([b"free", b"more"], False), ([b"odd"], False)],
)
@pytest.mark.parametrize("is_own", [False, True])
def test_while_disks_are_full_commands_are_taken_that_make_room(bodies, is_taken, is_own):
    leader = Leader(checked())
    space, core = leader.appends._space, leader.context.core
    leader.appends._machine.machine = Releasing()
    leader.context.log.free_space = lambda: FreeSpace(20_000, 70)
    if is_own:
        space.disk = DiskState("the disk is full", is_tight=True)
    else:
        core.no_room_text = "no majority has room"
    data = memoryview(bytearray(encode_block(bodies)))
    block = parse_block(data, count=len(bodies), entry_bytes_max=100)
    answers = []
    leader.appends.propose(block, lambda response, _: answers.append(response))
    told = [(one.code, one.text) for one in answers]
    text = "n0: the disk is full" if is_own else "no majority has room"
    assert told == ([] if is_taken else [(ResponseCode.DISK_FULL, text)])


def test_a_clients_commands_that_make_room_are_taken_with_the_session_entry_before_them():
    leader, answers = Leader(checked()), []
    leader.appends._machine.machine = Releasing()
    leader.appends._space.disk = DiskState("the disk is full", is_tight=True)
    leader.context.log.free_space = lambda: FreeSpace(20_000, 70)
    for keeps_results in (True, False):
        raw = encode_session_block(7, 0, [b"free"], keeps_results=keeps_results)
        block = parse_block(memoryview(bytearray(raw)), count=2, entry_bytes_max=1_000)
        leader.appends.propose(
            block, lambda response, _: answers.append(response.code), system_entry_of(block)
        )
    assert answers == [ResponseCode.DISK_FULL], "of plain appends nobody says that they make room"


@pytest.mark.parametrize("room", [FreeSpace(4_000, 1_000), FreeSpace(100_000, 16)])
def test_what_makes_room_leaves_some_to_elections(room):
    leader, answers = Leader(checked()), []
    leader.appends._machine.machine = Releasing()
    leader.appends._space.disk = DiskState("the disk is full", is_tight=True)
    leader.context.log.free_space = lambda: room
    block = parse_block(memoryview(bytearray(encode_block([b"free"]))), count=1, entry_bytes_max=99)
    leader.appends.propose(block, lambda response, _: answers.append(response.code))
    assert answers == [ResponseCode.DISK_FULL]
