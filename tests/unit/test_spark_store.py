"""Store files to rows without a server, Spark or a cluster: whole stores, ranges, options."""

import hashlib
import json
import pickle
from itertools import chain

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan
from pyspark.sql.types import IntegerType, StructField, StructType

from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    StorageError,
    UnexpectedArgumentError,
)
from quorumlog.spark.store.options import parse_options
from quorumlog.spark.store.reader import FilteringStoreReader, StoreReader
from quorumlog.spark.store.schema import PLAIN_COLUMNS, default_schema, wanted_columns
from quorumlog.storage.offline import range_reader
from store_access import Opened, stored_block
from store_scans import (
    ALL_COLUMNS,
    NODES,
    STORES,
    block_on,
    build,
    finish,
    indexes_of,
    is_as_stated,
    manifest_of,
    parts_of,
    place_of,
    rows_of,
    unpack,
)

BODIES = [bytes([number]) * (number * 37 % 900) for number in range(60)]
TORN = (
    "torn-body",
    "torn-header",
    "torn-size-only",
    "torn-file-cut",
    "torn-index-tail",
    "index-deleted",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    base = tmp_path_factory.mktemp("fixtures")
    names = ("multi-term", "noop", "torn-tail", "truncated-follower")
    return {name: unpack(name, base / name) for name in names}


@pytest.fixture
def ours(tmp_path):
    return build(tmp_path / "g", BODIES)


def same_bodies(rows):
    return [row["body"] for row in rows] == BODIES


# -- stores of the original -----------------------------------------------------------------------


@pytest.mark.parametrize("piece", ["64m", "20k", "1"])
@pytest.mark.parametrize(("name", "path"), STORES)
def test_stores_of_the_original_are_read_entry_for_entry(unpacked, name, path, piece):
    directory = unpacked[name]
    rows = rows_of(directory / path, includeAll="true", maxBytesPerPartition=piece)
    expected = manifest_of(directory, path)
    assert len(rows) == len(expected)
    assert all(map(is_as_stated, rows, expected))
    assert {row["crc_ok"] for row in rows} == {None}


def laid_over(unpacked, target, variant):
    """A copy of a store, with the files of a damaged one laid over it."""
    base, source = unpacked["multi-term"] / "dledger-n0", unpacked["torn-tail"] / variant
    for directory in (base, source / "dledger-n0"):
        for path in directory.rglob("*"):
            copy = target / path.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                copy.write_bytes(path.read_bytes())
    for line in (source / "DELETED").read_text().split():
        (target / line).unlink()
    return target


@pytest.mark.parametrize("variant", TORN)
def test_a_torn_tail_is_no_damage_and_never_a_row(unpacked, tmp_path, variant):
    directory = laid_over(unpacked, tmp_path / "store", variant)
    expected = manifest_of(unpacked["multi-term"], "dledger-n0")
    rows = rows_of(directory, includeAll="true")
    assert len(rows) == (499 if variant not in {"torn-index-tail", "index-deleted"} else 500)
    assert all(map(is_as_stated, rows, expected))


@pytest.mark.parametrize("node", NODES)
def test_noops_are_rows_on_request_only(unpacked, node):
    directory = unpacked["noop"] / f"dledger-{node}"
    stated = manifest_of(unpacked["noop"], f"dledger-{node}")
    normal = [entry["index"] for entry in stated if entry["magic"] == 1]
    assert len(normal) < len(stated)
    assert indexes_of(directory) == normal
    assert indexes_of(directory, includeAll="true") == [entry["index"] for entry in stated]


@pytest.mark.parametrize(("stated", "expected"), [("90", 91), ("100000", 500)])
def test_the_committed_index_of_version_0_2_7_bounds_the_scan(unpacked, tmp_path, stated, expected):
    directory = laid_over(unpacked, tmp_path / "store", "torn-index-tail")
    (directory / "checkpoint").write_text(f"endIndex=99\ncommittedIndex={stated}\n")
    assert indexes_of(directory) == list(range(expected))
    assert indexes_of(directory, committedOnly="false") == list(range(500))


@pytest.mark.parametrize("lost", ["first index file", "a later one", "all of them", "half a file"])
def test_an_index_that_is_missing_or_short_is_not_needed(unpacked, tmp_path, lost):
    directory = laid_over(unpacked, tmp_path / "store", "torn-index-tail")
    files = sorted((directory / "index").iterdir())
    if lost == "half a file":
        files[1].write_bytes(files[1].read_bytes()[:1_000])
    chosen = {"first index file": files[:1], "a later one": files[2:3], "all of them": files}
    for path in chosen.get(lost, []):
        path.unlink()
    expected = manifest_of(unpacked["multi-term"], "dledger-n0")
    for piece in ("64m", "20k"):
        rows = rows_of(directory, includeAll="true", maxBytesPerPartition=piece)
        assert len(rows) == 500
        assert all(map(is_as_stated, rows, expected))
    assert indexes_of(directory, startingIndex="123", endingIndex="321") == list(range(123, 321))


# -- stores of ours -------------------------------------------------------------------------------


def test_a_store_of_ours_is_read_with_its_crcs(ours):
    rows = rows_of(ours)
    assert same_bodies(rows)
    assert [row["index"] for row in rows] == list(range(60))
    assert {row["crc_ok"] for row in rows} == {True}
    assert len({row["file"] for row in rows}) > 5
    assert {row["crc_ok"] for row in rows_of(ours, verifyCrc="none")} == {None}


def test_file_and_pos_are_where_the_entry_begins(ours):
    for row in rows_of(ours):
        path, pos = place_of(row)
        raw = path.read_bytes()[pos : pos + row["size"]]
        assert int.from_bytes(raw[8:16], "big") == row["index"]
        assert raw[48:] == row["body"]
        assert row["header_pos"] == int(path.name) + pos


def test_a_log_whose_start_was_removed_is_read_from_there(tmp_path):
    opened = Opened(tmp_path / "g", data_file=4_096, index_file=1_024)
    for body in BODIES:
        opened.append([body])
    opened.log.note_committed(59)
    opened.submit(opened.log.reset(30))
    finish(opened)
    rows = rows_of(tmp_path / "g")
    assert [row["body"] for row in rows] == BODIES[31:]
    assert rows[0]["index"] == 31
    with pytest.raises(IndexRemovedError, match=r"30 is no longer kept: .* 31 to 59"):
        rows_of(tmp_path / "g", startingIndex="30")


def test_a_follower_after_a_snapshot_has_entries_at_other_places_than_the_leader(tmp_path):
    leader = Opened(tmp_path / "leader", data_file=4_096, index_file=1_024)
    follower = Opened(tmp_path / "follower", data_file=4_096, index_file=1_024)
    for body in BODIES:
        leader.append([body])
    follower.submit(follower.log.reset(19, 1))
    for index in range(20, 60):
        follower.submit(follower.log.append_received(stored_block(leader.log, index, index)))
    finish(leader)
    finish(follower)
    rows = rows_of(tmp_path / "follower", maxBytesPerPartition="2k")
    assert [(row["index"], row["body"]) for row in rows] == list(enumerate(BODIES))[20:]
    assert {row["crc_ok"] for row in rows} == {True}
    assert any(row["header_pos"] != int(place_of(row)[0].name) + row["pos"] for row in rows)


def test_several_terms_are_distinguished_also_without_headers(tmp_path):
    opened = Opened(tmp_path / "g", data_file=4_096, index_file=1_024)
    for number, body in enumerate(BODIES):
        opened.append([body], term=1 + number // 7)
    finish(opened)
    expected = [(number, 1 + number // 7) for number in range(60)]
    for options in ({}, {"includeAll": "true"}):
        rows = rows_of(tmp_path / "g", ("index", "term"), **options)
        assert [(row["index"], row["term"]) for row in rows] == expected


def test_bookkeeping_entries_are_rows_on_request_only(tmp_path):
    opened = Opened(tmp_path / "g")
    for channel, body in ((0, b"a"), (SYSTEM_CHANNEL, b"mark"), (7, b"b")):
        plan, _ = opened.log.append(block_on(channel, [body]), 1)
        opened.submit(plan)
    opened.submit(opened.log.append_noop(2))
    finish(opened)
    seen = rows_of(tmp_path / "g", ("channel", "body"))
    assert seen == [{"channel": 0, "body": b"a"}, {"channel": 7, "body": b"b"}]
    assert indexes_of(tmp_path / "g", includeAll="true") == [0, 1, 2, 3]


def test_uncommitted_entries_are_read_on_request_only(tmp_path):
    directory = build(tmp_path / "g", BODIES, committed=40)
    assert indexes_of(directory) == list(range(41))
    assert indexes_of(directory, committedOnly="false") == list(range(60))
    with pytest.raises(IndexOutOfRangeError, match=r"42 is beyond the end: .* 0 to 40"):
        indexes_of(directory, endingIndex="42")


def test_if_nothing_is_committed_nothing_is_read_and_a_warning_says_so(tmp_path, caplog):
    directory = build(tmp_path / "g", BODIES, committed=-1)
    assert indexes_of(directory) == []
    assert "no entries that are known to be committed" in caplog.text


def test_a_running_node_is_not_disturbed(tmp_path):
    opened = Opened(tmp_path / "g", data_file=4_096, index_file=1_024)
    for body in BODIES[:50]:
        opened.append([body])
    opened.log.note_committed(44)
    opened.checkpoint()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "g").rglob("*")}
    assert [row["body"] for row in rows_of(tmp_path / "g")] == BODIES[:45]
    assert indexes_of(tmp_path / "g", committedOnly="false") == list(range(50))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "g").rglob("*")} == before
    opened.append([BODIES[50]])
    assert indexes_of(tmp_path / "g", committedOnly="false") == list(range(51))
    opened.close()


