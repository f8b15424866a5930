"""An archive without Spark: a log in memory, files on disk, pieces carried out on the spot."""

import pickle
from pathlib import Path

import pytest

from pipeline_access import LogInMemory, run_here
from quorumlog.model.errors import CorruptionError, StoreLockedError, UnexpectedArgumentError
from quorumlog.spark.jobs.archive.manifest import (
    ArchivedFile,
    Gap,
    Manifest,
    load_manifest,
    save_manifest,
)
from quorumlog.spark.jobs.archive.parquet import row_groups
from quorumlog.spark.jobs.archive.run import ArchiveOptions, ArchiveRun
from quorumlog.spark.jobs.archive.tasks import FetchRange, groups_to_merge
from quorumlog.spark.jobs.log_source import ClusterSource, plan_ranges
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.tasks import PipelineError, no_progress

FILES = OutputFileSystem()
DAY_1 = 1_772_366_400  # 2026-03-01, noon UTC
DAY_2 = DAY_1 + 86_400


def bodies(count, start=0):
    return [f"body {number} ".encode() * (number % 5 + 1) for number in range(start, start + count)]


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "archive")


def archive(log, directory, now=DAY_1, progress=no_progress, run=run_here, **options):
    options = ArchiveOptions(**{"file_bytes": 4_000, "cores": 2, **options})
    return ArchiveRun(log, FILES, directory, options, run, progress, lambda: now).run()


def rows_of(directory):
    """All rows of an archive, by way of its manifest."""
    manifest = load_manifest(FILES, directory)
    return [
        row
        for file in manifest.files
        for table in row_groups(FILES, directory, file)
        for row in table.to_pylist()
    ]


def expected_rows(log):
    return [
        {
            "index": entry.index,
            "term": entry.term,
            "channel": entry.channel,
            "body": entry.body,
            "body_crc": entry.body_crc,
            "chain_crc": entry.chain_crc,
        }
        for entry in log.entries()
        if entry.is_data
    ]


def parquet_files(tmp_path):
    return sorted(path.name for path in tmp_path.glob("archive/**/*.parquet"))


# -- exactly once ---------------------------------------------------------------------------------


def test_rows_are_the_users_entries_and_ranges_cover_the_rest(directory):
    log = LogInMemory().append_noop(1).append(*bodies(90)).append_bookkeeping()
    log.append(*bodies(30), channel=7, term=2).append_noop(3)
    result = archive(log, directory)
    assert rows_of(directory) == expected_rows(log)
    manifest = load_manifest(FILES, directory)
    assert (manifest.first_index, manifest.last_index, manifest.rows) == (0, 122, 120)
    assert (result.new_rows, result.new_entries, result.lost_entries) == (120, 123, 0)
    assert len(manifest.files) > 1
    assert manifest.files[-1].chain_last == log.get(122).chain_crc
    assert manifest.files[0].chain_before == 0
    assert (manifest.files[0].first_term, manifest.files[-1].last_term) == (1, 3)
    assert sum(file.body_bytes for file in manifest.files) == sum(map(len, bodies(90) + bodies(30)))


def test_a_second_run_adds_nothing_and_a_later_one_what_is_new(directory):
    log = LogInMemory().append(*bodies(40))
    archive(log, directory)
    before = load_manifest(FILES, directory)
    log.fetches.clear()
    assert archive(log, directory).new_rows == 0
    assert load_manifest(FILES, directory) == before
    assert log.fetches == []
    log.append(*bodies(25, start=40))
    assert archive(log, directory).new_rows == 25
    assert rows_of(directory) == expected_rows(log)


def test_until_ends_a_run_before_the_end(directory):
    log = LogInMemory().append(*bodies(40))
    assert archive(log, directory, until=9).last_index == 9
    assert archive(log, directory, until=4).new_entries == 0
    assert archive(log, directory).new_entries == 30
    assert rows_of(directory) == expected_rows(log)


def test_an_empty_log_makes_an_empty_archive(directory):
    result = archive(LogInMemory(), directory)
    assert (result.first_index, result.last_index, result.rows) == (None, None, 0)
    assert rows_of(directory) == []


def test_a_range_without_rows_has_no_file(directory, tmp_path):
    log = LogInMemory().append_noop(1).append_bookkeeping()
    assert archive(log, directory).last_index == 1
    assert parquet_files(tmp_path) == []
    log.append(b"first")
    archive(log, directory)
    assert rows_of(directory) == expected_rows(log)


