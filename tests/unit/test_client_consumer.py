"""A consumer as a member of its group: what it may use, gives up and commits, by a scripted
coordinator.
"""

import asyncio

import pytest

from quorumlog import Consumer
from quorumlog.client.consumer_membership import Membership
from quorumlog.client.consumer_share import Share
from quorumlog.errors import ConfigError, ConsumerFencedError
from quorumlog.model.entry import Entry
from quorumlog.model.errors import DeadlineExceededError, UnsupportedError
from quorumlog.model.messages.consumers import ConsumerHeartbeatResponse

SECONDS = 10
FENCED = ConsumerFencedError("removed")


class Coordinator:
    """Answers what the test says: assignments, or errors that are raised."""

    def __init__(self, *answers, committed=None):
        self.answers = list(answers)
        self.assigned = frozenset()
        self.epoch, self.session_ms = 0, 60_000
        self.positions_of = dict(committed or {})
        self.beats, self.commits, self.left = [], [], 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def heartbeat(self, epoch, owned):
        self.beats.append((epoch, frozenset(owned)))
        answer = self.answers.pop(0) if self.answers else self.assigned
        if isinstance(answer, Exception):
            raise answer
        if answer != self.assigned or not epoch:
            self.epoch += 1
        self.assigned = frozenset(answer)
        return ConsumerHeartbeatResponse(
            epoch=self.epoch,
            assigned=sorted(self.assigned),
            interval_ms=5,
            session_ms=self.session_ms,
        )

    async def positions(self):
        await self.may_answer.wait()
        return dict(self.positions_of)

    async def commit(self, positions, epoch):
        self.commits.append(dict(positions))
        if epoch != self.epoch:
            raise FENCED
        self.positions_of |= positions

    async def leave(self, timeout_ms):
        self.left += 1


async def zero():
    return 0


@pytest.fixture
async def member_of():
    made = []

    def make(coordinator, *, partitions=2, auto_commit_s=None, assigned=lambda found: None):
        made.append(
            Membership(
                coordinator,
                zero,
                partitions=partitions,
                auto_commit_s=auto_commit_s,
                assigned=assigned,
            )
        )
        return made[-1]

    async with asyncio.timeout(SECONDS):
        yield make
        for one in made:
            await one.close()


def entry(index, channel=0):
    return Entry(index=index, term=1, pos=0, body=b"", channel=channel)


async def until(condition):
    """Wait until something holds that the member brings about by itself."""
    while not condition():
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)


async def told(member, partitions):
    """Wait until a member has these partitions."""
    await until(lambda: member.partitions == frozenset(partitions))


async def test_partitions_begin_where_the_group_has_committed(member_of):
    coordinator = Coordinator({0, 1}, committed={0: 7})
    member = member_of(coordinator)
    share = await member.usable()
    assert share.positions == {0: 7, 1: 0}
    assert coordinator.positions_of == {0: 7, 1: 0}, "where a partition begins is committed"


async def test_a_partition_that_is_revoked_is_given_up_once_its_entry_is_handled(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(4, channel=1))
        coordinator.answers = [{0}]
        await told(member, {0})
        assert share.has_ended, "nothing more is yielded of it"
        before = len(coordinator.beats)
        await until(lambda: len(coordinator.beats) >= before + 2)
        assert coordinator.beats[-1][1] == {0, 1}, "the program may still handle its entry"
        await member.commit()
        assert coordinator.positions_of[1] == 5
    await until(lambda: coordinator.beats[-1][1] == {0})


async def test_what_is_read_while_other_partitions_come_is_kept(member_of):
    coordinator = Coordinator({0}, committed={0: 3, 1: 3})
    member = member_of(coordinator)
    first = await member.usable()
    coordinator.may_answer.clear()
    coordinator.answers = [{0, 1}]
    await until(lambda: first.has_ended)
    meanwhile = await member.usable()
    meanwhile.advance_to(entry(6))
    coordinator.may_answer.set()
    await told(member, {0, 1})
    share = await member.usable()
    assert meanwhile.has_ended
    assert share.positions == {0: 7, 1: 3}
    await member.commit()
    assert coordinator.positions_of == {0: 7, 1: 3}


async def test_who_is_fenced_has_nothing_joins_again_and_cannot_commit(member_of):
    coordinator, seen = Coordinator({0}), []
    member = member_of(coordinator, assigned=seen.append)
    share = await member.usable()
    share.advance_to(entry(0))
    coordinator.answers = [FENCED, {0}]
    await until(lambda: share.has_ended)
    await told(member, {0})
    with pytest.raises(ConsumerFencedError, match=r"partition 0 .* handled again"):
        await member.commit()
    await member.commit()
    assert coordinator.positions_of == {0: 0}
    assert 0 in [epoch for epoch, _ in coordinator.beats[1:]], "it has joined again"
    assert seen == [{0}, frozenset(), {0}]


async def test_a_commit_in_an_old_epoch_is_repeated_in_the_present_one(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(8))
    coordinator.epoch += 1  # as an answer was lost
    await member.commit()
    assert coordinator.positions_of == {0: 9}


async def test_nothing_is_yielded_after_the_session_unless_the_coordinator_answers(member_of):
    coordinator = Coordinator({0})
    coordinator.session_ms = 20
    member = member_of(coordinator)
    share = await member.usable()
    coordinator.answers = [DeadlineExceededError("silent")] * 1_000
    await until(lambda: not member.may_yield(share))
    with pytest.raises(DeadlineExceededError):
        await member.usable()


async def test_an_error_that_stays_ends_the_wait_for_partitions(member_of):
    coordinator = Coordinator(UnsupportedError("no broker"), {0})
    member = member_of(coordinator)
    with pytest.raises(UnsupportedError):
        await member.usable()
    assert (await member.usable()).positions == {0: 0}, "asking again begins anew"


async def test_only_what_is_handled_is_committed_by_itself(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator, auto_commit_s=60)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(0))
    share.advance_to(entry(1))
    await member.close()
    assert coordinator.positions_of == {0: 1}
    assert coordinator.left == 1


async def test_without_auto_commit_leaving_commits_nothing(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(0))
    await member.close()
    assert coordinator.positions_of == {0: 0}
    assert await member.usable() is None


async def test_positions_go_beyond_what_is_of_others():
    share = Share({0: 5, 2: 9}, 3)
    assert [share.has(entry(index, channel)) for index, channel in ((5, 3), (4, 0), (8, 2))] == [
        True,
        False,
        False,
    ]
    assert not share.has(entry(20, 1)), "another consumer has that partition"
    share.advance(8)
    assert share.positions == {0: 8, 2: 9}
    assert share.begin == 8


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("group", ""),
        ("group", "x" * 250),
        ("log", 5),
        ("log", "no spaces"),
        ("partitions", 0),
        ("partitions", 1_001),
        ("start", "first"),
        ("start", -1),
        ("auto_commit_ms", 0),
        ("if_removed", "skip"),
        ("isolation", "all"),
        ("client_id", ""),
        ("leader_only", 1),
    ],
)
def test_impossible_options_are_refused(option, value):
    options = {"group": "g", option: value}
    with pytest.raises(ConfigError, match=option):
        Consumer("127.0.0.1:1", **options)