def test_a_group_without_entries_has_no_rows(tmp_path):
    Opened(tmp_path / "g").close()
    assert rows_of(tmp_path / "g") == []


def test_a_directory_of_something_else_is_refused_clearly(tmp_path):
    with pytest.raises(StorageError, match="is this a group directory"):
        rows_of(tmp_path)


def test_data_files_may_lie_in_several_directories(ours, tmp_path):
    other = tmp_path / "other disk"
    other.mkdir()
    for path in sorted((ours / "data").iterdir())[1::2]:
        path.rename(other / path.name)
    rows = rows_of(ours, dataPaths=f"{ours}/data, {other}")
    assert same_bodies(rows)
    assert {place_of(row)[0].parent for row in rows} == {ours / "data", other}


def test_several_stores_are_read_in_one_scan(tmp_path):
    for name in ("a", "b"):
        build(tmp_path / name / "g", [name.encode()] * 3)
    both = [b"a"] * 3 + [b"b"] * 3
    first, second = f"{tmp_path}/a/g", f"{tmp_path}/b/g"
    for path in (f"{first},{second}", f"{tmp_path}/*/g", f"file://{first},{second}"):
        assert [row["body"] for row in rows_of(path)] == both
    as_list = {"paths": f'["{first}", "{second}"]'}
    assert parse_options(as_list).directories == (first, second)


