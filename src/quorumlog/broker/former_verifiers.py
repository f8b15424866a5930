"""Verifiers of removed users and of former passwords: a node does not keep them in its files.

They are in entries of `__cluster`, and in earlier snapshots. So a snapshot is saved when a verifier
was taken away, and replaces all earlier ones and the entries up to it.
"""

from collections.abc import Callable
from typing import Final, Protocol

FORGET_MS: Final = 60_000
"""Pause between two such snapshots, as users may change their own passwords as often as they like.
Also until it is tried again to remove what some member needs, which may be away for long."""
TRY_MS: Final = 1_000
"""Pause between the first `TRIES`: the snapshot has to be saved, and members to have all of it."""
TRIES: Final = 10


class Forgetting(Protocol):
    """The part of a replica that removes former states of its machine."""

    def forget(self, index: int) -> bool:
        """Keep nothing that was there before an index; see `FormerState.forget`."""
        ...


class FormerVerifiers:
    """Has a node forget them. `now_ms` reads a clock that never goes back.

    `verifiers_removed` returns how many changes have taken a verifier away, as far as is known
    here; another number, too, when the users come from a snapshot: what an earlier run of this
    node, or whoever made the snapshot, has removed is asked for once more. `applied_index`: up to
    where that is.
    `former_state` returns the part of the replica of `__cluster` that removes it; None: there is no
    replica now.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        verifiers_removed: Callable[[], int],
        applied_index: Callable[[], int],
        former_state: Callable[[], Forgetting | None],
    ) -> None:
        self._now_ms = now_ms
        self._verifiers_removed = verifiers_removed
        self._applied_index = applied_index
        self._former_state = former_state
        self._seen = 0
        self._until: int | None = None
        """Nothing from before this index is to be kept; None: there is nothing to be forgotten."""
        self._tries = 0
        self._begin_ms = self._try_ms = now_ms()

    def tick(self) -> None:
        """Forget what is due."""
        now_ms, removed = self._now_ms(), self._verifiers_removed()
        # fewer, too: the machine was made anew
        if removed != self._seen and now_ms >= self._begin_ms:
            self._seen, self._until, self._tries = removed, self._applied_index(), 0
            self._begin_ms, self._try_ms = now_ms + FORGET_MS, now_ms
        if self._until is None or now_ms < self._try_ms:
            return
        former_state = self._former_state()
        if former_state is None:
            return
        if former_state.forget(self._until):
            self._until = None
        self._tries += 1
        self._try_ms = now_ms + (TRY_MS if self._tries < TRIES else FORGET_MS)
