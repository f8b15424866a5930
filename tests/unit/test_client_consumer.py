"""A consumer as a member of its group: what it may use, gives up and commits, by a scripted
coordinator.
"""

import asyncio
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from quorumlog import Consumer, SyncConsumer
from quorumlog.client.consumer_membership import Callbacks, Membership
from quorumlog.client.consumer_requests import ConsumerRequests, GroupOfLog, identity_of
from quorumlog.client.consumer_share import Place, Share
from quorumlog.client.loop_thread import LoopThread
from quorumlog.errors import ConfigError, ConsumerFencedError, WrongClusterError
from quorumlog.model.errors import (
    DeadlineExceededError,
    LeaderNotReadyError,
    NoLeaderError,
    QuorumlogError,
    UnsupportedError,
)
from quorumlog.model.messages.client import GroupMetadata, MetadataResponse
from scripted_coordinator import FENCED, SECONDS, Coordinator, entry, told, until, zero


@pytest.fixture
async def member_of():
    made = []

    def make(
        coordinator, *, partitions=2, auto_commit_s=None, assigned=None, revoked=None, begin=zero
    ):
        made.append(
            Membership(
                coordinator,
                begin,
                partitions=partitions,
                auto_commit_s=auto_commit_s,
                callbacks=Callbacks(assigned, revoked),
            )
        )
        return made[-1]

    async with asyncio.timeout(SECONDS):
        yield make
        for one in made:
            await one.close()


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
        await member.commit(member.taken())
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
    await member.commit(member.taken())
    assert coordinator.positions_of == {0: 7, 1: 3}


async def test_who_is_fenced_has_nothing_joins_again_and_cannot_commit(member_of):
    coordinator, seen = Coordinator({0}), []
    member = member_of(coordinator, assigned=seen.append)
    share = await member.usable()
    share.advance_to(entry(0))
    coordinator.answers = [FENCED, {0}]
    await until(lambda: share.has_ended)
    await told(member, {0})
    with pytest.raises(ConsumerFencedError, match=r"partition 0 .* handles them again"):
        await member.commit(member.taken())
    await member.commit(member.taken())
    assert coordinator.positions_of == {0: 0}
    assert 0 in [epoch for epoch, _ in coordinator.beats[1:]], "it has joined again"
    assert seen == [{0}, frozenset(), {0}]


async def test_a_commit_in_an_old_epoch_is_repeated_in_the_present_one(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(8))
    coordinator.epoch += 1  # as an answer was lost
    await member.commit(member.taken())
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


async def test_a_reader_that_meets_another_log_ends_the_membership(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    member.fail(WrongClusterError("founded again"))
    assert share.has_ended
    assert not member.partitions
    before = len(coordinator.beats)
    with pytest.raises(WrongClusterError):
        await member.usable()
    assert len(coordinator.beats) == before, "no heartbeat by the former identity"
    coordinator.answers = [WrongClusterError("founded again")]  # as the identity is asked for
    with pytest.raises(WrongClusterError):
        await member.usable()


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
    share = Share({0: Place(5), 2: Place(9)}, 3)
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
        ("group", "two\nlines"),
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
        ("on_assigned", 5),
        ("on_assigned", zero),
        ("on_revoked", "x"),
    ],
)
def test_impossible_options_are_refused(option, value):
    options = {"group": "g", "log": "l", option: value}
    with pytest.raises(ConfigError, match=option):
        Consumer("127.0.0.1:1", **options)


def test_a_callback_that_would_never_be_awaited_is_refused():
    with pytest.raises(ConfigError, match="on_revoked"):
        SyncConsumer("127.0.0.1:1", group="g", log="l", on_revoked=zero)


# -- polls ---------------------------------------------------------------------------------------


async def nothing():
    await asyncio.Event().wait()
    yield []


async def test_polls_that_are_shorter_than_an_outage_tell_of_it(monkeypatch):
    async def bounds():
        raise NoLeaderError("nobody leads")

    consumer = Consumer("127.0.0.1:1", group="g", log="l", timeout_ms=1)
    monkeypatch.setattr(Consumer, "positions", {0: 7})
    monkeypatch.setattr(consumer, "read_blocks", nothing)
    monkeypatch.setattr(consumer, "_bounds", bounds)

    async def poll_on():
        for _ in range(100):
            assert await consumer.poll(5) == []

    with pytest.raises(NoLeaderError):
        await poll_on()


async def test_one_task_at_a_time_polls(monkeypatch):
    consumer = Consumer("127.0.0.1:1", group="g", log="l")
    monkeypatch.setattr(consumer, "read_blocks", nothing)
    first = asyncio.ensure_future(consumer.poll(50))
    await asyncio.sleep(0)
    with pytest.raises(QuorumlogError, match="another task"):
        await consumer.poll(50)
    assert await first == []