def test_rejected_entries_of_transactions_are_no_rows(directory):
    log = LogInMemory().append(*bodies(20))
    log.rejected = [(3, 5), (9, 9)]
    archive(log, directory)
    seen = [row["index"] for row in rows_of(directory)]
    assert seen == [index for index in range(20) if index not in {3, 4, 5, 9}]


def test_a_log_whose_start_was_removed_before_the_first_run_is_archived_from_there(directory):
    log = LogInMemory().append(*bodies(40))
    log.begin = 12
    result = archive(log, directory)
    assert (result.first_index, result.last_index, result.lost_entries) == (12, 39, 0)
    assert load_manifest(FILES, directory).files[0].chain_before is None


def test_progress_reaches_the_whole_after_several_rounds(directory):
    log = LogInMemory().append(*bodies(200))
    reported = []
    archive(log, directory, progress=lambda *done: reported.append(done), file_bytes=800)
    assert len(reported) > 2
    assert reported == sorted(reported)
    assert reported[-1] == (200, 200)


def test_files_of_a_day_are_in_its_directory(directory, tmp_path):
    log = LogInMemory().append(*bodies(10))
    archive(log, directory, partition_by="day")
    log.append(*bodies(10, start=10))
    archive(log, directory, now=DAY_2)
    days = {path.parent.name for path in tmp_path.glob("archive/*/*.parquet")}
    assert days == {"day=2026-03-01", "day=2026-03-02"}
    assert load_manifest(FILES, directory).files[0].day == "2026-03-01"
    assert rows_of(directory) == expected_rows(log)


# -- what must not be ------------------------------------------------------------------------------


def test_an_archive_is_of_one_group_and_keeps_its_options(directory):
    archive(LogInMemory().append(b"x"), directory)
    with pytest.raises(PipelineError, match="group g, not other"):
        archive(LogInMemory(group="other").append(b"x"), directory)
    with pytest.raises(PipelineError, match="isolation read_committed, not read_uncommitted"):
        archive(LogInMemory(isolation="read_uncommitted").append(b"x"), directory)
    with pytest.raises(PipelineError, match="partition_by range, not day"):
        archive(LogInMemory().append(b"x"), directory, partition_by="day")


def test_another_history_is_never_appended(directory):
    archive(LogInMemory().append(*bodies(10)), directory)
    rewritten = LogInMemory().append(b"other", *bodies(20))
    with pytest.raises(PipelineError, match="different histories: at entry 9"):
        archive(rewritten, directory)
    with pytest.raises(PipelineError, match=r"up to 9, but g ends at 3"):
        archive(LogInMemory().append(*bodies(4)), directory)
    rewritten.begin = 10  # the last archived entry cannot be compared, but the next tells
    with pytest.raises(CorruptionError, match="entry 10 belongs to another history"):
        archive(rewritten, directory)
    assert load_manifest(FILES, directory).last_index == 9


def test_damage_on_the_way_is_found(directory):
    log = LogInMemory().append(*bodies(5))
    log.damage = 1
    with pytest.raises(CorruptionError, match="does not fit its body CRC"):
        archive(log, directory)
    assert load_manifest(FILES, directory).files == ()


