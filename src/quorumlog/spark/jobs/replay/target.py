"""The group that an archive is replayed into."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from quorumlog.client.results import FetchedBlock
from quorumlog.client.session_blocks import append_session_block
from quorumlog.model.block import HEADER_SIZE, Buffer, block_from_index_records, headers
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.sessions.entries import SessionEntry
from quorumlog.spark.jobs.log_source import ClusterSource, LogSource
from quorumlog.spark.source.arrow import decode

COLUMNS = ("index", "channel", "body")


class ReplayTarget(LogSource, Protocol):
    """A group that is read back and appended to."""

    def append(self, session: SessionEntry, entries: memoryview) -> None:
        """Append unstamped entries after their session entry, once, however often it is tried."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterTarget(ClusterSource):
    """A group of a cluster."""

    def append(self, session: SessionEntry, entries: memoryview) -> None:
        """See `ReplayTarget`. Raises `RequestError` after `timeout_ms` without success."""
        client = self.client()
        parts: list[Buffer] = [session.encode(), entries]
        count = 1 + session.count
        client.wait(
            append_session_block(client.asynchronous, parts, count, timeout_ms=self.timeout_ms)
        )


def producer_id_of(archive_id: str, cluster: str, group: str, base: int) -> int:
    """Return the producer id of a replay whose sequence 0 is row `base` of the archive."""
    name = "\0".join(("replay", archive_id, cluster, group, str(base)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1


@dataclass(slots=True)
class SeenBlock:
    """The newest block of a producer in the target: `rows_before` of its users' entries go before.

    It ends at `last_index`.
    """

    session: SessionEntry
    rows_before: int
    last_index: int


class TargetReader:
    """Reads the users' entries of a target from its first one on, and whose blocks they came in."""

    def __init__(self, target: LogSource) -> None:
        self._target = target
        self.next_index = 0
        self.rows = 0
        self.newest: SeenBlock | None = None

    def read_to(self, last: int) -> Iterator[pa.RecordBatch]:
        """Yield entries up to `last`, and those that belong to the same block as it."""
        while self.next_index <= last:
            for fetched in self._target.blocks(self.next_index, last):
                self._update_newest(fetched)
                for batch in decode(fetched.data, fetched.records, COLUMNS, verify_crc=True):
                    self.rows += batch.num_rows
                    yield batch
                self.next_index = fetched.first_index + fetched.count
            if self.newest is not None:
                last = max(last, self.newest.last_index)

    def _update_newest(self, fetched: FetchedBlock) -> None:
        block = block_from_index_records(fetched.data, fetched.records)
        table = headers(block)
        is_users = (table["channel"] != SYSTEM_CHANNEL) & (table["magic"] == int(Magic.NORMAL))
        for ordinal in np.flatnonzero(table["channel"] == SYSTEM_CHANNEL)[::-1].tolist():
            begin, size = int(block.offsets[ordinal]), int(block.sizes[ordinal])
            session = SessionEntry.decode(block.data[begin + HEADER_SIZE : begin + size])
            if session is not None:
                before = self.rows + int(is_users[:ordinal].sum())
                index = fetched.first_index + ordinal
                self.newest = SeenBlock(session, before, index + session.count)
                return
