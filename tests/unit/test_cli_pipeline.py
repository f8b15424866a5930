"""`quorumlog pipeline` without Spark or a cluster: what is asked of the pipelines, and printed."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from quorumlog.cli import pipeline
from quorumlog.cli.main import main
from quorumlog.spark.jobs.archive.manifest_file import MANIFEST_NAME
from quorumlog.spark.jobs.archive.run import ArchiveResult
from quorumlog.spark.jobs.export.export import ExportResult
from quorumlog.spark.jobs.replay.replay import ReplayResult
from quorumlog.spark.jobs.tasks import PipelineError, reason_of
from quorumlog.spark.source import clusters as clients

TARGET = ("--servers", "h:1,h:2", "--group", "g")
ARCHIVED = ArchiveResult("/a", 5, 104, 90, 2, 10, 60, 55, 5_000, 900, 10, 8)
REPLAYED = ReplayResult("/a", "g", 90, 20, 70, 93, "d1" * 32)
EXPORTED = ExportResult("/out", "g", "json", "text", 0, 9, 10, 3, 1, 500)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; return status, output, error and what its pipeline was called with."""
    calls, looks = [], []

    def recorder(result):
        def record(*arguments, **options):
            calls.append((arguments, options))
            if isinstance(result, Exception):
                raise result
            return result

        return record

    @contextmanager
    def no_session(app_name, master, remote):
        calls.append(((app_name, remote or master), {}))
        yield "spark"

    def looked(servers, group, timeout_ms):
        assert not calls, "the cluster is looked at first"
        looks.append((servers, group, timeout_ms))

    monkeypatch.setattr(pipeline, "spark_session", no_session)
    monkeypatch.setattr(clients, "check_cluster", looked)

    def run(*arguments, archive=ARCHIVED, replay=REPLAYED, export=EXPORTED):
        monkeypatch.setattr("quorumlog.spark.archive", recorder(archive))
        monkeypatch.setattr("quorumlog.spark.replay", recorder(replay))
        monkeypatch.setattr("quorumlog.spark.export", recorder(export))
        looks.clear()
        calls.clear()
        status = main(["pipeline", *map(str, arguments)])
        captured = capsys.readouterr()
        if calls:
            assert looks == [("h:1,h:2", "g", 5_000)]
        return status, captured.out, captured.err, calls

    return run


def test_archive_asks_for_what_the_options_say(run):
    status, out, err, calls = run(
        *("archive", "/a", *TARGET, "--partition-by", "day", "--to", 99, "--read-from", "any"),
        *("--isolation", "read_uncommitted", "--allow-data-loss", "--no-compact"),
        *("--file-mib", 2, "--master", "local[3]", "--timeout", 7),
    )
    assert (status, err) == (0, "")
    assert calls[0][0] == ("quorumlog archive", "local[3]")
    (spark, servers, group, directory), options = calls[1]
    assert (spark, servers, group, str(directory)) == ("spark", "h:1,h:2", "g", "/a")
    del options["progress"]
    assert options == {
        "partition_by": "day",
        "until": 99,
        "isolation": "read_uncommitted",
        "leader_only": False,
        "fail_on_data_loss": False,
        "compact": False,
        "file_bytes": 2 << 20,
        "timeout_ms": 7_000,
    }
    assert "55 entries added (5,000 bytes of bodies; 900 bytes of Parquet)" in out
    assert "10 entries had been removed: the archive has a gap" in out
    assert "90 entries in 2 files, indexes 5 to 104, 10 are missing" in out


def test_an_archive_that_has_everything_gets_nothing_new(run):
    same = replace(ARCHIVED, new_rows=0, new_body_bytes=0, new_file_bytes=0)
    assert run("archive", "/a", *TARGET, archive=same)[1].startswith("nothing new\n")


