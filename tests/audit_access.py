"""What tests of audits share: small replicas, faults to plant in them, and audits without Spark."""

import random
import struct
import tarfile
from pathlib import Path

from isal.isal_zlib import crc32

from quorumlog.spark.jobs.audit.audit import compare_stores
from quorumlog.spark.jobs.audit.plan import AuditRequest
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.store_files import scan_store
from store_access import Opened

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("n0", "n1", "n2")
DATA_FILE, INDEX_FILE = 4_000, 32 * 16
WHOLE, RANGES = 1 << 30, 1_000
SIZES = (0, 1, 7, 60, 150, 300)


def bodies(term, count=25):
    chance = random.Random(term)
    return [chance.randbytes(chance.choice(SIZES)) for _ in range(count)]


def make(directory, self_id="n0", terms=(1, 2, 2, 5), data_file=DATA_FILE, committed=80):
    """A store of 25 entries a term: those of one term are the same in every store."""
    opened = Opened(directory, self_id=self_id, data_file=data_file, index_file=INDEX_FILE)
    for number, term in enumerate(terms):
        opened.append(bodies(100 * number + term), term=term)
    opened.log.note_committed(committed)
    opened.checkpoint()
    opened.close()
    return directory


def unpacked(directory, name, *below):
    """The stores of three replicas that the original wrote."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return [(directory / name).joinpath(*below) / f"dledger-{node}" for node in NAMES]


def locally(pieces):
    return [piece() for piece in pieces]


def audit(stores, range_bytes=WHOLE, **wanted):
    asked = AuditRequest(range_bytes=range_bytes, **wanted)
    return compare_stores(OsFileSystem(), stores, asked, locally)


def found(stores, range_bytes=WHOLE):
    """What is found as (kind, replica, first, last)."""
    _, findings = audit(stores, range_bytes)
    return [(one.kind, one.replica, one.first, one.last) for one in findings]


def places(store):
    """Each entry of a store with its file and the byte it starts at."""
    return list(scan_store(OsFileSystem(), str(store)))


def overwrite(path, offset, raw):
    with Path(path).open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def flip(path, offset, bit=1):
    with Path(path).open("r+b") as file:
        file.seek(offset)
        (old,) = file.read(1)
        file.seek(offset)
        file.write(bytes([old ^ bit]))


def forget_notes(store):
    """Leave data and index only, as the original does."""
    for path in store.glob("quorumlog.*"):
        path.unlink()


def rewrite(store, index, term=None, body=None):
    """Give an entry another term or body, and all from it on the chain CRCs that follow."""
    chain = 0
    for entry, path, offset in places(store):
        of_term, of_body = entry.term, entry.body
        if entry.index == index:
            of_term = of_term if term is None else term
            of_body = of_body if body is None else body
        crc, size = crc32(of_body), len(of_body)
        row = (entry.magic, entry.index, of_term, entry.channel, size, crc)
        chain = crc32(struct.pack(">iqqIiI", *row), chain)
        overwrite(path, offset + 16, struct.pack(">q", of_term))
        overwrite(path, offset + 36, struct.pack(">II", chain, crc))
        overwrite(path, offset + 48, of_body)
