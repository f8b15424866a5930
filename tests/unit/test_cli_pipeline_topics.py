"""`quorumlog pipeline` on topics without Spark or brokers: what is asked, and printed."""

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from quorumlog.cli import pipeline_topics
from quorumlog.cli.kafka_reach import Found, Reach
from quorumlog.cli.main import main
from quorumlog.spark.jobs.archive.manifest_file import MANIFEST_NAME
from quorumlog.spark.jobs.audit.report import Finding
from quorumlog.spark.jobs.topics.audit import PartitionFacts, TopicAudit
from quorumlog.spark.jobs.topics.iceberg.run import IcebergArchiveResult
from quorumlog.spark.jobs.topics.replay import TopicReplayResult
from quorumlog.spark.jobs.topics.run import TopicArchiveResult
from quorumlog.spark.jobs.topics.source import topic_source
from quorumlog.spark.jobs.topics.stats import PartitionStats, TopicPeriod, TopicStats
from spark_topics_fakes import FakeBrokers, FakePartition
from topic_archives import archived, source_of

AT = ("--bootstrap-server", "h:9092")
ARCHIVED = TopicArchiveResult("/a", 2, 5, 90, 7, 10, 55, 5_000, 900, 10, 8)
APPENDED = IcebergArchiveResult("lake.a", "/a", 2, 5, 90, 1, 1, 55, 7, 5_000, 900, 1)
REPLAYED = TopicReplayResult("/a", {"a": "b"}, 3, 90, 20, 70)
FACTS = PartitionFacts("a", 0, 0, 89, 5, 100, 5, 89, 85)
CLEAN = TopicAudit("/a", [FACTS])
FOUND = TopicAudit(
    "/a", [FACTS], {"archive-missing": 2}, [Finding("archive-missing", 7, 8, "a-0", "it is")], 1
)
COUNTED = TopicStats(
    "topics at h:9092",
    *(9, 70),
    [PartitionStats("a", 0, 0, 10, 9, 20, 50, 1, 2, 30, 4, 1_000, 4_000, 3.0)],
    [TopicPeriod("a", 0, 2_000, 9, 70)],
)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command; return status, output, error and what its job was called with."""
    calls = []

    def recorder(result):
        def record(*arguments, **options):
            options.pop("progress", None)
            calls.append((arguments, options))
            return result

        return record

    @contextmanager
    def no_session(app_name, master, remote):
        calls.append((app_name, remote or master))
        yield "spark"

    monkeypatch.setattr(pipeline_topics, "spark_session", no_session)
    monkeypatch.setattr(
        pipeline_topics,
        "reach_of",
        lambda servers, security: [
            Found(servers, Reach.REFUSED if "nobody" in servers else Reach.TAKEN, "refused")
        ],
    )

    brokers = FakeBrokers(a=[FakePartition()], b=[FakePartition()])
    monkeypatch.setattr(
        "quorumlog.spark.jobs.topics.source.topic_source",
        partial(topic_source, connect=brokers.connect),
    )

    def run(*arguments, audit=CLEAN):
        monkeypatch.setattr("quorumlog.spark.archive_topics", recorder(ARCHIVED))
        monkeypatch.setattr("quorumlog.spark.archive_topics_to_iceberg", recorder(APPENDED))
        monkeypatch.setattr("quorumlog.spark.replay_topics", recorder(REPLAYED))
        monkeypatch.setattr("quorumlog.spark.topic_stats", recorder(COUNTED))
        monkeypatch.setattr("quorumlog.spark.audit_topics", recorder(audit))
        calls.clear()
        status = main(["pipeline", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err, calls

    return run


@pytest.fixture
def archive(tmp_path):
    """Return the directory of an archive of topics."""
    directory = tmp_path / "archive"
    archived(source_of(FakeBrokers(a=[FakePartition()])), directory)
    return directory


def test_archive_asks_for_what_the_options_say(run):
    status, out, err, calls = run(
        *("archive", "/a", *AT, "-t", "a,b", "--isolation", "read_uncommitted", "--timeout", 7),
        *("--allow-data-loss", "--no-compact", "--file-mib", 2, "--master", "local[3]"),
    )
    assert (status, err) == (0, "")
    assert calls[0] == ("quorumlog archive", "local[3]")
    (spark, servers, topics, directory), options = calls[1]
    assert (spark, servers, topics, str(directory)) == ("spark", "h:9092", "a,b", "/a")
    assert options == {
        "pattern": None,
        "isolation": "read_uncommitted",
        "fail_on_data_loss": False,
        "compact": False,
        "file_bytes": 2 << 20,
        "timeout_ms": 7_000,
    }
    assert "55 records added (5,000 bytes of keys and values; 900 bytes of Parquet)" in out
    assert "/a holds 90 records of 2 topics, 5 partitions, in 7 files, 10 offsets missing" in out


def test_archive_asks_for_a_table_of_iceberg(run, tmp_path):
    catalog = f"sqlite:///{tmp_path}/c.db"
    table = ("--iceberg-table", "lake.a", "--iceberg-catalog", catalog)
    status, out, err, calls = run("archive", "/a", *AT, "-t", "a", *table)
    assert (status, err) == (0, "")
    (_, servers, topics, directory), options = calls[1]
    assert (servers, topics, str(directory)) == ("h:9092", "a", "/a")
    assert (options["table"], options["catalog"]) == ("lake.a", catalog)
    assert not {"catalog_name", "compact"} & options.keys()
    assert "; 900 bytes of Parquet)\n1 offset removed by retention" in out
    assert "table lake.a was given 90 records of 2 topics, 5 partitions, 1 offset missing" in out
    assert out.endswith("; 7 new files\n")
    named = run("archive", "/a", *AT, "-t", "a", *table, "--iceberg-catalog-name", "c", "--json")
    assert (json.loads(named[1])["table"], named[3][1][1]["catalog_name"]) == ("lake.a", "c")


def test_replay_says_which_timestamps_differ(run, monkeypatch):
    changed = replace(REPLAYED, changed_timestamps=7, first_changed=("a", 2, 17))
    monkeypatch.setitem(globals(), "REPLAYED", changed)
    status, out, _, _ = run("replay", "/a", *AT)
    assert status == 0
    assert "topic b has what /a holds of a, except for timestamps, as was read back" in out
    assert (
        "7 records got another timestamp than in the archive, the first of which is at offset 17 "
        "of partition 2 of a"
    ) in out


def test_replay_stats_and_audit_ask_for_what_the_options_say(run, archive):
    status, out, _, calls = run("replay", "/a", *AT, "--rename", "a=b", "--append")
    ((arguments, options),) = calls
    assert (status, *map(str, arguments)) == (0, "/a", "h:9092", "None")
    assert options == {
        "names": {"a": "b"},
        "append": True,
        "allow_gaps": False,
        "timeout_ms": 120_000,
    }
    assert "70 records produced, 20 were there already" in out
    assert "topic b has what /a holds of a" in out
    status, out, _, calls = run("stats", *AT, "--topic-pattern", "a.*")
    assert (status, calls[1][0], calls[1][1]["pattern"]) == (0, ("spark", "h:9092", None), "a.*")
    assert "a: busiest period (2 s): 9 records, from 1970-01-01 00:00:00\n" in out
    status, out, _, calls = run("audit", "--archive", archive, *AT)
    assert (status, calls[1][0][2]) == (0, "h:9092")
    assert "85 records compared: no difference" in out


def test_an_audit_that_finds_something_ends_with_1(run, archive):
    status, out, _, _ = run("audit", "--archive", archive, *AT, audit=FOUND)
    assert status == 1
    assert "archive-missing: 2 records (in the topic, and not in the archive)" in out
    status, out, _, _ = run("audit", "--archive", archive, *AT, "--json", audit=FOUND)
    assert (status, json.loads(out)["findings"][0]["first"]) == (1, 7)


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "/a", "-t", "a"),
        ("archive", "/a", *AT),
        ("archive", "/a", *AT, "-t", "a", "--topic-pattern", "b"),
        ("archive", "/a", *AT, "-t", "a", "--servers", "h:1"),
        ("archive", "/a", *AT, "-t", "a", "--partition-by", "day"),
        ("archive", "/a", "--bootstrap-server", "nowhere", "-t", "a"),
        ("archive", "/a", *AT, "-t", "a", "--iceberg-table", "lake.a"),
        ("archive", "/a", *AT, "-t", "a", "--iceberg-catalog-name", "c"),
        ("archive", "/a", "--iceberg-table", "lake.a", "--iceberg-catalog", "sqlite://"),
        ("replay", "/a", *AT, "--group", "g"),
        ("replay", "/a", *AT, "--rename", "ab"),
        ("replay", "/a", "--append"),
        ("stats", "/store", *AT),
        ("audit",),
        ("audit", *AT),
        ("audit", "--archive", "/a"),
        ("audit", "--archive", "/a", *AT, "--to", 5),
        ("audit", "/store", *AT),
    ],
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err, calls = run(*arguments)
    assert (status, out, calls) == (2, "", [])
    assert err


def test_brokers_that_cannot_be_reached_are_reported_before_spark_is_started(run):
    for name in ("archive", "replay"):
        status, _, err, calls = run(name, "/a", "--bootstrap-server", "nobody:1", "-t", "a")
        assert (status, calls) == (1, [])
        assert "no broker answers at nobody:1" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "/a", "-t", "a,c"), "there is no topic 'c' ('quorumlog topic list' shows"),
        (("stats", "-t", "none"), "there is no topic 'none' ("),
        (("stats", "--topic-pattern", "x.*"), "matches none of the topics of the cluster: a, b"),
        (("audit", "--archive", "/none"), "/none holds no archive: there is no _manifest.json"),
        (("archive", "{group}", "-t", "a"), "is an archive of a group, not topics"),
        (
            ("archive", "/a", "-t", "a", "--iceberg-table", "lake.a", "--iceberg-catalog", "here"),
            "the catalog is not a database URI like sqlite:",
        ),
        (
            ("archive", "/a", "-t", "a", "--iceberg-table", "b", "--iceberg-catalog", "sqlite://"),
            "table 'b' is not NAMESPACE.NAME",
        ),
    ],
)
def test_what_is_not_there_is_reported_before_spark_is_started(run, arguments, said, tmp_path):
    (tmp_path / MANIFEST_NAME).write_text('{"format_version": 1, "of": "group"}')
    status, out, err, calls = run(*(one.format(group=tmp_path) for one in arguments), *AT)
    assert (status, out, calls) == (1, "", [])
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "/a", "-t", "a", "--to", 5), "--to is for groups, not for topics: leave it"),
        (("archive", "/a", "-t", "a", "--partition-by", "day"), "--partition-by is for groups, no"),
        (("archive", "/a", "-t", "a", "--read-from", "any"), "--read-from any is for groups, not"),
        (("archive", "/a", "-t", "a", "--servers", "h:1"), "for topics give --bootstrap-server"),
        (("replay", "/a", "--append", "--servers", "h:1"), "for topics give --bootstrap-server"),
        (("stats", "-t", "a", "--data", "d=e"), "--data is for groups, not for topics"),
    ],
)
def test_an_option_of_groups_is_named_if_topics_are_meant(run, arguments, said):
    status, _, err, _ = run(*arguments)
    assert status == 2
    assert said in " ".join(err.replace("│", " ").split())


def test_json_is_one_object(run):
    assert json.loads(run("archive", "/a", *AT, "-t", "a", "--json")[1])["rows"] == 90
    assert json.loads(run("replay", "/a", *AT, "--json")[1])["topics"] == {"a": "b"}
    assert json.loads(run("stats", *AT, "--json")[1])["records"] == 9
