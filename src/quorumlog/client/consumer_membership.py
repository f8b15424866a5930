"""A consumer as a member of its group: heartbeats, what it is assigned, and commits.

All that is asked of the coordinator is asked one after the other, so that a commit always has the
member's present epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import isawaitable
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from quorumlog.client.consumer_commits import Commits, Taken, taken_of
from quorumlog.client.consumer_requests import ConsumerRequests
from quorumlog.client.consumer_share import Place, Share
from quorumlog.model.errors import ConsumerFencedError, QuorumlogError, RequestError
from quorumlog.model.messages.consumers import JOINING, ConsumerHeartbeatResponse

LAST_COMMIT_MS: Final = 2_000
LEAVE_MS: Final = 2_000
"""How long closing may take to commit, and then to leave: the coordinator notices by itself, after
the session time-out, that a member is gone."""
REJOIN_S: Final = 0.5
"""Pause before a member that was refused as it joined tries again."""
_TOO_LATE: Final = (
    "the consumer was removed from its group while on_revoked ran, so it has lost all of its "
    "partitions: the session was over, or on_revoked took longer than the 60 s from when they are "
    "revoked, less what was left of handling the entry before. The consumer joins again once "
    "on_revoked has ended"
)
Begin: TypeAlias = Callable[[], Awaitable[int]]
"""Returns where a partition begins of which nothing was committed."""
Revoked: TypeAlias = Callable[[frozenset[int]], Awaitable[None] | None]


class Callbacks(NamedTuple):
    """What the program is told.

    `assigned` is called with the partitions that the consumer has, whenever these change; `revoked`
    with those that it is about to give up, as long as it may still commit.
    """

    assigned: Callable[[frozenset[int]], None] | None = None
    revoked: Revoked | None = None


class Session:
    """How long the coordinator leaves the member its partitions, by the clock of the event loop."""

    def __init__(self) -> None:
        self.epoch = JOINING
        self._ends_s = -1.0
        self._gives_up_by_s = inf

    def goes_on(
        self, answer: ConsumerHeartbeatResponse, asked_s: float, *, is_giving_up: bool
    ) -> None:
        """A heartbeat was answered that was sent at a time.

        The coordinator removes a member that gives nothing up for `rebalance_ms`, whatever else it
        says: it began to count when it first said what to give up, which was after `asked_s`.
        """
        self.epoch = answer.epoch
        self._ends_s = asked_s + answer.session_ms / 1_000
        if is_giving_up:
            self._gives_up_by_s = min(self._gives_up_by_s, asked_s + answer.rebalance_ms / 1_000)
        else:
            self._gives_up_by_s = inf

    @property
    def is_valid(self) -> bool:
        """Whether nobody else can have the partitions."""
        return asyncio.get_running_loop().time() < min(self._ends_s, self._gives_up_by_s)


class Membership:
    """Keeps a consumer a member from the first `usable` to `close`.

    `begin`: see `Begin`. `auto_commit_s`: how often what the program has handled is committed;
    None: never.
    """

    def __init__(
        self,
        requests: ConsumerRequests,
        begin: Begin,
        *,
        partitions: int,
        auto_commit_s: float | None,
        callbacks: Callbacks,
    ) -> None:
        self.share: Share | None = None
        self._requests = requests
        self._begin = begin
        self._partitions = partitions
        self._auto_commit_s = auto_commit_s
        self._callbacks = callbacks
        self._told: frozenset[int] = frozenset()
        """What the coordinator said last that the consumer may use."""
        self._releasing: dict[int, Place] = {}
        """Of what others wait for: the program may still handle an entry of it, or commit it."""
        self._revoking: asyncio.Task[None] | None = None
        self._commits = Commits(requests)
        self._session = Session()
        self._asking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._handling: object | None = None
        self._has_asked = self.is_closed = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    # -- what the program has -----------------------------------------------------------------

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that the consumer has."""
        return frozenset(() if self.share is None else self.share.places)

    async def usable(self) -> Share | None:
        """Wait until the consumer has partitions; None: it was closed.

        Raises `RequestError` if it cannot be a member, or is none any more after a long outage, and
        what a callback has raised.
        """
        while not self.is_closed:
            changed = self._changed
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._start()
            if self.share is not None and self.share.places and self.may_yield(self.share):
                return self.share
            await changed.wait()
        return None

    def may_yield(self, share: Share) -> bool:
        """Whether entries of a share may be yielded: it has not ended, and nor has the session.

        While something is to be given up, nothing is yielded: what `revoked` commits was handled.
        """
        is_valid = self._session.is_valid
        if not is_valid:
            self._wake.set()  # the loop was blocked, or there is an outage: ask first
        return is_valid and not (share.has_ended or self._revoking or self._has_to_give_up)

    @property
    def _has_to_give_up(self) -> bool:
        return bool(self._releasing) and self._handling is None

    @contextmanager
    def handling(self, share: Share) -> Iterator[None]:
        """The program has entries of a share in its hands, until it asks for more.

        It may end its loop instead, maybe by an error, and begin another one: then it is not known
        whether it has handled them.
        """
        self._handling = token = object()
        try:
            yield
            if self._handling is token:
                share.has_handled()
        finally:
            if self._handling is token:
                self._rest()

    def _rest(self) -> None:
        """The program has no entries in its hands any more."""
        self._handling = None
        if self._releasing:
            self._wake.set()

    def begin_again(self) -> None:
        """A new loop begins, at the first entry of each partition not known to be handled."""
        self._rest()
        self._releasing |= _not_handled(self._releasing)  # it may be assigned again
        if self.share is not None:
            self._move(_not_handled(self.share.places))

    def seek(self, share: Share, positions: Mapping[int, int]) -> None:
        """Go on at other positions of a share's partitions, unless the share has ended."""
        if share is self.share and not share.has_ended:
            places = share.places
            self._move({p: places[p].moved(at, is_sought=True) for p, at in positions.items()})

    def _move(self, places: Mapping[int, Place]) -> None:
        if places and self.share is not None:
            self.share.end()
            self.share = Share({**self.share.places, **places}, self._partitions)
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- heartbeats ---------------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        beat_s = loop.time()
        commit_s = inf if self._auto_commit_s is None else beat_s
        while not self.is_closed:
            is_woken = self._wake.is_set()
            self._wake.clear()
            try:
                async with self._asking:
                    await self._give_up()
                    if is_woken or loop.time() >= beat_s:
                        beat_s = loop.time() + await self._beat()
                    if self._auto_commit_s is not None and loop.time() >= commit_s:
                        commit_s = loop.time() + self._auto_commit_s
                        await self._commits.commit_handled(self._places, self._session.epoch)
            except ConsumerFencedError:  # as it committed: a heartbeat says in which epoch it is
                beat_s = loop.time() + REJOIN_S
            except Exception as error:
                beat_s = loop.time() + REJOIN_S
                if not self._may_pass(error):
                    self.fail(error)
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(beat_s, commit_s)):
                    await self._wake.wait()

    def _may_pass(self, error: Exception) -> bool:
        """Whether the consumer is a member with all of its partitions, in spite of an error."""
        if not isinstance(error, RequestError) or not error.retriable:
            return False
        is_settled = self._session.epoch != JOINING and self._told == self.partitions
        return is_settled and self._session.is_valid

    def fail(self, error: Exception) -> None:
        """Have whoever waits for partitions get an error; asking again starts over."""
        self._failure = error
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        with suppress(Exception):  # of a callback: there is an error to tell of already
            self._lose_all()
        self._notify()

    async def _beat(self) -> float:
        """Send a heartbeat, and take what it is answered; return the seconds until the next.

        The consumer does not join while `revoked` runs: it would take partitions from others, and
        yield nothing of them.
        """
        if self._revoking is not None and self._session.epoch == JOINING:
            return REJOIN_S
        asked_s, owned = asyncio.get_running_loop().time(), self._owned()
        self._has_asked = True
        try:
            answer = await self._requests.heartbeat(self._session.epoch, owned)
        except ConsumerFencedError:
            was_joining = self._session.epoch == JOINING
            if self._revoking is not None:
                self._failure = ConsumerFencedError(_TOO_LATE)
            self._lose_all()
            self._notify()
            return REJOIN_S if was_joining else 0.0
        was_valid = self._session.is_valid
        self._told = frozenset(answer.assigned)
        self._session.goes_on(answer, asked_s, is_giving_up=not self._owned() <= self._told)
        if self._told != self.partitions:
            await self._take()
        elif not was_valid and self._session.is_valid:
            self._notify()
        # who has given something up says so at once: another member waits for that
        return 0.0 if self._owned() != owned else answer.interval_ms / 1_000

    @property
    def _places(self) -> dict[int, Place]:
        return self._releasing | ({} if self.share is None else self.share.places)

    def _owned(self) -> frozenset[int]:
        """Return the partitions that the consumer uses, or whose entry the program handles."""
        return frozenset(self._places)

    async def _take(self) -> None:
        """Have what the coordinator says: give up what is not in it, and begin with what is new."""
        had, told = self._places, self._told
        if self.share is not None:
            self.share.end()
        self.share = Share({p: one for p, one in had.items() if p in told}, self._partitions)
        self._releasing = {p: one for p, one in had.items() if p not in told}
        if self._callbacks.revoked is None:
            await self._give_up()
        elif self._has_to_give_up:
            self._wake.set()
        new = told - self.partitions
        if new:
            await self._begin_new(new)
        self._tell()

    def _tell(self) -> None:
        """Say that the consumer has other partitions."""
        try:
            if self._callbacks.assigned is not None:
                self._callbacks.assigned(self.partitions)
        except asyncio.CancelledError as error:  # it would end the task of the heartbeats
            raise _cancelled("on_assigned", error) from error
        finally:
            self._notify()

    async def _begin_new(self, new: frozenset[int]) -> None:
        """Have partitions that the consumer has got in its share, at their committed positions.

        Where nothing is committed the group begins now, and this is committed: whoever has the
        partition next does not begin later.
        """
        committed = await self._requests.positions()
        missing = new - committed.keys()
        if missing:
            begin = await self._begin()
            await self._commits.first(missing, begin, self._session.epoch)
            committed |= dict.fromkeys(missing, begin)
        found = {one: committed[one] for one in new}
        self._commits.know(found)
        places = {} if self.share is None else self.share.places  # others were read meanwhile
        if self.share is not None:
            self.share.end()
        self.share = Share(
            places | {p: Place(at) for p, at in found.items()},
            self._partitions,
        )

    def _lose_all(self) -> None:
        """The consumer is no member any more: others have its partitions, or will have them."""
        places, had = self._places, self.partitions
        if self.share is not None:
            self.share.end()
        self.share, self._releasing, self._told = None, {}, frozenset()
        self._session = Session()
        self._commits.forget(places)
        if had:
            self._tell()

    # -- giving up ----------------------------------------------------------------------------

    async def _give_up(self) -> None:
        """Give up what others wait for, unless the program has an entry in its hands.

        `revoked` is awaited by a task of its own, as it may commit, and heartbeats go on.
        """
        if not self._has_to_give_up or self._revoking is not None:
            return
        if self._callbacks.revoked is None:
            await self._release(frozenset(self._releasing))
        else:
            work = self._revoke(self._callbacks.revoked, frozenset(self._releasing))
            self._revoking = asyncio.create_task(work)

    async def _revoke(self, revoked: Revoked, partitions: frozenset[int]) -> None:
        """Have the program know of partitions that it is to give up, and give them up.

        That happens however `revoked` ends: others wait for them, and nothing is yielded before.
        """
        try:
            await self._await_revoked(revoked, partitions)
            async with self._asking:
                await self._release(partitions)
        except Exception as error:
            self._failure = error
        finally:
            if not self.is_closed:  # else `close` commits what is left
                self._forget(partitions)
            self._revoking = None
            self._wake.set()
            self._notify()

    async def _await_revoked(self, revoked: Revoked, partitions: frozenset[int]) -> None:
        """Await `revoked`; what it raises is raised by the loop."""
        try:
            done = revoked(partitions)
            if isawaitable(done):
                await done
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # by `close`, or as the event loop ends
                raise
            self._failure = _cancelled("on_revoked", error)
        except Exception as error:
            self._failure = error

    async def _release(self, partitions: frozenset[int]) -> None:
        """Use partitions no more; with auto-commit, what the program has handled is committed.

        If it cannot be, others handle it again: they must not wait for this consumer.
        """
        places = {p: one for p, one in self._releasing.items() if p in partitions}
        if self._auto_commit_s is not None:
            with suppress(RequestError):
                await self._commits.commit_handled(places, self._session.epoch)
        self._forget(partitions)

    def _forget(self, partitions: frozenset[int]) -> None:
        """Have no places any more in partitions that are given up."""
        places = {p: self._releasing.pop(p) for p in partitions & self._releasing.keys()}
        self._commits.forget(places)
        self._notify()

    # -- commits ------------------------------------------------------------------------------

    def taken(self) -> dict[int, Taken]:
        """Return what the program has handled, as it says by asking for a commit now.

        `revoked` says nothing of that: what a loop had in its hands when it ended by an error was
        not handled.
        """
        if self._revoking is None:
            for place in self._places.values():
                place.has_handled(place.position)
        return taken_of(self._places)

    async def commit(self, taken: Mapping[int, Taken]) -> None:
        """Commit what was taken of the partitions that the consumer has, or gives up.

        Raises `ConsumerFencedError` after that if others were lost, with entries not committed.
        Those of them that the consumer has again go on where they are committed.
        """
        commits = self._commits
        async with self._asking:
            try:
                await commits.commit_taken(taken, self._places, self._session.epoch)
            except ConsumerFencedError:
                # the epoch may have risen without this consumer knowing
                if not await self._beat():
                    self._wake.set()
                try:
                    await commits.commit_taken(taken, self._places, self._session.epoch)
                except ConsumerFencedError:  # the coordinator takes none of them from it
                    commits.give_up(taken, self._places)
            if self.share is not None:
                self._move(commits.after_loss(self.share.places))
        commits.raise_lost()

    # -- end ----------------------------------------------------------------------------------

    async def close(self, caller: asyncio.Task[Any] | None = None) -> None:
        """Leave the group at once; with auto-commit, commit first what the program has handled.

        `caller`: the task that closes, which may be the one that awaits `revoked`. If this is
        cancelled, it can be done again; once the member has left, it does nothing.
        """
        self.is_closed = True
        self._notify()
        if self.share is not None:
            self.share.end()
        if self._revoking not in (None, caller):  # it may be about to commit
            await asyncio.wait((self._revoking,), timeout=LAST_COMMIT_MS / 1_000)
        for task in (self._task, self._revoking):
            if task not in (None, caller):
                task.cancel()
                await asyncio.wait((task,))
        if not self._has_asked:
            return
        if self._auto_commit_s is not None:
            with suppress(RequestError, TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_MS / 1_000), self._asking:
                    await self._commits.commit_handled(self._places, self._session.epoch)
        with suppress(RequestError, TimeoutError):
            async with asyncio.timeout(LEAVE_MS / 1_000), self._asking:
                await self._requests.leave(LEAVE_MS)
        self._has_asked = False

    def is_revoking_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that awaits `revoked`, so that it cannot wait for `close`."""
        return task is not None and task is self._revoking


def loop_of(membership: Membership) -> asyncio.AbstractEventLoop | None:
    """Return the event loop in which heartbeats are sent; None: none are."""
    return None if membership._task is None else membership._task.get_loop()


def _not_handled(places: Mapping[int, Place]) -> dict[int, Place]:
    """Return places at the first entries not known to be handled, of which some were yielded."""
    return {
        partition: one.moved(one.handled, is_sought=one.is_sought)
        for partition, one in places.items()
        if one.handled < one.position
    }


def _cancelled(callback: str, error: asyncio.CancelledError) -> QuorumlogError:
    """Return what the loop raises instead of a callback's `CancelledError`.

    Whoever reads would seem to be cancelled itself.
    """
    failure = QuorumlogError(
        f"{callback} ended with a CancelledError: something that it waited for was cancelled. "
        "Catch that in the callback if it is expected"
    )
    failure.__cause__ = error
    return failure