def test_a_damaged_or_missing_file_is_an_error_when_it_is_read(directory, tmp_path):
    log = LogInMemory().append(*bodies(5))
    archive(log, directory)
    (path,) = tmp_path.glob("archive/*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:50] + b"!" + whole[51:])
    with pytest.raises(PipelineError, match="is damaged"):
        rows_of(directory)
    path.unlink()
    with pytest.raises(PipelineError, match="is missing"):
        rows_of(directory)


def test_two_runs_at_a_time_are_refused(directory):
    log = LogInMemory().append(*bodies(5))
    refused = []

    def run(pieces):
        with pytest.raises(StoreLockedError):
            archive(log, directory)
        refused.append(True)
        return run_here(pieces)

    archive(log, directory, run=run)
    assert refused == [True]
    assert rows_of(directory) == expected_rows(log)


def test_a_directory_that_is_not_shared_with_the_tasks_is_noticed(directory, tmp_path):
    def elsewhere(pieces):
        results = run_here(pieces)
        next(tmp_path.glob("archive/*.parquet")).unlink()
        return results

    with pytest.raises(PipelineError, match="must see the same directory"):
        archive(LogInMemory().append(b"x"), directory, run=elsewhere)
    assert load_manifest(FILES, directory).files == ()


# -- retention -------------------------------------------------------------------------------------


def test_entries_removed_before_they_were_archived_are_an_error_with_advice(directory):
    log = LogInMemory().append(*bodies(10))
    archive(log, directory)
    log.append(*bodies(30))
    log.begin = 15
    with pytest.raises(PipelineError, match=r"entries 10 to 14 of g .*--allow-data-loss"):
        archive(log, directory)
    assert load_manifest(FILES, directory).last_index == 9


def test_an_allowed_loss_is_a_gap_that_is_counted(directory):
    log = LogInMemory().append(*bodies(10))
    archive(log, directory)
    log.append(*bodies(30))
    log.begin = 15
    result = archive(log, directory, fail_on_data_loss=False)
    assert (result.new_lost_entries, result.lost_entries, result.last_index) == (5, 5, 39)
    manifest = load_manifest(FILES, directory)
    assert manifest.gaps == (Gap(first=10, last=14, day="2026-03-01"),)
    assert [row["index"] for row in rows_of(directory)] == [*range(10), *range(15, 40)]
    assert archive(log, directory).new_lost_entries == 0


@pytest.mark.parametrize("allowed", [True, False])
def test_retention_that_overtakes_a_run_is_a_gap_too(directory, tmp_path, allowed):
    log = LogInMemory().append(*bodies(200))

    def overtake(begin):
        if begin >= 60 and log.begin == 0:
            log.begin = 120

    log.before_fetch = overtake
    if allowed:
        archive(log, directory, fail_on_data_loss=False, file_bytes=800)
    else:
        with pytest.raises(PipelineError, match="were removed by retention"):
            archive(log, directory, file_bytes=800)
    manifest = load_manifest(FILES, directory)
    seen = [row["index"] for row in rows_of(directory)]
    lost_from = manifest.gaps[0].first if allowed else manifest.last_index + 1
    assert seen[:lost_from] == list(range(lost_from))
    assert lost_from >= 30
    if allowed:
        assert seen[lost_from:] == list(range(120, 200))
        named = {file.path for file in (*manifest.files, *manifest.replaced) if file.path}
        assert set(parquet_files(tmp_path)) == named


# -- merging ---------------------------------------------------------------------------------------


def many_small_runs(log, directory, count, **options):
    for number in range(count):
        log.append(*bodies(3, start=number * 3))
        result = archive(log, directory, file_bytes=1_000_000, **options)
    return result


def test_small_files_are_merged_and_rows_stay_the_same(directory, tmp_path):
    log = LogInMemory()
    result = many_small_runs(log, directory, 20, keep_replaced_s=0)
    assert rows_of(directory) == expected_rows(log)
    assert result.files < 8
    manifest = load_manifest(FILES, directory)
    assert len(parquet_files(tmp_path)) == len(manifest.files)
    assert manifest.files[0].chain_before == 0
    assert manifest.files[-1].chain_last == log.get(59).chain_crc


def test_without_compact_every_run_leaves_a_file(directory):
    log = LogInMemory()
    assert many_small_runs(log, directory, 20, compact=False).files == 20


def test_merged_files_stay_a_while_for_those_who_read_them(directory, tmp_path):
    log = LogInMemory()
    many_small_runs(log, directory, 8, keep_replaced_s=3_600)
    assert len(parquet_files(tmp_path)) == 9
    assert len(rows_of(directory)) == 24
    archive(log, directory, now=DAY_1 + 3_599)
    assert len(parquet_files(tmp_path)) == 9
    archive(log, directory, now=DAY_1 + 3_600)
    assert len(parquet_files(tmp_path)) == 1
    assert rows_of(directory) == expected_rows(log)


def archived(first, last, size, path="x"):
    return ArchivedFile(
        path=f"{path}{first}",
        first=first,
        last=last,
        rows=last - first + 1,
        body_bytes=size,
        file_bytes=size,
        sha256="",
        first_term=1,
        last_term=1,
        chain_before=0,
        chain_last=0,
        day="",
    )


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([1, 1, 1], []),
        ([1, 1, 1, 1], [[0, 1, 2, 3]]),
        ([6, 6], [[0, 1]]),
        ([50, 1, 1, 1, 1, 50], [[1, 2, 3, 4]]),
        ([9, 9, 9, 9, 9, 9], [[0, 1, 2, 3], [4, 5]]),
        ([10, 9, 10], []),
        ([], []),
    ],
)
def test_what_is_worth_merging(sizes, merged):
    files = tuple(archived(number, number, size) for number, size in enumerate(sizes))
    groups = groups_to_merge(files, small_bytes=10, bytes_max=40, count_min=4)
    assert [[file.first for file in group] for group in groups] == merged


