"""Opens and closes partitions in the logs of the groups that this node leads.

`__cluster` says which partition is on which channel; the log of the group must say so, too, before
anything is appended to it. What the log has and `__cluster` has not is closed: its topic was
deleted. Both are compared again and again, so it does not matter where an earlier leader stopped.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from quorumlog.machine.cluster.commands import (
    ITEMS_MAX,
    AnyCommand,
    AnyResult,
    PartitionsLost,
    PartitionsOpened,
)
from quorumlog.machine.cluster.state import Assignment, ClusterView
from quorumlog.model.block import Block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.replica import Replica
from quorumlog.topics.entries import PartitionClosed, PartitionOpened

BLOCK_ENTRIES_MAX: Final = 1_000
"""Partitions that are opened or closed in one block."""
BLOCK_BYTES_MAX: Final = 128 * 1024
"""Bytes of such a block."""
ORDER_MS: Final = 10_000
"""How long `__cluster` may take to learn of partitions that were opened; then it is told again."""
RETRY_MS: Final = 200
"""Pause after an append that was refused."""


class Order(Protocol):
    """Has `__cluster` apply a command."""

    def __call__(
        self,
        command: AnyCommand,
        timeout_ms: int,
        done: Callable[[ResponseCode, str, AnyResult | None], None],
    ) -> None:
        """Call `done` once, with what came of it."""
        ...


class PartitionKeeper:
    """The partitions of one group, while this node leads it.

    All methods run on the event loop's thread.
    """

    def __init__(self, name: str, limits: Limits, order: Order, now_ms: Callable[[], int]) -> None:
        self._name = name
        self._limits = limits
        self._order = order
        self._now_ms = now_ms
        self._is_appending = False
        self._is_telling = False
        self._retry_ms = 0
        self._told: dict[int, int] = {}
        """Channels that `__cluster` was told of: until when the view may still lack that."""
        self.looked_at: tuple[int, int, int] | None = None
        """The view, the term and the time at which its partitions were looked at last."""
        self.is_settled = False
        """Whether nothing was left to do when this was last looked at."""

    def reconcile(self, view: ClusterView, replica: Replica) -> None:
        """Begin to open, to close and to tell what differs."""
        core, group = replica.core, view.groups.get(self._name)
        self.is_settled = False
        if group is None or core.role is not Role.LEADER or not core.is_ready:
            return
        wanted = view.assignments.get(self._name, {})
        self._tell(wanted, replica)
        self._append(wanted, group.next_channel, replica)
        if not self._is_telling and not self._is_appending and is_sure(replica):
            self.is_settled = self._retry_ms <= self._now_ms()

    # -- what the log says --------------------------------------------------------------------

    def _append(
        self, wanted: Mapping[int, Assignment], next_channel: int, replica: Replica
    ) -> None:
        if self._is_appending or self._now_ms() < self._retry_ms:
            return
        table = replica.tables.partitions_at_end
        opened = [
            PartitionOpened(channel, one.number, one.topic_id, one.topic)
            for channel, one in sorted(wanted.items())
            if channel > table.highest_channel and not one.is_open
        ]
        # a channel that this view does not know yet was given to a partition after it
        closed = [
            PartitionClosed(channel)
            for channel in table.partitions
            if channel < next_channel and channel not in wanted
        ]
        # closings first and by themselves: they are appended although a disk is full
        entries: list[PartitionOpened | PartitionClosed] = [*(closed or opened)][:BLOCK_ENTRIES_MAX]
        if not entries:
            return
        block = _block_of(entries, self._limits)

        def answer(response: AppendResponse, _: object) -> None:
            self._is_appending = False
            if response.code != ResponseCode.SUCCESS:
                self._retry_ms = self._now_ms() + RETRY_MS

        self._is_appending = True
        replica.propose(block, answer, entries[0])

    # -- what `__cluster` is told -------------------------------------------------------------

    def _tell(self, wanted: Mapping[int, Assignment], replica: Replica) -> None:
        if self._is_telling:
            return
        now_ms = self._now_ms()
        self._told = {
            channel: until_ms
            for channel, until_ms in self._told.items()
            if until_ms > now_ms and channel in wanted and not wanted[channel].is_open
        }
        if not is_sure(replica):
            return
        committed, highest = replica.tables.partitions, replica.tables.partitions.highest_channel
        is_open = [
            channel
            for channel, one in wanted.items()
            if not one.is_open and channel in committed.partitions and channel not in self._told
        ]
        lost = [
            channel
            for channel, one in wanted.items()
            if (one.is_open or channel <= highest)
            and channel not in committed.partitions
            and channel not in self._told
        ]
        if is_open:
            self._send(PartitionsOpened(self._name, is_open[:ITEMS_MAX]), is_open[:ITEMS_MAX])
        elif lost:
            lost = sorted(lost)[:ITEMS_MAX]
            self._send(PartitionsLost(self._name, lost, highest), lost)

    def _send(self, command: AnyCommand, channels: Iterable[int]) -> None:
        self._is_telling = True
        told = dict.fromkeys(channels, self._now_ms() + ORDER_MS)

        def done(code: ResponseCode, text: str, result: AnyResult | None) -> None:
            self._is_telling = False
            if code is ResponseCode.SUCCESS:
                self._told |= told

        self._order(command, ORDER_MS, done)


def is_sure(replica: Replica) -> bool:
    """Whether its tables have all partitions; if not, what it lacks may be known to others."""
    return replica.tables.is_trusted and not replica.tables.is_incomplete


def _block_of(entries: list[PartitionOpened | PartitionClosed], limits: Limits) -> Block:
    """Return a block of the first of some entries, and remove the others from the list."""
    parts, size = list[bytes](), 0
    for entry in entries:
        part = entry.encode()
        if parts and size + len(part) > min(BLOCK_BYTES_MAX, limits.block_bytes_max):
            break
        parts.append(part)
        size += len(part)
    data = memoryview(bytearray(b"".join(parts)))
    return parse_block(data, count=len(parts), entry_bytes_max=limits.entry_bytes_max)
