"""What an audit costs beside a plain CRC of the same bytes, as a ratio measured in one run.

    python benchmarks/measure_audit.py MIB [DIRECTORY]

Makes three equal replicas of MIB MiB each, flips one bit in one of them, audits them in a local
Spark session, and lets tasks of the same session take the CRC-32 of the same files.
"""

import mmap
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from isal.isal_zlib import crc32

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.config import GroupConfig
from quorumlog.model.limits import Limits
from quorumlog.spark import audit, session
from quorumlog.spark.jobs.tasks import run_tasks
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.store import GroupStore, open_group
from quorumlog.storage.offline.store_files import scan_store

MIB = 1 << 20
BODY_BYTES = 976
BLOCK_ENTRIES = 1_024
PIECE_BYTES = 64 * MIB
ROUNDS = 3


@dataclass(frozen=True)
class CrcOfFile:
    """The work of one task: the CRC of bytes begin … end - 1 of a file."""

    path: str
    begin: int
    end: int

    def __call__(self) -> bytes:
        """Carry it out."""
        with Path(self.path).open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        crc = 0
        for start in range(self.begin, self.end, MIB):
            crc = crc32(view[start : min(self.end, start + MIB)], crc)
        return crc.to_bytes(4, "big")


def make_replicas(base: Path, size: int) -> list[Path]:
    """Return the directories of three replicas with `size` bytes of entries each."""
    first = base / "n0"
    config = GroupConfig(
        group="g", peers="n0-127.0.0.1:1", mapped_file_size_for_entry_data=256 * MIB
    )
    limits = Limits(tail_cache_bytes=1)
    group = open_group(OsFileSystem(), str(first), config, limits, self_id="n0")
    store, written, number = GroupStore(), 0, 0
    while written < size:
        bodies = [f"{number + i:016d}".encode() * (BODY_BYTES // 16) for i in range(BLOCK_ENTRIES)]
        data = memoryview(bytearray(encode_block(bodies)))
        block = parse_block(data, count=BLOCK_ENTRIES, entry_bytes_max=MIB)
        plan, _ = group.log.append(block, 1)
        store.execute([plan], sync=False)
        plan.completed()
        written += len(data)
        number += BLOCK_ENTRIES
    checkpoint = group.log.checkpoint()
    if checkpoint is not None:
        store.execute([checkpoint], sync=True)
    group.close()
    others = [base / "n1", base / "n2"]
    for other in others:
        shutil.copytree(first, other)
    return [first, *others]


def flip(directory: Path, number: int) -> int:
    """Flip a bit in the body of the entry with this number; return its index."""
    for at, (entry, path, offset) in enumerate(scan_store(OsFileSystem(), str(directory))):
        if at == number:
            with Path(path).open("r+b") as file:
                file.seek(offset + 60)
                old = file.read(1)
                file.seek(offset + 60)
                file.write(bytes([old[0] ^ 4]))
            return entry.index
    raise SystemExit("the store is too small")


def main() -> None:
    """Measure and print."""
    size = int(sys.argv[1]) * MIB
    base = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(prefix="quorumlog-measure-", dir=base) as name:
        root = Path(name)
        replicas = make_replicas(root, size)
        index = flip(replicas[1], 1_000)
        spark = session("measure audit", output=root / "spark.log")
        pieces = []
        for path in sorted(file for one in replicas for file in (one / "data").iterdir()):
            length = path.stat().st_size
            pieces += [
                CrcOfFile(str(path), begin, min(length, begin + PIECE_BYTES))
                for begin in range(0, length, PIECE_BYTES)
            ]
        total = sum(piece.end - piece.begin for piece in pieces)
        run_tasks(spark, pieces)  # starts the workers and fills the page cache
        audits, scans = [], []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            report = audit(spark, replicas)
            between = time.perf_counter()
            run_tasks(spark, pieces)
            audits.append(between - started)
            scans.append(time.perf_counter() - between)
        spark.stop()
        print(report.text())
        assert [(one.kind, one.first) for one in report.findings] == [("damaged", index)]
        read = sum(replica.bytes for replica in report.replicas)
        audited, scanned = read / min(audits) / 1e9, total / min(scans) / 1e9
        print(f"\naudit        {audited:5.2f} GB/s of all replicas' bytes")
        print(f"CRC-32 alone {scanned:5.2f} GB/s    ratio {audited / scanned:.2f}")


if __name__ == "__main__":
    main()
