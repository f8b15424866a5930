"""The append hook of one replica: what it is told, what it may do, what becomes of an append."""

import asyncio

import numpy as np
import pytest
from isal.isal_zlib import crc32

from quorumlog.model.block import bodies_fit, decode_entries, encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.hooks import AppendPlace
from quorumlog.node.replica.hooked_proposals import HookedProposals
from quorumlog.node.replica.proposals import Batch, Proposal, joined
from quorumlog.sessions.entries import encode_session_block
from quorumlog.storage.log.memory_log import MemoryLog
from replica_context import Surroundings


class Core:
    """A leader's core, as far as a hook depends on it."""

    role, term, takes_proposals = Role.LEADER, 7, True


class Leader(Surroundings):
    """A leader with two entries in its log; batches that are left are appended at once."""

    def __init__(self, hook):
        log = MemoryLog()
        log.append(block_of([b"one", b"two"]), 6)
        super().__init__(GroupConfig(group="g", peers="n0-127.0.0.1:1"), core=Core(), log=log)
        self.refused, self.proposed = {}, []
        self.hooked = HookedProposals(self.context, hook, self.register, self.refuse)

    def step(self, event, *, prepare):
        if (batch := prepare()) is not None:
            self.log.append(batch.block, Core.term)
            self.proposed.append(batch)

    def register(self, batch):
        return batch

    def refuse(self, answer, code, text):
        self.refused[answer] = (code, text)

    @property
    def log(self):
        return self.context.log

    def append(self, *appends):
        """Propose appends that were joined into one batch; each is answered by its number."""
        members = [
            Proposal(block if hasattr(block, "sizes") else block_of(block), number, 0)
            for number, block in enumerate(appends)
        ]
        self.hooked.propose(joined(members))

    def entries(self):
        run = self.log.read(2, self.log.end_index, 1 << 20)
        assert bodies_fit(run.block())
        return list(decode_entries(run.block()))


def block_of(bodies, **options):
    data = memoryview(bytearray(encode_block(bodies, **options)))
    return parse_block(data, count=len(bodies), entry_bytes_max=1 << 20)


def test_71_a_hook_fills_in_index_and_position_and_readers_see_it():
    told = []

    def hook(place, body):
        told.append(place)
        body[:8] = place.index.to_bytes(8, "big")
        body[8:16] = place.position.to_bytes(8, "big")

    leader = Leader(hook)
    leader.append([bytes(16) + b"a"], [bytes(16) + b"b", bytes(16) + b"c" * 100])
    found = leader.entries()
    assert [entry.body[16:17] for entry in found] == [b"a", b"b", b"c"]
    for place, entry in zip(told, found, strict=True):
        assert place == AppendPlace(entry.index, entry.term, entry.pos, entry.channel)
        assert entry.body[:16] == b"".join(n.to_bytes(8, "big") for n in (entry.index, entry.pos))
        assert entry.body_crc == crc32(entry.body)


class SpeechlessError(Exception):
    def __str__(self):
        raise ValueError("nothing to say")


def resizes(body):
    given = body.obj
    body.release()
    given.extend(b"more")


async def waits(body):
    raise AssertionError("nobody waits for it")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (resizes, "it left 7 bytes of a body of 3"),
        (lambda body: body.obj.append(1), "BufferError"),
        (waits, "it returned an awaitable"),
        (asyncio.CancelledError(), "CancelledError"),
        (SystemExit("now"), "SystemExit: now"),
        (GeneratorExit(), "GeneratorExit"),
        (SpeechlessError(), "SpeechlessError"),
    ],
)
def test_whatever_a_hook_does_to_its_view_or_raises_refuses_that_append_alone(act, said):
    def hook(place, body):
        if bytes(body) != b"bad":
            return None
        if isinstance(act, BaseException):
            raise act
        return act(body)

    leader = Leader(hook)
    leader.append([b"good"], [b"bad"], [b"fine"])
    assert [entry.body for entry in leader.entries()] == [b"good", b"fine"]
    code, text = leader.refused[1]
    assert code is ResponseCode.HOOK_REFUSED
    assert said in text


