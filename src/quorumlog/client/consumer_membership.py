"""A consumer as a member of its group: heartbeats, what it is assigned, and commits.

All that is asked of the coordinator is asked one after the other, so that a commit always has the
member's present epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

from quorumlog.client.consumer_requests import ConsumerRequests
from quorumlog.client.consumer_share import Share
from quorumlog.model.errors import ConsumerFencedError, RequestError
from quorumlog.model.messages.consumers import JOINING

LEAVE_MS: Final = 2_000
"""How long leaving may take: after the session time-out the coordinator notices by itself."""
REJOIN_S: Final = 0.5
"""Pause before a member that was refused as it joined tries again."""
Begin: TypeAlias = Callable[[], Awaitable[int]]
"""Returns where a partition begins of which nothing was committed."""
Assigned: TypeAlias = Callable[[frozenset[int]], None]


class Membership:
    """Keeps a consumer a member from `start` to `close`.

    `begin`: see `Begin`. `auto_commit_s`: how often what the program has handled is committed;
    None: never. `assigned` is called with the partitions that the consumer has, whenever these
    change.
    """

    def __init__(
        self,
        requests: ConsumerRequests,
        begin: Begin,
        *,
        partitions: int,
        auto_commit_s: float | None,
        assigned: Assigned,
    ) -> None:
        self.share: Share | None = None
        self._requests = requests
        self._begin = begin
        self._partitions = partitions
        self._auto_commit_s = auto_commit_s
        self._assigned = assigned
        self._told: frozenset[int] = frozenset()
        """What the coordinator said last that the consumer may use."""
        self._releasing: Share | None = None
        """A share of which the program may still handle an entry, while others wait for that."""
        self._committed: dict[int, int] = {}
        self._lost: set[int] = set()
        """Partitions that were lost with entries that were yielded and not committed."""
        self._epoch = JOINING
        self._valid_until_s = -1.0
        """Until then the coordinator does not give the partitions to others."""
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
        return frozenset(() if self.share is None else self.share.positions)

    async def usable(self) -> Share | None:
        """Wait until the consumer has partitions; None: it was closed.

        Raises `RequestError` if it cannot be a member, or is none any more after a long outage.
        """
        while not self.is_closed:
            changed = self._changed
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._start()
            if self.share is not None and self.share.positions and self._is_valid:
                return self.share
            await changed.wait()
        return None

    def may_yield(self, share: Share) -> bool:
        """Whether entries of a share may be yielded: it has not ended, and nor has the session."""
        if not self._is_valid:
            self._wake.set()  # the loop was blocked, or there is an outage: ask first
        return self._is_valid and not share.has_ended

    @property
    def _is_valid(self) -> bool:
        return asyncio.get_running_loop().time() < self._valid_until_s

    @contextmanager
    def handling(self, share: Share) -> Iterator[None]:
        """The program has entries of a share in its hands, until it asks for more.

        It may end its loop instead, maybe by an error, and begin another one: then it is not known
        whether it has handled them.
        """
        self._handling = token = object()
        try:
            yield
            share.has_handled()
        finally:
            if self._handling is token:
                self.rests()

    def rests(self) -> None:
        """The program has no entries in its hands any more."""
        self._handling = None
        if self._releasing is not None:
            self._wake.set()

    def restart(self, positions: Mapping[int, int]) -> None:
        """Go on at other positions of the partitions that the consumer has."""
        before, self.share = self.share, Share(positions, self._partitions)
        if before is not None:
            self.share.yielded |= before.yielded
            before.end()
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
        commit_s = loop.time()
        while not self.is_closed:
            self._wake.clear()
            try:
                async with self._asking:
                    pause_s = await self._beat()
                    if self._auto_commit_s is not None and loop.time() >= commit_s:
                        commit_s = loop.time() + self._auto_commit_s
                        await self._commit_handled(self.share)
            except ConsumerFencedError:  # as it committed: a heartbeat says in which epoch it is
                pause_s = REJOIN_S
            except Exception as error:
                pause_s = REJOIN_S
                is_passing = isinstance(error, RequestError) and error.retriable
                if not is_passing or self._epoch == JOINING or not self._is_valid:
                    self._fail(error)
                    return
            if self._auto_commit_s is not None:
                pause_s = min(pause_s, self._auto_commit_s)
            if pause_s > 0:
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _fail(self, error: Exception) -> None:
        """Have whoever waits for partitions get an error; asking again begins anew."""
        self._lose_all()
        self._failure = error
        self._notify()

    async def _beat(self) -> float:
        """Send a heartbeat, and take what it is answered; return the seconds until the next."""
        if self._releasing is not None and self._handling is None:
            await self._release_now(self._releasing)
        self._has_asked = True
        asked_s, owned = asyncio.get_running_loop().time(), self._owned()
        try:
            answer = await self._requests.heartbeat(self._epoch, owned)
        except ConsumerFencedError:
            was_joining = self._epoch == JOINING
            self._lose_all()
            return REJOIN_S if was_joining else 0.0
        self._epoch = answer.epoch
        was_valid = self._is_valid
        self._valid_until_s = asked_s + answer.session_ms / 1_000
        self._told = frozenset(answer.assigned)
        if self._told != self.partitions:
            await self._take()
        elif not was_valid:
            self._notify()
        # who has given something up says so at once: another member waits for that
        return 0.0 if self._owned() != owned else answer.interval_ms / 1_000

    def _owned(self) -> frozenset[int]:
        """Return the partitions that the consumer uses, or whose entry the program handles."""
        held = () if self._releasing is None else self._releasing.positions
        return self.partitions | frozenset(held)

    async def _take(self) -> None:
        """Have what the coordinator says: give up what is not in it, and begin with what is new."""
        before, told = self.share, self._told
        kept = {} if before is None else {p: at for p, at in before.positions.items() if p in told}
        gone = set() if before is None else before.positions.keys() - told
        if before is not None:
            before.end()
        self.share = share = Share(kept, self._partitions)
        if before is not None:
            share.take_over(before)
            if gone:
                self._release_later(before)
        if gone and self._releasing is not None and self._handling is None:
            await self._release_now(self._releasing)
        new = told - kept.keys()
        if new:
            await self._begin_new(new)
        self._assigned(self.partitions)
        self._notify()

    async def _release_now(self, share: Share) -> None:
        """Use a share no more; with auto-commit, what the program has handled is committed.

        If it cannot be, others handle it again: they must not wait for this consumer.
        """
        if self._auto_commit_s is not None:
            with suppress(RequestError):
                await self._commit_handled(share)
        self._releasing = None
        self._forget(share, share.positions.keys() - self.partitions)

    def _release_later(self, share: Share) -> None:
        """Give a share up, once the program has handled what it was given of it."""
        if self._releasing is not None:
            share.positions = self._releasing.positions | share.positions
            share.handled = self._releasing.handled | share.handled
            share.yielded |= self._releasing.yielded
        self._releasing = share

    async def _begin_new(self, new: frozenset[int]) -> None:
        """Have partitions that the consumer has got in its share, at their committed positions.

        Where nothing is committed the group begins now, and this is committed: whoever has the
        partition next does not begin later.
        """
        committed = await self._requests.positions()
        missing = sorted(new - committed.keys())
        if missing:
            begin = await self._begin()
            first = dict.fromkeys(missing, begin)
            await self._requests.commit(first, self._epoch)
            committed |= first
        found = {one: committed[one] for one in new}
        self._committed.update(found)
        before = self.share  # others of its partitions were read meanwhile
        self.share = Share((before.positions if before else {}) | found, self._partitions)
        if before is not None:
            self.share.take_over(before)
            before.end()

    def _lose_all(self) -> None:
        """The consumer is no member any more: others have its partitions, or will have them."""
        shares = [one for one in (self.share, self._releasing) if one is not None]
        had = self.partitions
        self.share = self._releasing = None
        for one in shares:
            one.end()
            self._forget(one, one.positions.keys())
        self._epoch, self._valid_until_s, self._told = JOINING, -1.0, frozenset()
        if had:
            self._assigned(frozenset())

    def _forget(self, share: Share, partitions: Set[int]) -> None:
        self._lost |= share.yielded & partitions
        for one in partitions:
            self._committed.pop(one, None)

    # -- commits ------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit all that was yielded of the partitions that the consumer has, or gives up.

        Raises `ConsumerFencedError` after that if others were lost, with entries not committed.
        """
        async with self._asking:
            try:
                await self._commit_yielded()
            except ConsumerFencedError:
                # the epoch may have risen without this consumer knowing
                if not await self._beat():
                    self._wake.set()
                await self._commit_yielded()
        if self._lost:
            lost, self._lost = sorted(self._lost), set()
            text = ", ".join(map(str, lost))
            raise ConsumerFencedError(
                f"entries of {'partition' if len(lost) == 1 else 'partitions'} {text} were handled "
                "and not committed before another member got them: they are handled again there"
            )

    async def _commit_yielded(self) -> None:
        shares = [one for one in (self._releasing, self.share) if one is not None]
        positions = {p: at for one in shares for p, at in one.positions.items()}
        await self._commit(positions)
        for one in shares:
            one.yielded -= {p for p, at in positions.items() if at >= one.positions.get(p, at)}

    async def _commit_handled(self, share: Share | None) -> None:
        """Commit what the program has handled for sure."""
        if share is None:
            return
        handled = dict(share.handled)
        await self._commit(handled)
        share.yielded -= {p for p, at in handled.items() if at >= share.positions.get(p, at)}

    async def _commit(self, positions: Mapping[int, int]) -> None:
        wanted = {p: at for p, at in positions.items() if at > self._committed.get(p, -1)}
        if wanted:
            await self._requests.commit(wanted, self._epoch)
            self._committed.update(wanted)

    # -- end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Leave the group at once; with auto-commit, commit first what the program has handled."""
        if self.is_closed:
            return
        self.is_closed = True
        self._notify()
        if self.share is not None:
            self.share.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self._has_asked:
            return
        try:
            async with asyncio.timeout(LEAVE_MS / 1_000), self._asking:
                if self._auto_commit_s is not None:
                    await self._commit_handled(self.share)
                await self._requests.leave(LEAVE_MS)
        except (RequestError, TimeoutError):
            return  # the coordinator notices it after the session time-out
