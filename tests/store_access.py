"""What storage tests share: opening a group, carrying out plans, reading everything back."""

import os
from contextlib import suppress

from quorumlog.model.block import (
    block_from_index_records,
    decode_entries,
    encode_block,
    parse_block,
)
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.storage.files.file_sequence import MAPS_MAX
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.store import GroupStore, open_group

ENTRY_MAX = 4 << 20


def config(data_file=1 << 20, index_file=32 * 1024, **settings):
    return GroupConfig(
        group="g",
        peers="n0-127.0.0.1:1;n7-127.0.0.1:2",
        mapped_file_size_for_entry_data=data_file,
        mapped_file_size_for_entry_index=index_file,
        **settings,
    )


class Opened:
    """A group with its disk: plans wait until `run` carries them out."""

    def __init__(
        self, directory, cache=1 << 20, files=None, self_id="n0", maps_max=MAPS_MAX, **settings
    ):
        self.group = open_group(
            files or OsFileSystem(),
            str(directory),
            config(**settings),
            Limits(tail_cache_bytes=cache),
            self_id=self_id,
            maps_max=maps_max,
        )
        self.log = self.group.log
        self.store = GroupStore()
        self.waiting = []

    def run(self, count=None, sync=True):
        """Carry out the oldest `count` waiting plans (all by default) as one group commit."""
        plans = self.waiting[:count]
        del self.waiting[: len(plans)]
        self.store.execute(plans, sync=sync)
        for plan in plans:
            plan.completed()

    def append(self, bodies, term=1, run=True, channel=0):
        plan, positions = self.log.append(block_of(bodies, channel), term)
        self.waiting.append(plan)
        if run:
            self.run()
        return positions

    def truncate(self, from_index, run=True):
        self.waiting.append(self.log.truncate(from_index))
        if run:
            self.run()

    def submit(self, plan, run=True):
        self.waiting.append(plan)
        if run:
            self.run()

    def checkpoint(self):
        plan = self.log.checkpoint()
        if plan is not None:
            self.waiting.append(plan)
            self.run()

    def entries(self, first=None, piece=1 << 20):
        return entries_of(self.log, first, piece)

    def close(self):
        self.group.close()


def block_of(bodies, channel=0):
    data = memoryview(bytearray(encode_block(bodies, channel=channel)))
    return parse_block(data, count=len(bodies), entry_bytes_max=ENTRY_MAX)


def entries_of(log, first=None, piece=1 << 20):
    """Every entry of a log from `first` on, read in pieces."""
    index = log.before_begin_index + 1 if first is None else first
    found = []
    while index <= log.end_index:
        read = log.read(index, log.end_index, piece)
        assert read.first_index == index
        found += decode_entries(block_from_index_records(read.data, read.records))
        index = read.last_index + 1
    return found


def stored_block(log, first, last):
    """Entries first … last as another replica would send them."""
    parts = []
    while first <= last:
        read = log.read(first, last, 1 << 20)
        parts.append(bytes(read.data))
        first = read.last_index + 1
    data = memoryview(b"".join(parts))
    count = 0
    offset = 0
    while offset < len(data):
        offset += int.from_bytes(data[offset + 4 : offset + 8], "big")
        count += 1
    return parse_block(data, count=count, entry_bytes_max=ENTRY_MAX)


def take(tables, index, entry):
    """Have derived tables take an entry of the system channel."""
    for number, table in enumerate(tables.tables):
        for at, what in table.found_in(None, index, [(index, entry)]):
            tables.apply((at, number, what))


def open_below(directory):
    """Return which files below a directory this process has open, maps not counted."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(path for path in found if path.startswith(str(directory)))