# -- columns, batches, partitions -----------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        ("body",),
        ("term", "index"),
        ("crc_ok", "pos", "body", "index"),
        ("file",),
        ("chain_crc", "channel", "magic"),
        ("size", "pos", "term", "index", "file"),
        tuple(reversed(ALL_COLUMNS)),
    ],
)
@pytest.mark.parametrize("everything", ["true", "false"])
def test_any_columns_in_any_order_say_the_same(ours, columns, everything):
    whole = rows_of(ours)
    rows = rows_of(ours, columns, includeAll=everything)
    assert [list(row) for row in rows] == [list(columns)] * 60
    assert rows == [{name: row[name] for name in columns} for row in whole]


def test_default_columns_and_wrong_ones():
    assert default_schema(include_headers=False).names == list(PLAIN_COLUMNS)
    assert default_schema(include_headers=True).names == list(ALL_COLUMNS)
    with pytest.raises(UnexpectedArgumentError, match="column 'value' does not exist"):
        wanted_columns(StructType([StructField("value", IntegerType())]))
    with pytest.raises(UnexpectedArgumentError, match="column pos is bigint, not int"):
        wanted_columns(StructType([StructField("pos", IntegerType())]))
    with pytest.raises(UnexpectedArgumentError, match="names no column"):
        wanted_columns(StructType([]))
    with pytest.raises(UnexpectedArgumentError, match="leave NOT NULL out"):
        wanted_columns(StructType([StructField("channel", IntegerType(), nullable=False)]))