def test_files_of_two_days_or_beside_a_gap_are_not_merged():
    days = tuple(archived(n, n, 1, path=f"day={n // 4}/") for n in range(8))
    groups = groups_to_merge(days, 10, 40, 4)
    assert [[file.first for file in group] for group in groups] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    beside = tuple(archived(n * 2, n * 2, 1) for n in range(8))
    assert groups_to_merge(beside, 10, 40, 4) == []


# -- manifest, names, plans ------------------------------------------------------------------------


def test_a_manifest_that_cannot_be_right_is_refused(directory, tmp_path):
    archive(LogInMemory().append(*bodies(5)), directory)
    path = tmp_path / "archive" / "_manifest.json"
    good = path.read_text()
    for wrong in (
        good[:-10],
        good.replace('"format_version": 1', '"format_version": 99'),
        good.replace('"first": 0', '"first": 7'),
        good.replace('"rows"', '"row"'),
    ):
        path.write_text(wrong)
        with pytest.raises(PipelineError, match=r"_manifest\.json cannot be used"):
            load_manifest(FILES, directory)
    with pytest.raises(PipelineError, match="holds no archive"):
        load_manifest(FILES, str(tmp_path))


def test_a_manifest_with_a_hole_or_two_histories_is_not_saved(directory):
    archive(LogInMemory().append(*bodies(5)), directory)
    manifest = load_manifest(FILES, directory)

    def with_files(*files):
        fields = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
        return Manifest(**{**fields, "files": files})

    with pytest.raises(PipelineError, match="entry 7 does not follow entry 4"):
        save_manifest(FILES, directory, with_files(archived(0, 4, 1), archived(7, 9, 1)))
    other = ArchivedFile(
        **{n: getattr(archived(5, 9, 1), n) for n in ArchivedFile.__struct_fields__}
        | {"chain_before": 3}
    )
    with pytest.raises(PipelineError, match="another history"):
        save_manifest(FILES, directory, with_files(archived(0, 4, 1), other))
    assert load_manifest(FILES, directory) == manifest


def test_unknown_files_are_ignored_and_files_of_killed_runs_are_removed(directory, tmp_path):
    log = LogInMemory().append(*bodies(5))
    archive(log, directory)
    root = tmp_path / "archive"
    leftover = f"{0:020d}-{4:020d}-deadbeef.parquet"
    (root / "day=2026-01-01").mkdir()
    gone = [root / leftover, root / f".{leftover}.tmp", root / "day=2026-01-01" / leftover]
    stay = [root / "notes.txt", root / "mine.parquet", root / "day=2026-01-01" / "other.parquet"]
    for path in gone + stay:
        path.write_bytes(b"x")
    archive(log, directory)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in stay)


def test_others_may_read_the_files_as_the_umask_says(directory, tmp_path):
    archive(LogInMemory().append(b"x"), directory)
    (path,) = tmp_path.glob("archive/*.parquet")
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


def test_ranges_are_as_long_as_asked_and_enough_for_all_cores():
    log = LogInMemory().append(*[b"x" * 52] * 100)
    assert plan_ranges(log, 0, 99, 2_500, 1) == [(0, 24), (25, 49), (50, 74), (75, 99)]
    assert len(plan_ranges(log, 0, 99, 2_500, 3)) == 6
    assert len(plan_ranges(log, 0, 99, 2_400, 4)) == 4  # a little longer than asked
    assert len(plan_ranges(log, 0, 99, 2_000, 4)) == 8
    assert plan_ranges(log, 0, 99, 20_000, 4) == [(0, 32), (33, 65), (66, 99)]
    assert plan_ranges(log, 10, 10, 2_500, 4) == [(10, 10)]


def test_tasks_of_an_archive_can_be_pickled():
    source = ClusterSource("h:1", "g")
    piece = FetchRange(source, FILES, "/a", "", "2026-03-01", 0, 9)
    assert pickle.loads(pickle.dumps(piece)).source == source


@pytest.mark.parametrize("uri", ["s3a://bucket/x", "hdfs:///x", Path("s3a://bucket/x")])
def test_a_uri_is_not_taken_for_a_directory(uri):
    with pytest.raises(UnexpectedArgumentError, match="is a URI: give the path"):
        local_path(uri)


def test_a_path_may_have_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_path("a:b/c") == f"{tmp_path}/a:b/c"
    assert local_path("./s3a:/x") == f"{tmp_path}/s3a:/x"