# -- what is handled, and what is committed ------------------------------------------------------


async def test_a_commit_has_what_was_yielded_when_it_was_called(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(0))
    committing = asyncio.create_task(member.commit(member.taken()))
    share.advance_to(entry(1))  # before the task has begun
    await committing
    assert coordinator.positions_of == {0: 1}


async def test_a_commit_that_waits_is_void_for_a_partition_that_was_lost_meanwhile(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(7))
    taken = member.taken()
    coordinator.answers = [FENCED, {0}]
    await until(lambda: share.has_ended)
    await told(member, {0})
    with pytest.raises(ConsumerFencedError):
        await member.commit(taken)
    await member.commit(taken)
    assert coordinator.positions_of == {0: 0}, "it is of an earlier tenure"


async def test_what_was_lost_is_read_again_if_the_consumer_has_it_again(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(49))
    coordinator.answers = [FENCED, {0, 1}]
    await until(lambda: share.has_ended)
    await told(member, {0, 1})
    share = await member.usable()
    share.advance_to(entry(99))
    share.advance_to(entry(98, channel=1))
    with pytest.raises(ConsumerFencedError, match="partition 0 "):
        await member.commit(member.taken())
    assert coordinator.positions_of == {0: 0, 1: 99}, "the program undoes what it did of 0"
    assert (await member.usable()).positions == {0: 0, 1: 99}, "so that it is yielded again"
    (await member.usable()).advance_to(entry(10))
    await member.commit(member.taken())
    assert coordinator.positions_of == {0: 11, 1: 99}


async def test_what_the_coordinator_takes_from_nobody_is_read_again(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    share.advance_to(entry(8))
    coordinator.refusals = [FENCED, FENCED]
    with pytest.raises(ConsumerFencedError, match=r"partition 0 .* Undo"):
        await member.commit(member.taken())
    assert (await member.usable()).positions == {0: 0}, "the program undoes what it did"
    (await member.usable()).advance_to(entry(8))
    await member.commit(member.taken())
    assert coordinator.positions_of == {0: 9}


async def test_a_new_loop_begins_at_the_first_entry_not_known_to_be_handled(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(3))
    with suppress(ZeroDivisionError), member.handling(share):
        share.advance_to(entry(4))
        raise ZeroDivisionError
    member.begin_again()
    assert (await member.usable()).positions == {0: 4}
    (await member.usable()).advance_to(entry(4))
    await member.commit(member.taken())
    member.begin_again()
    assert (await member.usable()).positions == {0: 5}, "what is committed was handled"


async def test_a_seek_is_not_committed_by_itself_before_something_is_read_there(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator, auto_commit_s=60)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(0))
        member.seek(share, {0: 500})
    member.begin_again()
    assert (await member.usable()).positions == {0: 500}
    await member.close()
    assert coordinator.positions_of == {0: 0}


async def test_a_seek_in_a_share_that_has_ended_changes_nothing(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator)
    former = await member.usable()
    coordinator.answers = [{1}]
    await told(member, {1})
    member.seek(former, {0: 9, 1: 9})
    assert member.share.positions == {1: 0}


async def test_an_entry_that_is_handled_while_partitions_come_is_committed_by_itself(member_of):
    coordinator = Coordinator({0})
    member = member_of(coordinator, auto_commit_s=60)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(6))
        coordinator.answers = [{0, 1}]
        await told(member, {0, 1})
    await member.close()
    assert coordinator.positions_of == {0: 7, 1: 0}


async def test_closing_commits_what_is_given_up_and_leaves_even_if_that_fails(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, auto_commit_s=60)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(6))
    with member.handling(share):
        share.advance_to(entry(7, channel=1))
        coordinator.answers = [{1}]
        await told(member, {1})
        await member.close()
    assert coordinator.positions_of == {0: 7, 1: 0}
    assert coordinator.left == 1
    other = Coordinator({0})
    member = member_of(other, auto_commit_s=60)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(0))
    other.epoch += 1
    await member.close()
    assert (other.positions_of, other.left) == ({0: 0}, 1)


async def test_auto_commits_do_not_make_heartbeats_more_frequent(member_of):
    coordinator = Coordinator({0})
    coordinator.interval_ms = 60_000
    member = member_of(coordinator, auto_commit_s=0.001)
    share = await member.usable()
    for index in range(3):
        with member.handling(share):
            share.advance_to(entry(index))
        await until(lambda at=index + 1: coordinator.positions_of[0] == at)
    assert len(coordinator.beats) <= 2, "one to join, and one to say what it has taken"


# -- what the program is told, and when it may go on -----------------------------------------------