def test_batches_are_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr(range_reader, "RUN_BYTES", 1_000)
    bodies = [b"x" * 100] * 20 + [b"y" * 3_000] + [b"z"]
    reader, parts = parts_of(build(tmp_path / "g", bodies), ("body",))
    batches = [batch for part in parts for batch in reader.read(part)]
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == bodies
    assert max(batch.num_rows for batch in batches) == 6
    monkeypatch.setattr(range_reader, "RUN_ENTRIES", 3)
    assert [row["body"] for row in rows_of(tmp_path / "g")] == bodies


def test_small_files_share_a_task(ours):
    files = len(list((ours / "data").iterdir()))
    assert files >= 5
    for wanted in (2, 3, files):
        reader, parts = parts_of(ours, minPartitions=str(wanted))
        assert len(parts) == wanted
        sizes = [sum(one.part.end - one.part.begin for one in part.ranges) for part in parts]
        assert max(sizes) - min(sizes) < 2 * 1_024, "they end together, but for an entry"
        found = [row["index"] for part in parts for b in reader.read(part) for row in b.to_pylist()]
        assert found == list(range(60))


def test_partitions_are_cut_at_files_and_by_size(ours):
    files = len(list((ours / "data").iterdir()))
    for options in ({"maxBytesPerPartition": "1k"}, {"minPartitions": str(3 * files)}):
        reader, parts = parts_of(ours, **options)
        assert len(parts) >= 2 * files
        found = [
            [row["index"] for b in reader.read(part) for row in b.to_pylist()] for part in parts
        ]
        assert list(chain(*found)) == list(range(60))
        assert all(found)


@pytest.mark.parametrize(
    ("conditions", "left", "expected"),
    [
        ([GreaterThanOrEqual(("index",), 13), LessThan(("index",), 47)], 0, range(13, 47)),
        ([IsNotNull(("index",)), EqualTo(("index",), 59)], 0, range(59, 60)),
        ([EqualTo(("index",), 99)], 0, range(0)),
        ([LessThan(("index",), 0)], 0, range(0)),
        ([In(("index",), (3, 9, 5))], 1, range(3, 10)),
        ([IsNotNull(("body",)), EqualTo(("term",), 1)], 2, range(60)),
    ],
)
def test_conditions_on_the_index_narrow_what_is_read(ours, conditions, left, expected):
    reader = FilteringStoreReader(parse_options({"path": str(ours)}), ("index", "body"))
    assert len(list(reader.pushFilters(conditions))) == left
    reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    found = [row["index"] for part in parts for b in reader.read(part) for row in b.to_pylist()]
    assert found == list(expected)


@pytest.mark.parametrize(("first", "beyond"), [(0, 60), (0, 1), (59, 60), (13, 47), (20, 20)])
@pytest.mark.parametrize("columns", [("index",), ("index", "body")])
def test_a_range_ends_exclusively(ours, first, beyond, columns):
    rows = rows_of(ours, columns, startingOffsets=str(first), endingIndex=str(beyond))
    assert [row["index"] for row in rows] == list(range(first, beyond))
    assert [row["body"] for row in rows if "body" in row] == (
        BODIES[first:beyond] if "body" in columns else []
    )


