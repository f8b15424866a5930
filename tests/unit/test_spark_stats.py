"""What a log holds is counted right, however it is cut up, and drawn."""

import os
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pipeline_access import LogInMemory
from quorumlog.model.errors import StorageError
from quorumlog.model.membership import Membership
from quorumlog.spark.jobs.stats.count import Buckets, class_of, smallest_of_class
from quorumlog.spark.jobs.stats.plot import draw
from quorumlog.spark.jobs.stats.stats import LogStats, SizeClass, stats_of_log, stats_of_store
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.replica_files import StoreDirectory
from store_access import Opened

FIXTURES = Path(__file__).parents[1] / "fixtures"
SECOND_MS = 1_000
PNG = b"\x89PNG\r\n\x1a\n"


def locally(pieces):
    return [piece() for piece in pieces]


def of_store(directory, *data_directories, **options):
    store = StoreDirectory(str(directory), tuple(map(str, data_directories)))
    return stats_of_store(OsFileSystem(), store, locally, **options)


def bodies_of(term):
    chance = random.Random(term)
    return [chance.randbytes(chance.choice((0, 1, 30, 200, 900))) for _ in range(60)]


TERMS = (1, 2, 4)
BODIES = [body for term in TERMS for body in bodies_of(term)]
SIZES = sorted(len(body) for body in BODIES)


@pytest.fixture
def store(tmp_path):
    """Terms 1, 2 and 4: a NOOP and 60 entries each, the first behind a CONFIG_CHANGE as well."""
    opened = Opened(tmp_path / "g", data_file=8_000, index_file=32 * 32)
    opened.submit(opened.log.append_config(Membership(("n0",), ()).encode(), 1))
    for term in TERMS:
        opened.submit(opened.log.append_noop(term))
        opened.append(bodies_of(term), term=term)
    opened.close()
    return tmp_path / "g"


