"""The audit log of a node: who did what from where, allowed or not, as JSON lines in files.

A thread of its own writes, so that a disk that is full, slow or failing stops nothing else. What
waits for it is bounded. Refusals, accesses to data and what failed may be many: the first of a kind
has a line at once, and all that follow within a minute have one together, with their number. Only
64 kinds are told apart of one client, so nobody pushes the lines of others out of the files.
In half of the room nothing but administration may wait; if even that is full, administration is
refused (`Audit.has_room`), so nothing is administered unseen.
"""

import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv6Address, IPv6Network
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from quorumlog.auth.hosts import without_port
from quorumlog.log_events import describe_error, log_event
from quorumlog.model.audit_events import (
    NO_AUDIT,
    AuditCounters,
    AuditedEvent,
    AuditEvent,
    DataPatterns,
    NodeAudit,
)
from quorumlog.model.config import NodeConfig
from quorumlog.model.wording import foreign
from quorumlog.service.audit_files import AuditFiles
from quorumlog.storage.files.os_files import FileSystem, OsFileSystem

logger = logging.getLogger(__name__)

LINES_MAX: Final = 10_000
"""Lines that are not durable yet."""
BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of these lines."""
HELD_LINES_MAX: Final = 10 * LINES_MAX
"""Lines that wait at most, with those of requests that began while there was room; all beyond are
lost, and counted."""
HELD_BYTES_MAX: Final = 4 * BYTES_MAX
"""Bytes of these lines."""
TEXT_LENGTH_MAX: Final = 256
"""Characters of a value in a line, or by which events are told apart."""
SUMMED_S: Final = 60.0
"""Events that are alike within this time have one line together, in seconds."""
SUMS_MAX: Final = 2_048
"""Kinds of events that are told apart within that time; all others have one line together."""
OWN_SUMS_MAX: Final = 64
"""Those of one event, principal and host; all others of these have one line together."""
IPV6_SITE_BITS: Final = 64
"""Of an address of IPv6: whoever has one has all that begin so (RFC 4291, section 2.5.4)."""
SYNC_S: Final = 1.0
"""Pause between two fsyncs, between two attempts to write, and to look for sums, in seconds."""
CLOSE_S: Final = 5.0
"""How long a node that stops waits for its last lines to be durable, in seconds."""
_TEXTS: Final = tuple(
    one for one in AuditEvent.__struct_fields__ if one not in {"event", "allowed", "failed"}
)


class _Sum:
    """Events that are alike: the first of them, and how many came since its line."""

    __slots__ = ("count", "first")

    def __init__(self, first: AuditEvent) -> None:
        self.first = first
        self.count = 0


class AuditLog:
    """See `Audit`; any thread may call it. `now`: a clock that never goes back, in seconds."""

    def __init__(
        self,
        config: NodeConfig,
        files: FileSystem,
        *,
        now: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._node, self._cluster = config.self_id, config.cluster
        self._patterns = DataPatterns(config.audit_data) if config.audit_data else None
        self._files = AuditFiles(
            files,
            config.store_base_dir.rstrip("/") or "/",
            bytes_max=config.audit_file_bytes,
            files_max=config.audit_files,
        )
        self._now, self._wall_ms = now, wall_ms
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._sums: dict[Hashable, _Sum] = {}
        self._own_sums: Counter[Hashable] = Counter()
        """How many of these there are of one event, principal and host."""
        self._sums_end = 0.0
        self._has_lost = False
        """Whether the last line was lost."""
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self.counters = AuditCounters()

    # -- in ---------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """See `Audit`."""
        return len(self._lines) < LINES_MAX and self._size < BYTES_MAX

    def is_accessed(self, kind: str, name: str) -> bool:
        """See `Audit`."""
        return self._patterns is not None and self._patterns.match(kind, name)

    def record(self, event: AuditEvent) -> None:
        """See `Audit`.

        What was done, and is no access to data, always has a line of its own.
        """
        event = _bounded(event)
        with self._changed:
            may_be_many = event.failed or event.event is AuditedEvent.DATA_ACCESS
            if event.allowed and not may_be_many:
                self._put(event, 1)
            else:
                self._add(event)

    def _add(self, event: AuditEvent) -> None:
        """Count an event that may be one of many."""
        if not self._sums:
            self._sums_end = self._now() + SUMMED_S
        key = _key(event)
        found = self._sums.get(key)
        if found is None:
            others = self._others(event)
            if others is not None:
                key = others, "others"
                self._sums.setdefault(key, _Sum(others)).count += 1
                return
            found = self._sums[key] = _Sum(event)
            self._own_sums[_owner(event)] += 1
            if len(self._lines) < LINES_MAX // 2 and self._size < BYTES_MAX // 2:
                self._put(event, 1)
                return
        found.count += 1

    def _others(self, event: AuditEvent) -> AuditEvent | None:
        """Return what stands for all kinds that are not told apart; None: this one may be."""
        within = f"kinds of events within {SUMMED_S:g} s"
        common = AuditEvent(event=event.event, allowed=event.allowed, failed=event.failed)
        if len(self._sums) >= SUMS_MAX:
            return replace(common, reason=f"more than {SUMS_MAX:,} {within}")
        is_crowded = self._own_sums[_owner(event)] >= OWN_SUMS_MAX
        if event.event is AuditedEvent.DATA_ACCESS or not is_crowded:
            return None
        return replace(
            common,
            principal=event.principal,
            address=f"{_site(event.address)}:*",
            reason=f"more than {OWN_SUMS_MAX} {within} from there",
        )

    def _put(self, event: AuditEvent, count: int) -> None:
        line = self._line(event, count)
        is_full = len(self._lines) >= HELD_LINES_MAX or self._size >= HELD_BYTES_MAX
        if is_full:
            self._lose(1, "too many lines wait", is_told=not self._has_lost)
        else:
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify_all()
        self._has_lost = is_full

    def _line(self, event: AuditEvent, count: int) -> bytes:
        moment = datetime.fromtimestamp(self._wall_ms() / 1_000, UTC)
        values: dict[str, object] = {
            "at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "node": self._node,
            "cluster": self._cluster,
        }
        values |= msgspec.structs.asdict(event)
        del values["failed"]
        values["n"] = count
        return f"{json.dumps(values, ensure_ascii=False)}\n".encode()

    def _sum_up(self, *, is_last: bool) -> None:
        """Write the lines of sums whose time is over; those that have no room wait for longer."""
        if not self._sums or (self._now() < self._sums_end and not is_last):
            return
        left: dict[Hashable, _Sum] = {}
        for key, one in self._sums.items():
            if not one.count:
                continue
            if is_last or len(self._lines) < LINES_MAX // 2:
                self._put(one.first, one.count)
            else:
                left[key] = one
        self._sums = left
        self._own_sums = Counter(_owner(one.first) for one in left.values())
        self._sums_end = self._now() + SUMMED_S

    # -- out --------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to write; the node's directory is this node's alone."""
        self._thread = threading.Thread(target=self._run, name="quorumlog-audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, for up to `CLOSE_S`, and end; nothing if it was not opened."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        thread.join(CLOSE_S)
        with self._changed:
            self._lose(len(self._lines), "the node stops")

    def _lose(self, count: int, reason: str, *, is_told: bool = True) -> None:
        self.counters.lost += count
        if count and is_told:
            log_event(
                logger,
                logging.ERROR,
                "audit log: events are lost",
                node=self._node,
                count=count,
                reason=reason,
            )

    def _run(self) -> None:
        added, synced_at = 0, float("-inf")  # of `_lines` this many were added, and not synced yet
        is_ending = False
        while not is_ending:
            with self._changed:
                self._changed.wait_for(partial(self._is_wanted, added), SYNC_S)
                is_ending = self._is_ending
                self._sum_up(is_last=is_ending)
                lines = list(islice(self._lines, added, None))
            try:
                if lines:
                    self._files.add(lines)
                    added += len(lines)
                if added and (is_ending or self._now() - synced_at >= SYNC_S):
                    self._files.sync()
                    synced_at = self._now()
                    self._are_durable(added)
                    added = 0
            except Exception as error:  # whatever it is, the node goes on
                self._files.let_go()
                added = 0
                self._failed(error)
            else:
                self._goes_on()
        self._files.let_go()

    def _is_wanted(self, added: int) -> bool:
        """Whether there is something to do before the next second."""
        has_more = len(self._lines) > added
        return self._is_ending or (has_more and not self.counters.is_failing)

    def _are_durable(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._size -= len(self._lines.popleft())
        self.counters.lines += count

    def _failed(self, error: Exception) -> None:
        """Say once that nothing can be written; it is tried again each second."""
        if self.counters.is_failing:
            return
        self.counters.is_failing = True
        log_event(
            logger,
            logging.ERROR,
            "audit log cannot be written",
            node=self._node,
            reason=describe_error(error),
            text=f"it is tried again each second; {LINES_MAX:,} lines wait for it at most, then "
            "administration is refused",
        )

    def _goes_on(self) -> None:
        if self.counters.is_failing:
            self.counters.is_failing = False
            log_event(logger, logging.WARNING, "audit log is written again", node=self._node)


def _bounded(event: AuditEvent) -> AuditEvent:
    """Return an event whose texts may be kept, and may stand in a line: strangers wrote them."""
    changed = {
        name: foreign(value, TEXT_LENGTH_MAX)
        for name in _TEXTS
        if len(value := getattr(event, name)) > TEXT_LENGTH_MAX or not value.isprintable()
    }
    return replace(event, **changed) if changed else event


def _host(event: AuditEvent) -> str:
    return without_port(event.address)


def _key(event: AuditEvent) -> Hashable:
    """Return what events have in common that are counted together."""
    if event.event is AuditedEvent.DATA_ACCESS:
        return event
    if event.event is AuditedEvent.CONNECTION_REFUSED:
        return event.event, _host(event)
    return event.event, _host(event), event.principal, event.operation, event.resource


def _owner(event: AuditEvent) -> Hashable:
    """Return whose kinds of events are counted together: one client has no more than another."""
    return event.event, event.principal, _site(event.address)


def _site(address: str) -> str:
    """Return the host of an address, or of IPv6 the network in which one client can be any host."""
    host = without_port(address)
    if ":" not in host:
        return host
    try:
        found = IPv6Address(host)
    except ValueError:
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((int(found), IPV6_SITE_BITS), strict=False))


def audit_of(
    config: NodeConfig, *, now: Callable[[], float], wall_ms: Callable[[], int]
) -> NodeAudit:
    """Return the audit log of a node, or what takes its place if `auditFiles` is 0."""
    if not config.audit_files:
        return NO_AUDIT
    return AuditLog(config, OsFileSystem(), now=now, wall_ms=wall_ms)
