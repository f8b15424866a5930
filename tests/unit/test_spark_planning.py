"""Plans of the data source: shares, ends by bytes, partitions, ranges and conditions of a batch."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from quorumlog.model.errors import (
    IndexOutOfRangeError,
    UnexpectedArgumentError,
    UnknownGroupError,
)
from quorumlog.spark.source import planning
from quorumlog.spark.source.batch import FilteringLogReader, LogReader
from quorumlog.spark.source.clusters import IndexRecord
from quorumlog.spark.source.offsets import DataLossError
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.planning import (
    NOTHING,
    IndexRange,
    cut,
    first_of_term,
    last_within,
    shares,
    split,
)
from spark_fakes import FakeCluster, FakeGroup, filled, rows_of

REQUIRED = {"servers": "h:1", "group": "g"}


def options_of(**options):
    required = {"servers": "h:1"} if "groupPattern" in options else REQUIRED
    return parse_options({**required, **options})


def ranges(parts):
    return [(part.first, part.last) for part in parts]


# -- shares ---------------------------------------------------------------------------------------


def test_a_limit_is_shared_equally_and_nothing_is_left_unused():
    assert shares(10, {"a": 3, "b": 100}) == {"a": 3, "b": 7}
    assert shares(10, {"a": 50, "b": 100}) == {"a": 5, "b": 5}
    assert shares(10, {"a": 2, "b": 3}) == {"a": 2, "b": 3}
    assert shares(1, {"a": 2, "b": 3}) == {"a": 0, "b": 1}
    assert shares(5, {}) == {}


@given(st.integers(1, 1_000), st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 500)))
def test_shares_are_the_limit_or_all_that_is_wanted(limit, wanted):
    given_ = shares(limit, wanted)
    assert sum(given_.values()) == min(limit, sum(wanted.values()))
    assert all(0 <= given_[group] <= wanted[group] for group in wanted)


# -- ends by bytes and by term --------------------------------------------------------------------


class Records:
    """Index records of entries with these sizes and terms, from index `first` on."""

    def __init__(self, sizes, terms=None, first=0):
        self.first = first
        self.records = []
        pos = 1_000
        for size, term in zip(sizes, terms or [1] * len(sizes), strict=True):
            self.records.append(IndexRecord(term, pos, size))
            pos += size
        self.asked = 0

    def __call__(self, group, index):
        self.asked += 1
        assert index >= self.first
        return self.records[index - self.first]


@given(st.lists(st.integers(48, 5_000), min_size=1, max_size=300), st.integers(1, 200_000))
def test_the_end_within_bytes_is_the_last_that_fits(sizes, bytes_max):
    records = Records(sizes, first=7)
    last = last_within(records, IndexRange("g", 7, 6 + len(sizes)), bytes_max)
    fitting = [n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) <= bytes_max]
    assert last == 6 + max(fitting, default=1)
    assert records.asked <= 2 * math.log2(len(sizes)) + 4


def test_the_end_within_bytes_of_equal_entries_takes_few_fetches():
    records = Records([1_072] * 100_000)
    assert last_within(records, IndexRange("g", 0, 99_999), 64 << 20) == (64 << 20) // 1_072 - 1
    assert records.asked <= 6


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(0, 31))
def test_the_first_of_a_term_is_found(terms, wanted):
    terms.sort()
    records = Records([100] * len(terms), terms)
    found = first_of_term(records, IndexRange("g", 0, len(terms) - 1), wanted)
    assert found == sum(term < wanted for term in terms)
    assert records.asked <= math.log2(len(terms)) + 1


# -- partitions -----------------------------------------------------------------------------------


def cut_ranges(first, last, **options):
    return ranges(cut([IndexRange("g", first, last)], options_of(**options), Records([])))


def test_a_range_is_cut_into_even_partitions():
    assert cut_ranges(10, 19) == [(10, 19)]
    assert cut_ranges(0, 20_000) == [(0, 9_999), (10_000, 20_000)]
    assert cut_ranges(0, 9, minPartitions="3") == [(0, 2), (3, 5), (6, 9)]
    assert cut_ranges(0, 9, maxEntriesPerPartition="4") == [(0, 2), (3, 5), (6, 9)]
    assert cut_ranges(0, 0, minPartitions="8") == [(0, 0)]


def test_nothing_to_read_is_one_partition_without_entries():
    options = options_of()
    assert cut([IndexRange("g", 5, 4)], options, Records([])) == [NOTHING]
    assert cut([], options, Records([])) == [NOTHING]
    reader = LogReader(options, ("index",), FakeCluster().connect)
    assert rows_of(reader, [NOTHING]) == []
    assert list(reader.read(InputPartition(None))) == []


def test_groups_get_partitions_by_their_number_of_entries():
    parts = [IndexRange("a", 0, 89), IndexRange("b", 0, 9)]
    made = cut(parts, options_of(minPartitions="10"), Records([]))
    assert [part.group for part in made] == ["a"] * 9 + ["b"]


@given(
    st.lists(st.integers(48, 3_000), min_size=1, max_size=200),
    st.integers(48, 20_000),
    st.integers(1, 5),
)
def test_partitions_by_bytes_are_small_enough_and_hold_every_entry_once(sizes, bytes_max, least):
    part = IndexRange("g", 0, len(sizes) - 1)
    options = options_of(maxBytesPerPartition=str(bytes_max), minPartitions=str(least))
    made = cut([part], options, Records(sizes))
    assert [index for one in made for index in range(one.first, one.last + 1)] == list(
        range(len(sizes))
    )
    assert all(one.count == 1 or sum(sizes[one.first : one.last + 1]) <= bytes_max for one in made)


def test_fetches_for_cutting_by_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(planning, "RECORDS_MAX", 20)
    records = Records([1_000] * 1_000)
    made = cut([IndexRange("g", 0, 999)], options_of(maxBytesPerPartition="10000"), records)
    assert records.asked <= 22
    assert len(made) >= 100  # the first cut was into about as many as needed
    assert sum(part.count for part in made) == 1_000


def test_split_never_makes_empty_pieces():
    assert ranges(split(IndexRange("g", 3, 4), 5)) == [(3, 3), (4, 4)]


# -- batches --------------------------------------------------------------------------------------


def reader_of(cluster, columns=("index", "body"), kind=LogReader, **options):
    return kind(options_of(**options), columns, cluster.connect)


def planned(cluster, **options):
    return ranges(reader_of(cluster, **options).partitions())


def test_a_batch_reads_from_the_first_kept_to_the_last_committed():
    group = filled(10)
    cluster = FakeCluster(g=group)
    assert planned(cluster) == [(0, 9)]
    group.purge_before(4)
    assert planned(cluster) == [(4, 9)]
    assert planned(cluster, startingIndex="latest") == [(0, -1)]
    assert planned(cluster, startingIndex="5", endingIndex="8") == [(5, 7)]
    assert planned(cluster, startingIndex='{"g": -2}', endingIndex='{"g": -1}') == [(4, 9)]


def test_a_batch_ends_before_transactions_that_have_not_ended():
    group = filled(10)
    group.unstable_from = 6
    cluster = FakeCluster(g=group)
    assert planned(cluster) == [(0, 5)]
    assert planned(cluster, isolationLevel="read_uncommitted") == [(0, 9)]


def test_rejected_entries_and_noops_are_no_rows():
    group = filled(3).append_noop(2).append(b"last", term=2)
    group.rejected = [(1, 2)]
    cluster = FakeCluster(g=group)
    reader = reader_of(cluster)
    rows = rows_of(reader, reader.partitions())
    assert [(row["index"], row["body"]) for row in rows] == [(0, b"0000000000"), (4, b"last")]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingIndex": "11"}, IndexOutOfRangeError, "startingIndex 11 is beyond the end"),
        ({"endingIndex": "11"}, IndexOutOfRangeError, "group g has entries 3 to 9"),
        (
            {"startingIndex": "8", "endingIndex": "5"},
            IndexOutOfRangeError,
            "startingIndex 8 is above endingIndex 5",
        ),
        ({"startingIndex": "1"}, DataLossError, "entries 1 to 2 .2 of them. were removed"),
        ({"group": "nope"}, UnknownGroupError, "does not host group 'nope'"),
        ({"groupPattern": "x.*"}, UnexpectedArgumentError, "matches none .* hosts: g"),
        (
            {"groupPattern": "g", "startingIndex": '{"h": 1}'},
            UnexpectedArgumentError,
            "startingIndex says nothing of group g",
        ),
    ],
)
def test_missing_entries_are_an_error_before_the_job_starts(options, error, message):
    group = filled(10)
    group.purge_before(3)
    with pytest.raises(error, match=message):
        planned(FakeCluster(g=group), **options)


def test_a_batch_does_not_wait_long_for_servers_when_it_is_planned():
    cluster = FakeCluster(g=filled(1))
    reader = reader_of(cluster, fetchTimeoutMs="60000")
    rows_of(reader, reader.partitions())
    assert cluster.timeouts == [10_000, 60_000]


def test_entries_that_are_gone_may_be_skipped_and_are_counted(caplog):
    group = filled(10)
    group.purge_before(3)
    cluster = FakeCluster(g=group)
    assert planned(cluster, startingIndex="1", failOnDataLoss="false") == [(3, 9)]
    assert "group g: entries 1 to 2 (2 of them) were removed" in caplog.text


def test_several_groups_are_read_together_and_distinguished():
    cluster = FakeCluster(a1=filled(3), a2=filled(2), b=filled(5))
    reader = reader_of(cluster, ("group", "index"), groupPattern="a.")
    rows = rows_of(reader, reader.partitions())
    assert [(row["group"], row["index"]) for row in rows] == [
        ("a1", 0),
        ("a1", 1),
        ("a1", 2),
        ("a2", 0),
        ("a2", 1),
    ]
    assert ranges(
        reader_of(cluster, group="a1,b", startingIndex='{"a1": 2, "b": -2}').partitions()
    ) == [(2, 2), (0, 4)]


def test_entries_purged_while_a_task_reads_are_an_error_or_a_counted_skip(caplog):
    def purging(**options):
        group = filled(100)
        cluster = FakeCluster(g=group)
        cluster.before_block = lambda number: group.purge_before(50) if number == 1 else None
        return reader_of(cluster, **options)

    with pytest.raises(DataLossError, match=r"group g: entries .* to 49 .* were removed"):
        rows_of(purging(), [IndexRange("g", 0, 99)])
    rows = rows_of(purging(failOnDataLoss="false"), [IndexRange("g", 0, 99)])
    indexes = [row["index"] for row in rows]
    lost = 50 - indexes.index(50)
    assert indexes == [*range(indexes.index(50)), *range(50, 100)]
    assert f"to 49 ({lost} of them) were removed" in caplog.text


def test_readers_travel_to_executors():
    for kind in (LogReader, FilteringLogReader):
        reader = kind(options_of(), ("index", "body"))
        assert pickle.loads(pickle.dumps(reader))._columns == ("index", "body")
    part = IndexRange("g", 1, 2)
    assert pickle.loads(pickle.dumps(part)) == part


# -- conditions -----------------------------------------------------------------------------------

INDEX, TERM = ("index",), ("term",)


@pytest.fixture
def terms():
    """Indexes 0–4 of term 1, 5–9 of term 3, 10–14 of term 4."""
    group = FakeGroup()
    for term in (1, 3, 4):
        group.append(*[b"x"] * 5, term=term)
    return FakeCluster(g=group)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([EqualTo(INDEX, 7)], [(7, 7)]),
        ([EqualNullSafe(INDEX, 7)], [(7, 7)]),
        ([GreaterThan(INDEX, 12)], [(13, 14)]),
        ([GreaterThanOrEqual(INDEX, 12), LessThan(INDEX, 14)], [(12, 13)]),
        ([LessThanOrEqual(INDEX, 2), IsNotNull(INDEX)], [(0, 2)]),
        ([EqualTo(INDEX, 99)], [(0, -1)]),
        ([LessThan(INDEX, 0)], [(0, -1)]),
        ([EqualTo(TERM, 3)], [(5, 9)]),
        ([EqualTo(TERM, 2)], [(0, -1)]),
        ([GreaterThan(TERM, 1), LessThanOrEqual(TERM, 3)], [(5, 9)]),
        ([GreaterThanOrEqual(TERM, 4), IsNotNull(TERM)], [(10, 14)]),
        ([LessThan(TERM, 3), GreaterThan(INDEX, 2)], [(3, 4)]),
        ([IsNotNull(("body",))], [(0, 14)]),
    ],
)
def test_conditions_on_index_and_term_become_ranges(terms, conditions, expected):
    reader = reader_of(terms, kind=FilteringLogReader)
    assert list(reader.pushFilters(conditions)) == []
    assert ranges(reader.partitions()) == expected


def test_other_conditions_are_left_to_spark(terms):
    conditions = [
        EqualTo(("channel",), 1),
        EqualTo(("body",), b"x"),
        Not(EqualTo(INDEX, 3)),
        IsNull(INDEX),
        EqualTo(INDEX, None),
        GreaterThan(INDEX, 1.5),
    ]
    reader = reader_of(terms, kind=FilteringLogReader)
    assert list(reader.pushFilters(conditions)) == conditions
    assert ranges(reader.partitions()) == [(0, 14)]


def test_a_list_of_values_narrows_the_range_and_is_left_to_spark_too(terms):
    reader = reader_of(terms, kind=FilteringLogReader)
    condition = In(INDEX, (3, 9, 5))
    assert list(reader.pushFilters([condition])) == [condition]
    assert ranges(reader.partitions()) == [(3, 9)]


def test_conditions_do_not_hide_that_a_range_is_gone(terms):
    terms.content["g"].purge_before(5)
    reader = reader_of(terms, kind=FilteringLogReader, startingIndex="2")
    reader.pushFilters([GreaterThan(INDEX, 10)])
    with pytest.raises(DataLossError, match="entries 2 to 4"):
        reader.partitions()
