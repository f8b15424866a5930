"""Replicas compare the digests of their state machines after the same entries (decision 0021).

After every `digestEntries` entries each replica tells the leader its digest. The leader tells all
of them what a majority of the voters has; whose state is another begins again from a snapshot.
While no majority agrees, those that differ check their own state.
"""

import logging
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from quorumlog.model.codes import Role
from quorumlog.model.log_lines import say
from quorumlog.model.message import StateDigest
from quorumlog.node.doors import Doors

if TYPE_CHECKING:
    from quorumlog.node.replica import Replica

logger = logging.getLogger(__name__)

POINTS_KEPT = 8
"""Entries whose digests are remembered: the last ones."""
DIGEST_BYTES_MAX = 1_024
"""Of a digest that is compared."""
NOWHERE = 1 << 62

_Value = TypeVar("_Value")


class Comparisons:
    """Of one replica; called on its thread. After `agreed_index` its state was a majority's."""

    def __init__(self, replica: "Replica", doors: Doors) -> None:
        self._replica = replica
        self._doors = doors
        self._entries = replica.config.digest_entries
        self._own: dict[int, bytes] = {}
        self._seen: dict[int, dict[str, bytes]] = {}
        self._told: dict[int, dict[str, bool]] = {}
        self._verdicts: dict[int, StateDigest] = {}
        self.agreed_index = -1

    def next_point(self, applied_index: int) -> int:
        """Return the next entry after which states are compared."""
        entries = self._entries
        return ((applied_index + 1) // entries + 1) * entries - 1 if entries else NOWHERE

    def is_point(self, index: int) -> bool:
        """Whether states are compared after an entry."""
        return bool(self._entries) and index >= 0 and (index + 1) % self._entries == 0

    def reached(self, index: int, digest: bytes) -> None:
        """The machine has applied an entry after which states are compared."""
        core = self._replica.core
        _keep(self._own, index, digest)
        verdict = self._verdicts.pop(index, None)
        if verdict is not None and verdict.term == core.term:
            self._heard(verdict.digest, index, is_majority=verdict.is_majority)
        elif core.role is Role.LEADER:
            self._reported(core.self_id, index, digest)
        elif core.leader_id is not None:
            self._send(core.leader_id, index, digest)

    def forget(self) -> None:
        """The machine begins again: what was said of it is of another."""
        self._own.clear()

    def received(self, message: StateDigest) -> None:
        """A peer tells its digest, or the leader what others have."""
        core, index = self._replica.core, message.index
        has_machine = self._replica.applier.machine is not None
        if not has_machine or not self.is_point(index) or len(message.digest) > DIGEST_BYTES_MAX:
            return
        if message.is_verdict:
            if message.local_id != core.leader_id or message.term != core.term:
                return
            if index in self._own:
                self._heard(message.digest, index, is_majority=message.is_majority)
            elif index > self._replica.applier.applied_index:
                _keep(self._verdicts, index, message)
            return
        is_member = message.local_id in core.membership.ids
        if core.role is Role.LEADER and is_member and index <= core.committed_index:
            self._reported(message.local_id, index, message.digest)

    # -- the leader ---------------------------------------------------------------------------

    def _reported(self, node_id: str, index: int, digest: bytes) -> None:
        seen = self._seen.get(index, {})
        if seen.get(node_id) != digest:
            self._told.get(index, {}).pop(node_id, None)
        _keep(self._seen, index, seen | {node_id: digest})
        if index in self._seen:
            _keep(self._told, index, self._told.get(index, {}))
            self._judge(index)

    def _judge(self, index: int) -> None:
        seen, voters = self._seen[index], self._replica.core.membership.voters
        counted = Counter(seen[node_id] for node_id in voters if node_id in seen)
        [(digest, count)] = counted.most_common(1) or [(b"", 0)]
        if count > len(voters) // 2:
            for node_id in seen:
                self._tell(node_id, index, digest, is_majority=True)
            return
        own = seen.get(self._replica.core.self_id)
        for node_id, other in seen.items():
            if own is not None and other != own:
                self._tell(node_id, index, own, is_majority=False)
                self._tell(self._replica.core.self_id, index, other, is_majority=False)

    def _tell(self, node_id: str, index: int, digest: bytes, *, is_majority: bool) -> None:
        """Tell a replica once; again when a majority is known."""
        told = self._told[index]
        if told.get(node_id, False) or (node_id in told and not is_majority):
            return
        told[node_id] = is_majority
        if node_id == self._replica.core.self_id:
            self._heard(digest, index, is_majority=is_majority)
        else:
            self._send(node_id, index, digest, is_verdict=True, is_majority=is_majority)

    def _send(
        self,
        node_id: str,
        index: int,
        digest: bytes,
        *,
        is_verdict: bool = False,
        is_majority: bool = False,
    ) -> None:
        core = self._replica.core
        message = StateDigest(
            group=self._replica.config.group,
            local_id=core.self_id,
            remote_id=node_id,
            term=core.term,
            index=index,
            digest=digest,
            is_verdict=is_verdict,
            is_majority=is_majority,
        )
        self._doors.network.send(node_id, message)

    # -- everyone -----------------------------------------------------------------------------

    def _heard(self, digest: bytes, index: int, *, is_majority: bool) -> None:
        if self._own.get(index) == digest:
            if is_majority:
                self.agreed_index = max(self.agreed_index, index)
            return
        applier = self._replica.applier
        if index not in self._own:
            return
        who = "those of a majority" if is_majority else "that of another replica"
        text = f"the state after entry {index} differs from {who}"
        say(logger, logging.ERROR, "states differ", group=self._replica.config.group, text=text)
        self._replica.raise_alarm(text)
        if is_majority:
            applier.rebuild(text, trusted_index=self.agreed_index)
        else:
            applier.scrub.check_soon()


def _keep(kept: dict[int, _Value], index: int, value: _Value) -> None:
    """Remember something about an entry, and of the last ones only."""
    kept[index] = value
    while len(kept) > POINTS_KEPT:
        del kept[min(kept)]