async def test_what_is_revoked_can_be_committed_before_it_is_given_up(member_of):
    coordinator, may_end = Coordinator({0, 1}), asyncio.Event()

    async def revoked(partitions):
        assert partitions == {0}
        await may_end.wait()
        await member.commit(member.taken())

    member = member_of(coordinator, revoked=revoked)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(299))
        coordinator.answers = [{1}]
        await told(member, {1})
    assert not member.may_yield(member.share), "nothing is yielded until that is done"
    before = len(coordinator.beats)
    await until(lambda: len(coordinator.beats) >= before + 2)
    assert coordinator.beats[-1][1] == {0, 1}, "heartbeats go on"
    may_end.set()
    await until(lambda: coordinator.beats[-1][1] == {1})
    assert coordinator.positions_of == {0: 300, 1: 0}
    assert (await member.usable()).positions == {1: 0}
    await member.commit(member.taken())  # and raises nothing: no entry was lost


async def test_an_entry_whose_handling_failed_is_not_committed_as_it_is_revoked(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, revoked=lambda partitions: member.commit(member.taken()))
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(4))
    with suppress(ZeroDivisionError), member.handling(share):
        share.advance_to(entry(5))
        coordinator.answers = [{1}]
        await told(member, {1})
        raise ZeroDivisionError
    await until(lambda: coordinator.beats[-1][1] == {1})
    assert coordinator.positions_of == {0: 5, 1: 0}


@pytest.mark.parametrize("callback", ["assigned", "revoked"])
async def test_what_a_callback_raises_is_raised_by_the_loop(member_of, callback):
    def refuse(partitions):
        raise ZeroDivisionError

    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, **{callback: refuse})
    if callback == "revoked":
        await member.usable()
        coordinator.answers = [{1}]
        await until(lambda: coordinator.beats[-1][1] == {1})
    with pytest.raises(ZeroDivisionError):
        await member.usable()


async def cancelled(partitions):
    """Await a task of the program's own that was cancelled, as is usual to end one."""
    worker = asyncio.create_task(asyncio.Event().wait())
    worker.cancel()
    await worker


def had_cancelled(partitions):
    """Ask for the result of work that was cancelled."""
    work = asyncio.Future()
    work.cancel()
    work.result()


@pytest.mark.parametrize(
    ("name", "callback"),
    [("revoked", cancelled), ("revoked", had_cancelled), ("assigned", had_cancelled)],
)
async def test_a_callback_that_ends_with_cancelled_error_is_told_of_by_the_loop(
    member_of, name, callback
):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, auto_commit_s=60, **{name: callback})
    if name == "revoked":
        share = await member.usable()
        with member.handling(share):
            share.advance_to(entry(4))
        coordinator.answers = [{1}]
        await until(lambda: coordinator.beats[-1][1] == {1})
        assert coordinator.positions_of[0] == 5, "it is committed all the same"
    with pytest.raises(QuorumlogError, match=f"on_{name} ended with a CancelledError"):
        await member.usable()
    if name == "revoked":
        assert (await member.usable()).positions == {1: 0}, "the consumer goes on"


async def test_who_is_removed_while_it_gives_partitions_up_joins_once_that_has_ended(member_of):
    coordinator, may_end = Coordinator({0, 1}), asyncio.Event()

    async def revoked(partitions):
        await may_end.wait()

    member = member_of(coordinator, revoked=revoked, auto_commit_s=0.001)
    await member.usable()
    coordinator.answers = [{1}]
    await until(lambda: member._revoking)
    coordinator.answers = [FENCED]
    await until(lambda: not coordinator.answers)
    with pytest.raises(ConsumerFencedError, match="while on_revoked ran"):
        async with asyncio.timeout(SECONDS):
            await member.usable()
    waiting = asyncio.create_task(member.usable())
    before = len(coordinator.beats)
    for _ in range(3):
        await member.commit(member.taken())  # as the callback may
        member._wake.set()
        await until(lambda: not member._wake.is_set())
    assert len(coordinator.beats) == before, "it takes no partitions while it cannot use them"
    coordinator.assigned = {0, 1}
    may_end.set()
    assert (await waiting).positions == {0: 0, 1: 0}


async def test_nothing_is_yielded_after_the_time_for_giving_up_until_a_heartbeat_is_answered(
    member_of,
):
    coordinator = Coordinator({0, 1})
    coordinator.rebalance_ms = 20
    member = member_of(coordinator)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(4))
        coordinator.answers = [{1}]
        await told(member, {1})
        await until(lambda: not member.may_yield(member.share))
        before = len(coordinator.beats)
        await until(lambda: len(coordinator.beats) >= before + 2)
        assert not member.may_yield(member.share), "another one may have been given all"
    assert not member.may_yield(member.share), "nobody knows yet that it is given up"
    before = len(coordinator.beats)
    assert (await member.usable()).positions == {1: 0}
    assert {1} in [owned for _, owned in coordinator.beats[before:]]


