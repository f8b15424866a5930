"""What tests of the source `quorumlog-store` share: stores to read, and a scan without Spark."""

import hashlib
import json
import pickle
import tarfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from quorumlog.model.block import encode_block, parse_block
from quorumlog.spark.store.schema import HEADER_COLUMNS, PLAIN_COLUMNS, arrow_schema, default_schema
from quorumlog.spark.store.source import QuorumlogStoreSource
from store_access import ENTRY_MAX, Opened

FIXTURES = Path(__file__).parent / "fixtures"
ALL_COLUMNS = PLAIN_COLUMNS + HEADER_COLUMNS
NODES = ("n0", "n1", "n2")
STORES = [(name, f"dledger-{node}") for name in ("multi-term", "noop") for node in NODES]
STORES += [
    ("truncated-follower", f"{state}/dledger-{node}")
    for state in ("before", "after")
    for node in NODES
]


def unpack(name, target):
    """Unpack an archive of stores written by the real DLedger; return its directory."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def manifest_of(directory, path):
    """Return what the original reads from one of an archive's stores."""
    *states, node = path.split("/")
    found = json.loads((directory / "manifest.json").read_text())["nodes"]
    for key in states:
        found = found[key]
    return found[node.removeprefix("dledger-")]["entries"]


def is_as_stated(row, entry):
    """Whether a row is the entry of a manifest."""
    return (
        (row["index"], row["term"], row["magic"]) == (entry["index"], entry["term"], entry["magic"])
        and (row["size"], row["header_pos"]) == (entry["size"], entry["pos"])
        and hashlib.sha256(row["body"]).hexdigest() == entry["sha256"]
    )


def schema_of(columns):
    """Return Spark's schema of these columns."""
    every = {field.name: field for field in default_schema(include_headers=True).fields}
    return StructType([every[name] for name in columns])


def parts_of(path, columns=ALL_COLUMNS, **options):
    """Return a reader and its partitions, after the way from the driver to a task."""
    source = QuorumlogStoreSource({"path": str(path), **options})
    reader = source.reader(schema_of(columns))
    return pickle.loads(pickle.dumps((reader, list(reader.partitions()))))


def rows_of(path, columns=ALL_COLUMNS, **options):
    """Return all rows of a scan as dicts, in the order of partitions and batches."""
    reader, parts = parts_of(path, columns, **options)
    batches = [batch for part in parts for batch in reader.read(part)]
    assert all(batch.schema.equals(arrow_schema(columns)) for batch in batches)
    return pa.Table.from_batches(batches, arrow_schema(columns)).to_pylist()


def indexes_of(path, **options):
    """Return the indexes that a scan finds."""
    return [row["index"] for row in rows_of(path, ("index",), **options)]


def build(directory, bodies, term=1, committed=None, **sizes):
    """Write a store of ours; all is committed unless an index is given."""
    opened = Opened(directory, **{"data_file": 4_096, "index_file": 1_024, **sizes})
    for body in bodies:
        opened.append([body], term)
    finish(opened, committed)
    return directory


def finish(opened, committed=None):
    """Note what is committed, and close the store as a node that ends."""
    opened.log.note_committed(opened.log.end_index if committed is None else committed)
    opened.checkpoint()
    opened.close()


def block_on(channel, bodies):
    """Return an unstamped block on a channel."""
    data = memoryview(bytearray(encode_block(bodies, channel=channel)))
    return parse_block(data, count=len(bodies), entry_bytes_max=ENTRY_MAX)


def place_of(row):
    """Return path and byte of a row's entry."""
    return Path(row["file"]), row["pos"]


def flip(path, offset, mask=0x01):
    """Change bits of a byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[offset] ^= mask
    path.write_bytes(bytes(raw))


def overwrite(path, offset, data):
    """Put bytes into a file."""
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(bytes(raw))
