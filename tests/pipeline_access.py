"""What tests of pipelines share: a log in memory that is read, and tasks run on the spot."""

from quorumlog.client.results import FetchedBlock
from quorumlog.model.block import bodies_fit, decode_entries, encode_entry, parse_block
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    SequenceGapError,
    SequenceMismatchError,
    UnknownProducerError,
)
from quorumlog.sessions.entries import SessionEntry, system_entry_of
from quorumlog.storage.log.memory_log import MemoryLog

ENTRY_MAX = 4 << 20


class LogInMemory:
    """A group's log as a pipeline sees it. `begin` is the first index that retention has left.

    `block` is how many entries one fetch returns at most, `damage` flips bits in the last of them.
    """

    def __init__(self, group="g", isolation="read_committed", block=7):
        self.log = MemoryLog()
        self.group = group
        self.isolation = isolation
        self.block = block
        self.begin = 0
        self.rejected = []
        self.fetches = []
        self.damage = 0
        self.before_fetch = lambda begin: None

    def append(self, *bodies, channel=0, term=1):
        for body in bodies:
            data = memoryview(bytearray(encode_entry(body, channel=channel)))
            self.log.append(parse_block(data, count=1, entry_bytes_max=ENTRY_MAX), term)
        return self

    def append_noop(self, term=1):
        self.log.append_noop(term)
        return self

    def append_bookkeeping(self, body=b"bookkeeping", term=1):
        return self.append(body, channel=SYSTEM_CHANNEL, term=term)

    def entries(self):
        return [self.get(index) for index in range(self.begin, self.log.end_index + 1)]

    # -- what a pipeline asks ------------------------------------------------------------------

    def cluster(self):
        return "c"

    def bounds(self):
        return self.begin, self.log.end_index

    def get(self, index):
        self._check(index)
        run = self.log.read(index, index, 1)
        return next(decode_entries(parse_block(run.data, count=1, entry_bytes_max=ENTRY_MAX)))

    def blocks(self, first, last):
        while first <= last:
            fetched = self._fetch(first, last)
            yield fetched
            first += fetched.count

    def _fetch(self, begin, last):
        self.before_fetch(begin)
        self._check(begin)
        self.fetches.append(begin)
        data, records = bytearray(), bytearray()
        end = min(last, begin + self.block - 1, self.log.end_index)
        for index in range(begin, end + 1):
            run = self.log.read(index, index, 1)
            data += run.data
            records += run.records
        data[-1] ^= self.damage
        return FetchedBlock(
            begin,
            end - begin + 1,
            memoryview(data),
            memoryview(records),
            self.begin,
            self.log.end_index,
            self.rejected,
        )

    def _check(self, index):
        if index < self.begin:
            raise IndexRemovedError(f"index {index} is below the first kept, {self.begin}")
        if index > self.log.end_index:
            raise IndexOutOfRangeError(f"index {index} is beyond the end, {self.log.end_index}")


def run_here(pieces):
    """Carry out pieces one after the other, without Spark."""
    return [piece() for piece in pieces]


class TargetInMemory(LogInMemory):
    """A group that is replayed into: it judges the blocks of producers as a leader does.

    `before_append` and `after_append` are called with the number of the append, from 0 on.
    """

    def __init__(self):
        super().__init__(group="target", isolation="read_uncommitted", block=50)
        self.producers = {}
        self.appends = 0
        self.before_append = self.after_append = lambda number: None

    def append(self, *given, **settings):
        """Append bodies, or a session with its entries."""
        if given and isinstance(given[0], SessionEntry):
            number, self.appends = self.appends, self.appends + 1
            self.before_append(number)
            self.store(*given)
            self.after_append(number)
            return self
        return super().append(*given, **settings)

    def store(self, session, entries):
        blocks = self.producers.get(session.producer_id)
        first, fate = session.first_sequence, (session.count, session.crc)
        if blocks is None and first:
            raise UnknownProducerError("forgotten")
        blocks = self.producers.setdefault(session.producer_id, {})
        if first in blocks:
            if blocks[first] != fate:
                raise SequenceMismatchError("taken")
            return
        if first != sum(count for count, _ in blocks.values()):
            raise SequenceGapError("gap")
        blocks[first] = fate
        data = memoryview(bytearray(session.encode() + bytes(entries)))
        block = parse_block(data, count=1 + session.count, entry_bytes_max=ENTRY_MAX)
        assert bodies_fit(block)
        assert system_entry_of(block) == session
        self.log.append(block, 1)