async def test_partitions_that_cannot_be_begun_end_the_wait(member_of):
    answers = [5, DeadlineExceededError("the log has no leader")]

    async def begin():
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    coordinator = Coordinator({0})
    member = member_of(coordinator, begin=begin)
    await member.usable()
    coordinator.answers = [{0, 1}]
    await until(lambda: not member.partitions)
    with pytest.raises(DeadlineExceededError, match="no leader"):
        await member.usable()


async def test_a_partition_that_comes_back_before_it_was_given_up_goes_on(member_of):
    coordinator = Coordinator({0, 1})
    member = member_of(coordinator)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(4))
        coordinator.answers = [{1}]
        await told(member, {1})
        coordinator.answers = [{0, 1}]
        await told(member, {0, 1})
    assert (await member.usable()).positions == {0: 5, 1: 0}
    await member.commit(member.taken())
    assert coordinator.positions_of == {0: 5, 1: 0}


async def test_closing_lets_a_commit_of_what_is_revoked_end(member_of):
    may_end, has_begun = asyncio.Event(), asyncio.Event()

    async def revoked(partitions):
        has_begun.set()
        await may_end.wait()
        await member.commit(member.taken())

    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, revoked=revoked)
    share = await member.usable()
    with member.handling(share):
        share.advance_to(entry(5))
        coordinator.answers = [{1}]
        await told(member, {1})
    await has_begun.wait()
    closing = asyncio.create_task(member.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    assert (coordinator.positions_of, coordinator.left) == ({0: 6, 1: 0}, 1)


async def test_an_entry_whose_handling_failed_comes_again_with_its_partition(member_of):
    may_end = asyncio.Event()

    async def revoked(partitions):
        await may_end.wait()

    coordinator = Coordinator({0, 1})
    member = member_of(coordinator, revoked=revoked)
    share = await member.usable()
    with suppress(ZeroDivisionError), member.handling(share):
        share.advance_to(entry(5))
        coordinator.answers = [{1}]
        await told(member, {1})
        raise ZeroDivisionError
    member.begin_again()
    coordinator.answers = [{0, 1}]
    await told(member, {0, 1})
    assert not member.may_yield(member.share), "what the callback commits must not grow"
    may_end.set()
    assert (await member.usable()).positions == {0: 0, 1: 0}


# -- which log it is -----------------------------------------------------------------------------


class Servers:
    """A requester: answers with these identities, one a question."""

    def __init__(self, *identities):
        self.group, self.metadata = "flights", self
        self.identities = list(identities)
        self.sent = []

    def leader(self):
        raise AssertionError

    async def ask(self, address, group):
        found = GroupMetadata(group, {}, None, 1, self.identities.pop(0))
        return MetadataResponse(groups=[found])

    async def retrying(self, locate, ask, timeout_ms, *, repeat_unknown):
        while True:
            try:
                return await ask(SimpleNamespace(address="a:1"))
            except LeaderNotReadyError:
                continue

    async def ask_leader(self, request, kind, *, timeout_ms, repeat_unknown):
        self.sent.append(request)
        return kind()


async def test_an_identity_that_is_not_known_yet_is_asked_for_again():
    assert await identity_of(Servers(b"", b"", b"x" * 16)) == b"x" * 16


async def test_a_member_does_not_join_again_if_the_log_is_another_one():
    log, cluster = Servers(b"x" * 16, b"x" * 16, b"y" * 16), Servers()
    requests = ConsumerRequests(
        cluster, GroupOfLog("billing", "flights", 1), partial(identity_of, log), "me"
    )
    for epoch in (0, 3, 0):
        await requests.heartbeat(epoch, ())
    with pytest.raises(WrongClusterError, match="founded again"):
        await requests.heartbeat(0, ())
    assert len(cluster.sent) == 3, "nothing was sent that ends the positions of the new log"
    assert [one.number for one in cluster.sent] == [1, 2, 3], "copies are known by their number"


def test_a_callback_that_would_wait_for_its_own_thread_is_refused():
    thread = LoopThread()
    try:

        async def callback():
            thread.wait(zero())

        with pytest.raises(QuorumlogError, match="callback"):
            thread.wait(callback())
    finally:
        thread.stop()


@pytest.mark.parametrize("missing", ["group", "log"])
def test_group_and_log_are_said_by_name(missing):
    names = {"group": "g", "log": "l"}
    with pytest.raises(TypeError, match=missing):
        Consumer("127.0.0.1:1", **{name: names[name] for name in names if name != missing})
    with pytest.raises(TypeError):
        Consumer("127.0.0.1:1", "g", "l")
