"""Single appends of many tasks: joined on their way, each with its own answer."""

import asyncio

import msgspec
import pytest

from quorumlog.client.append_batcher import AppendBatcher
from quorumlog.client.results import Appended, AppendedBatch
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import NetworkError
from quorumlog.model.limits import DEFAULT_LIMITS

TWO_BODIES = dict.fromkeys(
    ("block_bytes_max", "entry_bytes_max", "push_bytes_max"), 2 * (HEADER_SIZE + 5)
)


class Log:
    """Takes blocks, and answers when told to."""

    def __init__(self, limits=DEFAULT_LIMITS):
        self.blocks, self.channels = [], []
        self.came = asyncio.Queue()
        self.error = None
        self.end = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.joined = AppendBatcher(limits, self.append_batch)

    async def append_batch(self, bodies, channel, timeout_ms, level):
        self.channels.append(channel)
        self.blocks.append([bytes(body) for body in bodies])
        self.came.put_nowait(None)
        await self.answering.wait()
        if self.error is not None:
            raise self.error
        first, self.end = self.end, self.end + len(bodies)
        return AppendedBatch(
            first, self.end - 1, 3, [100 * index for index in range(first, self.end)]
        )

    def append(self, body, timeout_ms=None, channel=0, level="replication"):
        async def one():
            return await self.joined.append(body, channel, timeout_ms, level)

        return asyncio.ensure_future(one())


async def test_what_is_appended_at_the_same_time_is_one_block_and_each_learns_its_place():
    log = Log()
    bodies = [bytes([number]) for number in range(64)]
    placed = await asyncio.gather(*(log.append(body) for body in bodies))
    assert log.blocks == [bodies]
    assert placed == [Appended(index, 3, 100 * index) for index in range(64)]


async def test_no_append_waits_for_a_block_in_flight():
    log = Log()
    log.answering.clear()
    first = log.append(b"a")
    await log.came.get()
    second = log.append(b"b")
    await log.came.get()
    log.answering.set()
    assert [(await first).index, (await second).index] == [0, 1]


@pytest.mark.parametrize("limit", [{"block_entries_max": 2}, TWO_BODIES])
async def test_blocks_stay_within_the_limits(limit):
    log = Log(msgspec.structs.replace(DEFAULT_LIMITS, **limit))
    bodies = [f"body{number}".encode() for number in range(5)]
    placed = await asyncio.gather(*(log.append(body) for body in bodies))
    assert log.blocks == [bodies[:2], bodies[2:4], bodies[4:]]
    assert sorted(at.index for at in placed) == list(range(5))


async def test_all_of_a_block_learn_of_its_failure():
    log = Log()
    log.error = NetworkError("gone; the request may have been executed")
    failed = await asyncio.gather(*(log.append(b"x") for _ in range(3)), return_exceptions=True)
    assert failed == [log.error] * 3
    log.error = None
    assert (await log.append(b"y")).index == 0


async def test_an_append_cancelled_before_it_is_sent_is_not_appended():
    log = Log()
    given_up, kept = log.append(b"no"), log.append(b"yes")
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await kept).index == 0
    assert log.blocks == [[b"yes"]]


async def test_an_append_cancelled_in_flight_does_not_affect_the_others():
    log = Log()
    log.answering.clear()
    given_up, kept = log.append(b"a"), log.append(b"b")
    await log.came.get()
    given_up.cancel()
    log.answering.set()
    assert (await kept).index == 1
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_entries_with_different_time_limits_do_not_wait_for_one_another():
    log = Log()
    await asyncio.gather(log.append(b"a", 100), log.append(b"b", 5_000), log.append(b"c", 100))
    assert log.blocks == [[b"a", b"c"], [b"b"]]


async def test_f93_entries_of_other_channels_travel_in_blocks_of_their_own():
    log = Log()
    await asyncio.gather(*(log.append(b"%d" % n, channel=n % 2) for n in range(6)))
    assert sorted(zip(log.channels, log.blocks, strict=True)) == [
        (0, [b"0", b"2", b"4"]),
        (1, [b"1", b"3", b"5"]),
    ]