def test_what_spark_makes_of_no_partitions_is_read_as_nothing(ours):
    reader, parts = parts_of(ours, startingIndex="20", endingIndex="20")
    assert len(parts) == 1
    assert list(reader.read(parts[0])) == []
    assert list(reader.read(None)) == []
    assert isinstance(pickle.loads(pickle.dumps(reader)), StoreReader)


def test_without_bodies_only_headers_or_index_records_are_read(ours):
    place = {row["index"]: place_of(row) for row in rows_of(ours)}
    data = {path: path.read_bytes() for path, _ in place.values()}
    for path, pos in place.values():
        raw = bytearray(data[path])
        size = int.from_bytes(raw[pos + 4 : pos + 8], "big")
        raw[pos + 48 : pos + size] = b"\xff" * (size - 48)
        data[path] = bytes(raw)
    for path, raw in data.items():
        path.write_bytes(raw)
    columns = ("index", "term", "channel", "body_crc", "chain_crc")
    assert [row["index"] for row in rows_of(ours, columns)] == list(range(60))
    for index in (5, 17, 18, 33):  # not where a file begins or a range is cut
        path, pos = place[index]
        raw = bytearray(path.read_bytes())
        raw[pos : pos + 48] = bytes(48)
        path.write_bytes(bytes(raw))
    assert indexes_of(ours, includeAll="true") == list(range(60))


# -- options --------------------------------------------------------------------------------------


def test_defaults():
    options = parse_options({"path": "/logs/g"})
    assert options.directories == ("/logs/g",)
    assert (options.start, options.end) == (None, None)
    assert options.verify_crc
    assert options.committed_only
    assert options.read_committed
    assert not options.is_permissive
    assert options.max_bytes_per_partition is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'path' is missing"),
        ({"path": ""}, "'path' is missing"),
        ({"path": "/g", "servers": "h:1"}, "'servers' is not known"),
        ({"path": "hdfs://host/g"}, "'hdfs://host/g' is not a path of a file system"),
        ({"path": "/no/such/*"}, "no directory matches '/no/such/\\*'"),
        ({"paths": "/g"}, "paths='/g' is wrong"),
        ({"path": "/a,/b", "dataPaths": "/c"}, "'dataPaths' is of one store"),
        ({"path": "/g", "mode": "dropmalformed"}, "mode='dropmalformed' is wrong"),
        ({"path": "/g", "verifyCrc": "some"}, "verifyCrc='some' is wrong"),
        ({"path": "/g", "startingIndex": "-3"}, "startingIndex='-3' is wrong"),
        ({"path": "/g", "endingIndex": "soon"}, "endingIndex='soon' is wrong"),
        ({"path": "/g", "minPartitions": "0"}, "minPartitions='0' is wrong"),
        ({"path": "/g", "maxBytesPerPartition": "much"}, "maxBytesPerPartition='much' is wrong"),
        ({"path": "/g", "isolationLevel": "none"}, "isolationLevel='none' is wrong"),
        ({"path": "/g", "startingIndex": "1", "startingOffsets": "1"}, "is given twice"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UnexpectedArgumentError, match=message):
        parse_options(options)


@pytest.mark.parametrize("release", ["0.2.7", "0.3.2"])
def test_what_dledger_appended_to_a_log_of_ours_is_read_before_a_node_has_opened_it(
    tmp_path, release
):
    """Its entries have no CRCs; opening the log gives them some (decision 0034)."""
    directory = unpack("continued", tmp_path) / release / "dledger-n0"
    stated = json.loads((tmp_path / "continued" / "manifest.json").read_text())[release]["entries"]
    rows = rows_of(directory, includeAll="true")
    assert [row["index"] for row in rows] == [entry["index"] for entry in stated]
    bodies = [hashlib.sha256(row["body"]).hexdigest()[:16] for row in rows]
    assert bodies == [entry["body_sha256_start"] for entry in stated]
    assert [row["crc_ok"] for row in rows] == [True] * 59 + [None] * 9
