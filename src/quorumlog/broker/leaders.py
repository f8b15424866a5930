"""Who leads the partition groups, as far as one node knows: from messages, and from its replicas.

Each node says which groups it leads when that changes, and again each second. What is of the
highest term counts. A node whose connection has ended leads nothing until it says so again; one
that is silent is dead, too. Clients may be told of brokers that were just lost: librdkafka forgets
for a second what it has to send to a broker that is gone from the list.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumlog.model.messages.cluster import LedGroup

SILENT_MS: Final = 4_000
"""A node that was not heard of for this long counts as dead, and as the leader of nothing."""
ELECTION_MS: Final = 300
"""A group that has lost its leader usually has another one after this time, if it gets one at all:
30 to 100 ms after a process has died, as its connections end."""
MAKES_NONE_MS: Final = 600_000
"""A node that could not make a group is asked for others after this time only, if others can."""
NOTHING: Final[Mapping[str, str]] = {}
UNKNOWN_TERM: Final = -1
NEVER_LED: Final = 0
"""The term of a group that has had no election yet."""


class KnownLeader(NamedTuple):
    """The leader of a group in a term; `node_id` None: not known."""

    node_id: str | None = None
    term: int = UNKNOWN_TERM
    in_sync: tuple[str, ...] = ()


NOBODY: Final = KnownLeader()


@dataclass(slots=True)
class _Heard:
    """What a node said last, and when."""

    at_ms: int
    groups: dict[str, LedGroup] = field(default_factory=dict)
    not_made: Mapping[str, str] = field(default_factory=dict)
    is_connected: bool = True


class Leaders:
    """What one node knows. `changed` is called after each change of what is asked here.

    Nobody leads groups of which `is_given_up` says so, whatever nodes say that do not know it yet.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        changed: Callable[[], None],
        is_given_up: Callable[[str], bool],
    ) -> None:
        self._now_ms = now_ms
        self._changed = changed
        self._is_given_up = is_given_up
        self._heard: dict[str, _Heard] = {}
        self._observed: dict[str, tuple[int, str | None]] = {}
        self._known: dict[str, KnownLeader] = {}
        self._alive: frozenset[str] = frozenset()
        self._failed_ms: dict[str, int] = {}
        """When a node said last that it could not make a group."""
        self._leaderless: dict[str, int] = {}
        """Since when groups have no leader that have had an election."""

    def of(self, group: str) -> KnownLeader:
        """Return the leader of a group."""
        return self._known.get(group, NOBODY)

    @property
    def alive(self) -> frozenset[str]:
        """Nodes that were heard of lately, and this one."""
        return self._alive

    def is_connected(self, node_id: str | None) -> bool:
        """Whether a node was heard of lately, and its connection has not ended since."""
        heard = None if node_id is None else self._heard.get(node_id)
        return heard is not None and heard.is_connected

    def are_electing(self) -> bool:
        """Whether a group has lost its leader, and may be about to have another one."""
        oldest = self._now_ms() - ELECTION_MS
        return any(since_ms > oldest for since_ms in self._leaderless.values())

    def makes_groups(self, node_id: str) -> bool:
        """Whether a node is connected and has not said lately that it could not make a group."""
        failed_ms = self._failed_ms.get(node_id, -MAKES_NONE_MS)
        return self.is_connected(node_id) and self._now_ms() - failed_ms >= MAKES_NONE_MS

    def why_not_made(self, group: str) -> str:
        """Say why nodes could not make their replicas of a group; empty: none says so."""
        return "; ".join(
            f"{node_id}: {one.not_made[group].removeprefix(f'{node_id}: ')}"
            for node_id, one in sorted(self._heard.items())
            if group in one.not_made
        )

    def told(
        self, node_id: str, groups: Iterable[LedGroup], not_made: Mapping[str, str] = NOTHING
    ) -> None:
        """A node says which groups it leads: these, and no others; and which it could not make."""
        now_ms = self._now_ms()
        self._heard[node_id] = _Heard(now_ms, {one.group: one for one in groups}, not_made)
        if not_made:
            self._failed_ms[node_id] = now_ms
        self._update()

    def lost(self, node_id: str) -> None:
        """The connection of a node has ended: its process, too, or it says more at once."""
        heard = self._heard.get(node_id)
        self._failed_ms.pop(node_id, None)  # it may have more of what it lacked when it is back
        if heard is not None and heard.is_connected:
            self._heard[node_id] = _Heard(heard.at_ms, is_connected=False)
            self._update()

    def observed(self, replicas: dict[str, tuple[int, str | None]]) -> None:
        """Take what this node's own replicas know: group → (term, leader or None)."""
        if replicas != self._observed:
            self._observed = replicas
            self._update()

    def groups_changed(self) -> None:
        """Groups may have been given up: forget them."""
        self._update()

    def tick(self) -> None:
        """Forget nodes that were silent for too long."""
        oldest = self._now_ms() - SILENT_MS
        silent = [node_id for node_id, one in self._heard.items() if one.at_ms < oldest]
        for node_id in silent:
            del self._heard[node_id]
            self._failed_ms.pop(node_id, None)
        if silent:
            self._update()

    def _update(self) -> None:
        known: dict[str, KnownLeader] = {}
        for node_id, heard in self._heard.items():
            for name, led in heard.groups.items():
                if led.term > known.get(name, NOBODY).term:
                    known[name] = KnownLeader(node_id, led.term, tuple(sorted(led.in_sync)))
        for name, (term, leader) in self._observed.items():
            before = known.get(name, NOBODY)
            if term > before.term:
                leads = leader if self.is_connected(leader) else None
                known[name] = KnownLeader(leads, term, before.in_sync)
        for name, last in self._known.items():  # who led last is not forgotten, but that it leads
            if known.get(name, NOBODY).term < last.term:
                known[name] = KnownLeader(None, last.term, last.in_sync)
            elif not known[name].in_sync:
                known[name] = known[name]._replace(in_sync=last.in_sync)
        known = {name: one for name, one in known.items() if not self._is_given_up(name)}
        now_ms, leaderless = self._now_ms(), self._leaderless
        self._leaderless = {
            name: leaderless.get(name, now_ms)
            for name, one in known.items()
            if one.node_id is None and one.term > NEVER_LED
        }
        alive = frozenset(self._heard)
        if known != self._known or alive != self._alive:
            self._known, self._alive = known, alive
            self._changed()