def test_a_spark_connect_server_is_used_instead_of_a_master(run, monkeypatch):
    status, _, _, calls = run("archive", "/a", *TARGET, "--remote", "sc://s:1")
    assert (status, calls[0][0]) == (0, ("quorumlog archive", "sc://s:1"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://s:2")
    status, _, _, calls = run("export", "/a", *TARGET)
    assert (status, calls[0][0]) == (0, ("quorumlog export", "sc://s:2"))


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        ("sc://127.0.0.1:1", "no Spark Connect server answers at sc://127.0.0.1:1"),
        ("spark://127.0.0.1:1", "'spark://127.0.0.1:1' is not sc://host:port"),
        ("sc://127.0.0.1:x", "'sc://127.0.0.1:x' is not sc://host:port"),
    ],
)
def test_an_unreachable_spark_connect_server_is_reported_at_once(remote, message, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    assert main(["pipeline", "audit", str(tmp_path), "--remote", remote]) == 1
    assert message in capsys.readouterr().err


def test_remote_and_master_exclude_each_other(tmp_path, capsys):
    (tmp_path / "data").mkdir()
    arguments = ["--remote", "sc://127.0.0.1:1", "--master", "local[2]"]
    assert main(["pipeline", "audit", str(tmp_path), *arguments]) == 2
    assert "either --master or --remote" in capsys.readouterr().err


@pytest.mark.parametrize("group", [("--group", "g"), ()])
@pytest.mark.parametrize("name", ["archive", "export", "replay", "stats"])
def test_servers_that_do_not_answer_are_reported_before_spark_is_started(
    name, group, monkeypatch, tmp_path, capsys
):
    def started(*_, **__):
        raise AssertionError("Spark was started")

    monkeypatch.setattr("quorumlog.spark.session", started, raising=False)
    paths = () if name == "stats" else (str(tmp_path / "a"),)
    servers = ("--servers", "127.0.0.1:1,127.0.0.1:2")
    assert main(["pipeline", name, *paths, *servers, *group, "--timeout", "0.2"]) == 1
    message = capsys.readouterr().err
    assert "none of the servers 127.0.0.1:1,127.0.0.1:2 answered within 0.2 s" in message
    assert not any(tmp_path.iterdir())


def test_an_archive_of_something_else_is_reported_before_spark_is_started(run, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / MANIFEST_NAME).write_text('{"format_version": 1, "of": "topics"}')
    for arguments in (("archive", tmp_path, *TARGET), ("audit", tmp_path, "--archive", tmp_path)):
        status, out, err, calls = run(*arguments)
        assert (status, out, calls) == (1, "", [])
        assert "is an archive of topics, not a group" in err
    assert "holds no archive" in run("audit", tmp_path, "--archive", tmp_path / "none")[2]


def test_replay_and_export_ask_for_what_the_options_say(run):
    status, out, _, calls = run("replay", "/a", *TARGET, "--allow-gaps")
    assert status == 0
    assert calls[-1][1]["allow_gaps"] is True
    assert REPLAYED.digest in out
    assert "70 entries appended, 20 were there already" in out
    status, out, _, calls = run(
        *("export", "/out", *TARGET, "--format", "csv", "--bodies", "base64", "--from", 3),
        *("--to", 8, "--single-file", "--overwrite"),
    )
    assert status == 0
    arguments, options = calls[-1]
    assert arguments[-1] == "csv"
    assert (options["bodies"], options["first"], options["last"]) == ("base64", 3, 8)
    assert (options["single_file"], options["overwrite"]) == (True, True)
    assert "10 entries, 3 of them in base64, 500 bytes" in out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("archive", {"rows": 90, "new_rows": 55, "lost_entries": 10, "last_index": 104}),
        ("replay", {"appended_entries": 70, "digest": "d1" * 32}),
        ("export", {"rows": 10, "base64_rows": 3}),
    ],
)
def test_json_is_one_object(run, name, expected):
    status, out, _, _ = run(name, "/a", *TARGET, "--json")
    assert (status, out.count("\n")) == (0, 1)
    assert expected.items() <= json.loads(out).items()


@pytest.mark.parametrize("name", ["archive", "replay", "export"])
def test_a_failure_is_one_line_and_status_1(run, name):
    status, out, err, _ = run(name, "/a", *TARGET, **{name: PipelineError("no room; make some")})
    assert (status, out, err) == (1, "", "quorumlog: no room; make some\n")


def test_follow_goes_on_until_it_is_interrupted(run, monkeypatch):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.time, "sleep", pause)
    status, out, _, _ = run("archive", "/a", *TARGET, "--follow", "2", "--json")
    assert (status, pauses, out.count("\n")) == (130, [2, 2, 2], 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", *TARGET),
        ("archive", "/a"),
        ("archive", "/a", *TARGET, "--partition-by", "hour"),
        ("export", "/a", *TARGET, "--format", "xml"),
        ("replay", "/a", *TARGET, "--dir", "d"),
    ],
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err, calls = run(*arguments)
    assert (status, out, calls) == (2, "", [])
    assert "Usage: quorumlog pipeline" in err


def in_a_process(code):
    return subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )


def test_without_spark_a_user_is_told_what_to_install():
    done = in_a_process(
        "import sys; sys.modules['pyspark'] = None\n"
        "from quorumlog.cli.main import main\n"
        "sys.exit(main(['pipeline', 'archive', '/a', '-s', 'h:1', '-g', 'g']))"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'quorumlog[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_starts_without_loading_spark():
    done = in_a_process(
        "import sys, quorumlog.cli.app; print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\n    raise ValueError("first")\nValueError: first\n\n'
            "During handling another exception occurred:\n"
            "quorumlog.model.errors.CorruptionError: entry 7 does not fit\n",
            "CorruptionError: entry 7 does not fit",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'here'\n"
            "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3000)",
            "SparkException: Could not parse Master URL: 'here'",
        ),
        ("Job aborted\nbecause", "Job aborted"),
        ("", "no reason was given"),
    ],
)
def test_the_reason_of_a_failed_task_is_found(text, reason):
    assert reason_of(text) == reason