def check(found):
    assert (found.first_index, found.last_index, found.entries) == (0, 183, 184)
    assert (found.smallest, found.largest) == (0, 900)
    assert found.body_bytes == sum(SIZES)
    assert found.mean == pytest.approx(np.mean(SIZES))
    assert found.p50 == SIZES[89]
    assert found.p99 == pytest.approx(900, rel=0.008)
    terms = [(one.term, one.first_index, one.entries) for one in found.terms]
    assert terms == [(1, 0, 62), (2, 62, 61), (4, 123, 61)]
    assert sum(one.bytes for one in found.terms) == found.bytes
    assert sum(one.bytes for one in found.buckets) == found.bytes
    assert sum(one.entries for one in found.buckets) == found.entries
    edges = [(one.first, one.last) for one in found.buckets]
    assert [edge[0] for edge in edges[1:]] == [edge[1] + 1 for edge in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (0, 183)
    assert [one.entries for one in found.buckets] == [last - first + 1 for first, last in edges]


@pytest.mark.parametrize("range_bytes", [1 << 30, 5_000])
def test_a_store_is_counted(store, monkeypatch, range_bytes):
    monkeypatch.setattr("quorumlog.spark.jobs.stats.stats.RANGE_BYTES", range_bytes)
    found = of_store(store)
    check(found)
    assert found.kinds == {"CONFIG_CHANGE": 1, "NOOP": 3, "NORMAL": 180}
    assert found.sizes[0] == SizeClass(0, 0, SIZES.count(0))
    assert found.sizes[1] == SizeClass(1, 1, SIZES.count(1))
    assert found.sizes[5] == SizeClass(16, 31, SIZES.count(30))
    assert sum(one.entries for one in found.sizes) == 180
    assert found.damaged == 0


def test_the_index_files_alone_give_nearly_the_same_counts(store):
    found = of_store(store, quick=True)
    check(found)
    for path in (store / "data").iterdir():
        if path.name != "0" * 20:
            path.write_bytes(bytes(path.stat().st_size))
    assert of_store(store, quick=True).bytes == found.bytes


def test_a_live_group_is_counted():
    log = LogInMemory(isolation="read_uncommitted", block=11).append_noop(1).append_bookkeeping()
    for term in TERMS:
        log.append(*bodies_of(term), term=term)
    found = stats_of_log(log, locally, 3)
    assert found.kinds == {"NOOP": 1, "NORMAL": 180, "bookkeeping": 1}
    assert (found.source, found.entries, found.body_bytes) == ("group g", 182, sum(SIZES))
    assert [(one.term, one.first_index) for one in found.terms] == [(1, 0), (2, 62), (4, 122)]
    assert found.periods == []


def test_nothing_to_count(tmp_path):
    opened = Opened(tmp_path / "g")
    found = of_store(tmp_path / "g")
    assert found.text().endswith("holds no entries")
    opened.close()
    assert stats_of_log(LogInMemory(), locally, 2).entries == 0
    with pytest.raises(PipelineError, match="nothing to draw"):
        draw(found, tmp_path / "plot.png")
    with pytest.raises(StorageError, match="is this a group directory"):
        of_store(tmp_path)


def test_damaged_entries_are_counted_as_such(store):
    path = sorted((store / "data").iterdir())[1]
    with path.open("r+b") as file:
        file.write(b"\xff" * 60)
    found = of_store(store)
    assert found.damaged >= 1
    assert found.entries + found.damaged == 184
    assert "not readable" in found.text()


def test_files_in_other_directories_and_a_log_without_its_begin(store, tmp_path):
    opened = Opened(store, data_file=8_000, index_file=32 * 32)
    opened.log.note_committed(120)
    opened.submit(opened.log.reset(99))
    opened.close()
    shutil.move(store / "data", tmp_path / "elsewhere")
    found = of_store(store, tmp_path / "elsewhere")
    assert (found.first_index, found.last_index, found.entries) == (100, 183, 84)
    assert [one.first_index for one in found.terms] == [100, 123]


# -- time and leaders -----------------------------------------------------------------------------


def test_rates_come_from_the_times_of_the_data_files(store):
    files = sorted((store / "data").iterdir())
    for number, path in enumerate(files):
        os.utime(path, (1_000 + 10 * number, 1_000 + 10 * number))
    found = of_store(store)
    assert len(found.periods) == len(files) - 1
    first = found.periods[0]
    assert (first.from_ms, first.to_ms) == (1_000 * SECOND_MS, 1_010 * SECOND_MS)
    assert (first.bytes, first.seconds) == (8_000, 10)
    assert found.periods[-1].last == 183
    assert "at most 800 bytes/s" in found.text()


def test_many_files_are_few_periods(store, monkeypatch):
    for number, path in enumerate(sorted((store / "data").iterdir())):
        os.utime(path, (1_000 + 10 * number, 1_000 + 10 * number))
    whole = of_store(store).periods
    monkeypatch.setattr("quorumlog.spark.jobs.stats.stats.BUCKETS", 2)
    found = of_store(store).periods
    assert len(found) == 2
    assert (found[0].from_ms, found[-1].to_ms) == (whole[0].from_ms, whole[-1].to_ms)
    assert sum(one.bytes for one in found) == sum(one.bytes for one in whole)


def test_copied_files_give_no_rates(store):
    for path in (store / "data").iterdir():
        os.utime(path, (1_000, 1_000))
    found = of_store(store)
    assert found.periods == []
    assert "data files' times" not in found.text()


def test_a_store_of_the_original_shows_its_vote(tmp_path):
    with tarfile.open(FIXTURES / "multi-term.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = of_store(tmp_path / "multi-term" / "dledger-n0")
    assert [one.entries for one in found.terms] == [100] * 5
    assert found.terms[-1].vote
    assert not found.terms[-1].leader
    assert f"voted for {found.terms[-1].vote}" in found.text()


# -- arithmetic and pictures ----------------------------------------------------------------------


def test_classes_of_sizes_follow_each_other_and_are_narrow():
    sizes = np.array([*range(5_000), 65_535, 65_536, 4 << 20], dtype=np.int64)
    classes = class_of(sizes)
    assert (np.diff(classes) >= 0).all()
    assert classes[:256].tolist() == list(range(256))
    for size, number in zip(sizes.tolist(), classes.tolist(), strict=True):
        low, beyond = smallest_of_class(number), smallest_of_class(number + 1)
        assert low <= size < beyond
        assert beyond - low <= max(1, low / 128)


@pytest.mark.parametrize(("first", "last", "count"), [(0, 183, 120), (5, 5, 1), (7, 1_000, 3)])
def test_buckets_are_ranges_without_gaps(first, last, count):
    buckets = Buckets(first, last, count)
    indexes = np.arange(first, last + 1)
    numbers = buckets.of(indexes)
    for number in range(count):
        low, high = buckets.range(number)
        assert indexes[numbers == number].tolist() == list(range(low, high + 1))


def test_pictures_of_all_sorts(store, tmp_path):
    found = of_store(store)
    for number, periods in enumerate((found.periods, [])):
        found.periods = periods
        path = tmp_path / f"{number}.png"
        draw(found, path)
        assert path.read_bytes().startswith(PNG)
    alone = LogInMemory().append(b"x")
    draw(stats_of_log(alone, locally, 1), tmp_path / "one.png")
    only_noop = LogInMemory().append_noop()
    draw(stats_of_log(only_noop, locally, 1), tmp_path / "noop.png")
    assert (tmp_path / "noop.png").read_bytes().startswith(PNG)


def test_the_object_is_what_json_can_say(store):
    fields = of_store(store).to_object()
    assert fields["terms"][0]["first_index"] == 0
    assert set(LogStats("", 0, 0).to_object()) == set(fields)
