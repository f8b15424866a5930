"""What the log costs beside the bare machine, as ratios measured in one run.

    python benchmarks/measure_storage.py [DIRECTORY]

Appends against a loop of pwritev and fdatasync of the same sizes, reads against memcpy of the same
bytes, and the time that opening takes at several sizes of log. No cluster and no network.
"""

import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from quorumlog.model.block import INDEX_RECORD_DTYPE, encode_block, parse_block
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.store import GroupStore, OpenedGroup, open_group
from quorumlog.storage.metadata.checkpoint import Checkpoint, LogPoint, LogStart
from quorumlog.storage.metadata.store_metadata import StoreMetadata

MIB = 1 << 20
GIB = 1 << 30
ROUNDS = 5
COMMITS = 2_000


def opened(directory: Path) -> OpenedGroup:
    """Open (or make) a group with files of 1 GiB."""
    config = GroupConfig(group="g", peers="n0-127.0.0.1:1")
    limits = Limits(tail_cache_bytes=1)
    return open_group(OsFileSystem(), str(directory), config, limits, self_id="n0")


def block(body: bytes, count: int) -> tuple[memoryview, int]:
    """Return the bytes of a block of equal entries, and how many they are."""
    return memoryview(bytearray(encode_block([body] * count))), count


def append_ratio(directory: Path, body_size: int, count: int) -> tuple[float, float]:
    """Return MB/s of group commits of one block each, in the log and in a bare loop.

    One of either in turn, since what a page of memory or a flush costs changes from second to
    second; the figures are of the median commit.
    """
    group, store = opened(directory / "log"), GroupStore()
    raw, entries = block(bytes(body_size), count)
    for file in group.log.upcoming():
        file.prepare()
    bare = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(bare, 0, GIB)
    seconds: tuple[list[float], list[float]] = ([], [])
    for position in range(0, min(GIB // 2, COMMITS * len(raw)), len(raw)):
        started = time.perf_counter()
        data = memoryview(bytearray(raw))
        parsed = parse_block(data, count=entries, entry_bytes_max=4 * MIB)
        plan, _ = group.log.append(parsed, 1)
        store.execute([plan], sync=True)
        plan.completed()
        between = time.perf_counter()
        os.pwritev(bare, [bytearray(raw)], position)
        os.fdatasync(bare)
        seconds[0].append(between - started)
        seconds[1].append(time.perf_counter() - between)
    os.close(bare)
    group.close()
    log, loop = (len(raw) / float(np.median(times)) / 1e6 for times in seconds)
    return log, loop


def read_ratio(directory: Path, sizes: list[int], piece: int) -> tuple[float, float, float]:
    """Return GB/s of reading and checking a log in order, of memcpy, and entries a second.

    Both go over the same bytes in the page cache, mapped.
    """
    group, store = opened(directory), GroupStore()
    total, index = 0, 0
    while total < 512 * MIB:
        bodies = [bytes(size) for size in sizes]
        data = memoryview(bytearray(encode_block(bodies)))
        parsed = parse_block(data, count=len(bodies), entry_bytes_max=4 * MIB)
        plan, _ = group.log.append(parsed, 1)
        store.execute([plan], sync=False)
        plan.completed()
        total += len(data)
    last = group.log.end_index
    target = bytearray(piece)
    with next(iter(sorted((directory / "data").iterdir()))).open("rb") as file:
        source = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))[:total]
    reads, copies = [], []
    for _ in range(ROUNDS):
        started, index, size = time.perf_counter(), 0, 0
        while index <= last:
            run = group.log.read(index, last, piece)
            index += run.count
            size += len(run.data)
        reads.append(size / (time.perf_counter() - started) / 1e9)
        started = time.perf_counter()
        for start in range(0, len(source) - piece, piece):
            target[:] = source[start : start + piece]
        copies.append(len(source) / (time.perf_counter() - started) / 1e9)
    group.close()
    best = float(np.median(reads))
    return best, float(np.median(copies)), best * 1e9 / (total / (last + 1))


def sparse_log(directory: Path, size: int) -> None:
    """Make a log of about `size` bytes of which only the end was ever written.

    The files before are holes: whoever reads them at opening finds no entries, so an opening that
    succeeds has not read them.
    """
    group, store = opened(directory), GroupStore()
    data, count = block(bytes(1 * MIB), 16)
    plan, _ = group.log.append(parse_block(data, count=count, entry_bytes_max=4 * MIB), 1)
    store.execute([plan], sync=True)
    plan.completed()
    plan_checkpoint = group.log.checkpoint()
    if plan_checkpoint is not None:
        store.execute([plan_checkpoint], sync=True)
    group.close()
    if size > GIB:
        move_to_the_end(directory, size)


def move_to_the_end(directory: Path, size: int) -> None:
    """Shift the only data file to the end of a log of `size` bytes; holes take its place."""
    shift = size // GIB * GIB - GIB
    files = directory / "data"
    names = sorted(files.iterdir())
    names[0].rename(files / f"{shift:020d}")
    for start in range(0, shift, GIB):
        with (files / f"{start:020d}").open("wb") as file:
            file.truncate(GIB)
    metadata = StoreMetadata(OsFileSystem(), str(directory))
    known, _ = metadata.load()
    checkpoint = known.checkpoint
    assert checkpoint is not None
    point = checkpoint.point
    moved = LogPoint(point.index, point.position + shift, point.chain_crc, point.term)
    metadata.write_checkpoint(
        Checkpoint(LogStart(), moved, checkpoint.committed_index, checkpoint.term_runs)
    )
    metadata.write_hint(moved, LogStart(), durable=True)
    metadata.close()
    path = next((directory / "index").iterdir())
    records = np.memmap(path, dtype=INDEX_RECORD_DTYPE, mode="r+")
    records["pos"][: point.index + 1] += shift
    records.flush()


def open_seconds(directory: Path) -> float:
    """Return the shortest of several openings."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        group = opened(directory)
        times.append(time.perf_counter() - started)
        group.close()
    return min(times)


def main() -> None:
    """Measure and print."""
    base = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="quorumlog-measure-", dir=base) as name:
        root = Path(name)
        print("append and fsync, one block a group commit      log MB/s   bare MB/s   ratio")
        for size, count in (
            (1_024, 256),
            (1_024, 1_024),
            (1_024, 4_000),
            (256, 1_024),
            (16_384, 64),
        ):
            here = root / f"append-{size}-{count}"
            here.mkdir()
            log, bare = append_ratio(here, size, count)
            print(
                f"  {count:5} entries of {size:6} bytes {log:30.0f} {bare:11.0f} {log / bare:7.2f}"
            )
        print("sequential read, all CRCs checked     log GB/s   memcpy GB/s   ratio   entries/s")
        mixed = np.random.default_rng(7).integers(0, 2_048, 1_024).tolist()
        for label, sizes in (
            ("1 KiB bodies", [976] * 1_024),
            ("256 B bodies", [208] * 4_096),
            ("16 KiB bodies", [16_336] * 64),
            ("0 to 2 KiB", mixed),
        ):
            read, copy, entries = read_ratio(root / label, sizes, 4 * MIB)
            print(f"  {label:16} {read:27.1f} {copy:13.1f} {read / copy:7.2f} {entries:11,.0f}")
        print("opening                                     seconds")
        for label, size in (
            ("16 MiB", 16 * MIB),
            ("10 GiB, sparse", 10 * GIB),
            ("100 GiB", 100 * GIB),
        ):
            sparse_log(root / f"open {label}", size)
            print(f"  {label:16} {open_seconds(root / f'open {label}'):32.4f}")


if __name__ == "__main__":
    main()
