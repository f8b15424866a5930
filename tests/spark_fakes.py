"""A cluster in memory, as the data source sees one: for readers without Spark and servers."""

from collections import Counter

import numpy as np

from quorumlog.client import FetchedBlock
from quorumlog.model.block import INDEX_RECORD_DTYPE, headers
from quorumlog.model.errors import IndexOutOfRangeError, IndexRemovedError, UnknownGroupError
from quorumlog.spark.source.clusters import Bounds, IndexRecord
from quorumlog.storage.log.memory_log import MemoryLog
from store_access import block_of

BLOCK_BYTES = 1_000


class FakeGroup:
    """A log whose entries are all committed; those from `unstable_from` on wait for the end of a
    transaction, `rejected` ones were not accepted."""

    def __init__(self):
        self.log = MemoryLog()
        self.unstable_from = None
        self.rejected = []

    def append(self, *bodies, term=1):
        for body in bodies:
            self.log.append(block_of([body]), term)
            self.log.note_committed(self.log.end_index)
        return self

    def append_noop(self, term):
        self.log.append_noop(term)
        self.log.note_committed(self.log.end_index)
        return self

    def purge_before(self, index):
        self.log.reset(index - 1)

    def bounds(self, isolation="read_committed"):
        beyond = self.log.end_index + 1
        if isolation == "read_committed" and self.unstable_from is not None:
            beyond = min(beyond, self.unstable_from)
        return Bounds(self.log.before_begin_index + 1, beyond)


class FakeCluster:
    """`connect` it is itself: reader(options, columns, cluster.connect)."""

    def __init__(self, **groups):
        self.content = groups
        self.calls = Counter()
        self.timeouts = []
        self.reports = []
        self.report_error = None
        self.former = {}
        """What a former leader, which has not noticed that it was deposed, says of groups."""
        self.before_block = None
        """Called before each block is served, with the number of the block."""

    def connect(self, servers, timeout_ms):
        self.timeouts.append(timeout_ms)
        return self

    def group(self, name):
        if name not in self.content:
            raise UnknownGroupError(f"node n0 does not host group {name!r}")
        return self.content[name]

    def groups(self):
        self.calls["groups"] += 1
        return frozenset(self.content)

    def bounds(self, group, isolation, *, unconfirmed=False):
        self.calls["bounds" if unconfirmed else "confirmed bounds"] += 1
        if unconfirmed and group in self.former:
            return self.former[group]
        return self.group(group).bounds(isolation)

    def record(self, group, index):
        self.calls["record"] += 1
        run = self.group(group).log.read(index, index, 1)
        (record,) = np.frombuffer(run.records, INDEX_RECORD_DTYPE)
        return IndexRecord(int(record["term"]), int(record["pos"]), int(record["size"]))

    def report(self, group, reader, index):
        if self.report_error is not None:
            raise self.report_error
        self.reports.append((group, reader, index))

    def blocks(
        self, group, first, last, isolation, *, leader_only, headers_only=False, local_reads=True
    ):
        log, rejected = self.group(group).log, self.group(group).rejected
        bounds = self.group(group).bounds(isolation)
        if last >= bounds.beyond:
            raise IndexOutOfRangeError(f"{last} is not there: {bounds}")
        index = first
        while index <= last:
            if self.before_block is not None:
                self.before_block(self.calls["block"])
            self.calls["block"] += 1
            self.calls["leader" if leader_only else "any"] += 1
            if index <= log.before_begin_index:
                raise IndexRemovedError(f"index {index} is gone")
            run = log.read(index, last, BLOCK_BYTES)
            parts = (run.data, run.records)
            if headers_only:
                parts = (memoryview(headers(run.block()).tobytes()), memoryview(b""))
            bounds = self._bounds(group)
            yield FetchedBlock(index, run.count, *parts, *bounds, rejected, headers_only)
            index = run.last_index + 1

    def _bounds(self, group):
        bounds = self.group(group).bounds()
        return bounds.begin, bounds.beyond - 1


def filled(count, *, size=10, term=1):
    """A group of equal bodies b"0000000000", b"0000000001" …"""
    return FakeGroup().append(*(str(n).encode().rjust(size, b"0") for n in range(count)), term=term)


def rows_of(reader, partitions):
    """What tasks would yield for these partitions, as dictionaries."""
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