def test_what_a_hook_keeps_or_releases_does_not_change_the_log():
    kept = []

    def hook(place, body):
        body[:1] = b"x"
        kept.append(body)
        if len(kept) == 2:
            body.release()

    leader = Leader(hook)
    leader.append([b"one"], [b"two"])
    kept[0][:] = b"???"
    assert [entry.body for entry in leader.entries()] == [b"xne", b"xwo"]


def test_an_append_that_a_hook_refuses_leaves_its_place_to_the_next_ones():
    told = []

    def hook(place, body):
        told.append((place.index, place.position, bytes(body[:4])))
        if body[:3] == b"bad":
            raise ValueError("I do not like it")
        body[4:12] = place.position.to_bytes(8, "big")

    leader = Leader(hook)
    leader.append(
        [b"one1" + bytes(8)], [b"two2" + bytes(80), b"bad!" + bytes(8)], [b"thr3" + bytes(8)]
    )
    assert list(leader.refused) == [1]
    code, text = leader.refused[1]
    assert code is ResponseCode.HOOK_REFUSED
    assert text == (
        "the append hook of group g refused entry 1 of the append: ValueError: I do not like it"
    )
    found = leader.entries()
    assert [entry.body[:4] for entry in found] == [b"one1", b"thr3"]
    assert [int.from_bytes(entry.body[4:12], "big") for entry in found] == [e.pos for e in found]
    assert [body for _, _, body in told] == [b"one1", b"two2", b"bad!", b"thr3"], "each once"
    (batch,) = leader.proposed
    assert [member.answer for member in batch.members] == [0, 2]


def test_nothing_is_proposed_if_a_hook_refuses_everything():
    def hook(place, body):
        raise RuntimeError

    leader = Leader(hook)
    leader.append([b"x"], [b"y"])
    assert leader.proposed == []
    assert set(leader.refused) == {0, 1}
    assert leader.log.end_index == 1


def test_a_hook_does_not_run_for_what_the_core_refuses():
    """It runs once for each entry that gets a place, and never for one that does not."""

    def hook(place, body):
        raise AssertionError("called")

    leader = Leader(hook)
    leader.context.core.takes_proposals = False
    leader.append([b"x"])
    assert [batch.block.count for batch in leader.proposed] == [1], "left to the core, as it was"


def test_a_hook_sees_users_entries_only():
    told = []
    leader = Leader(lambda place, body: told.append((place.index, bytes(body))))
    data = encode_session_block(5, 0, [b"command"], keeps_results=False)
    block = parse_block(memoryview(bytearray(data)), count=2, entry_bytes_max=1 << 20)
    leader.append(block, block_of([b"plain"], channel=9))
    assert told == [(3, b"command"), (4, b"plain")]


def test_what_a_hook_keeps_of_a_body_is_not_the_log():
    kept = []
    leader = Leader(lambda place, body: kept.append(body))
    leader.append([b"as it was"])
    kept[0][:2] = b"XX"
    assert leader.entries()[0].body == b"as it was"


def test_why_a_hook_refuses_is_said_in_a_text_that_can_be_sent():
    def hook(place, body):
        raise ValueError(bytes(body).decode(errors="surrogateescape"))

    leader = Leader(hook)
    leader.append([b"\xff"], [b"x" * 100_000])
    assert leader.refused[0][1].endswith("ValueError: ?")
    assert leader.refused[1][1].endswith("xx… (100,012 characters in all)")


def test_a_hook_cannot_change_the_length_of_a_body():
    def hook(place, body):
        body[:] = b"longer than before"

    leader = Leader(hook)
    leader.append([b"short"])
    assert leader.refused[0][0] is ResponseCode.HOOK_REFUSED


@pytest.mark.parametrize("sizes", [[60], [60, 70], [60] * 40])
def test_entries_lie_where_positions_of_says(sizes):
    leader = Leader(lambda place, body: None)
    expected = leader.log.positions_of(np.array(sizes, dtype=np.int64)).tolist()
    leader.append([bytes(size - 48) for size in sizes])
    assert [entry.pos for entry in leader.entries()] == expected


def test_a_batch_without_refusals_is_used_as_it_is():
    leader = Leader(lambda place, body: None)
    batch = joined([Proposal(block_of([b"x"]), 0, 0)])
    leader.hooked.propose(batch)
    assert isinstance(batch, Batch)
    assert leader.proposed[0].block is batch.block, "no copy of its memory"
