"""Producer ids of a node: one allocation at a time, which all who wait for an id share."""

import asyncio

import pytest

from quorumlog.kafka.producer_ids import IDS_PER_BLOCK, ProducerIds
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for


class Allocations:
    """Allocations that end when the test says so."""

    def __init__(self):
        self.under_way = []

    async def allocate(self, count):
        ended = asyncio.get_running_loop().create_future()
        self.under_way.append(ended)
        return await ended


async def waiting(ids, count):
    tasks = [asyncio.create_task(ids.take()) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_all_who_wait_share_one_allocation_and_its_failure():
    allocations = Allocations()
    ids = ProducerIds(allocations.allocate)
    tasks = await waiting(ids, 30)
    (only,) = allocations.under_way
    only.set_exception(error_for(ResponseCode.TIMEOUT, "no leader of __cluster is known"))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {one.code for one in found} == {ResponseCode.TIMEOUT}
    assert len(allocations.under_way) == 1
    (later,) = await waiting(ids, 1)
    allocations.under_way[1].set_result(7)
    assert await later == 7


async def test_ids_of_a_block_are_given_once_and_then_the_next_block_is_allocated():
    allocations = Allocations()
    ids = ProducerIds(allocations.allocate)
    tasks = await waiting(ids, IDS_PER_BLOCK + 2)
    allocations.under_way[0].set_result(5_000)
    await asyncio.gather(*tasks[:IDS_PER_BLOCK])
    await asyncio.sleep(0)
    allocations.under_way[1].set_result(9_000)
    found = sorted(await asyncio.gather(*tasks))
    assert found == [*range(5_000, 5_000 + IDS_PER_BLOCK), 9_000, 9_001]
    assert len(allocations.under_way) == 2


async def test_a_client_that_leaves_takes_the_allocation_from_nobody():
    allocations = Allocations()
    ids = ProducerIds(allocations.allocate)
    first, second = await waiting(ids, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    allocations.under_way[0].set_result(0)
    assert await second == 0
