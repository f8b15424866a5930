"""Exit statuses and what a user is told, without any cluster."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
import typer.main
from rich.text import Text

from quorumlog.cli.app import app
from quorumlog.cli.main import main
from quorumlog.cli.target import only_group


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_cluster_that_has_only_groups_of_brokers_has_none_to_choose():
    with pytest.raises(typer.BadParameter, match="no groups but those of its brokers"):
        only_group([], None)


def test_version(run):
    assert run("--version") == (0, f"quorumlog {version('quorumlog')}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("serve",),
        ("get",),
        ("get", "seven", "--servers", "127.0.0.1:1"),
        ("append", "x"),
        ("append", "x", "--servers", "127.0.0.1:1", "--dir", "d"),
        ("tail", "--from", "sometime", "--servers", "127.0.0.1:1"),
        ("cluster", "kill", "--dir", "d"),
        ("cluster", "kill", "n0", "--leader", "--dir", "d"),
        ("cluster", "up"),
    ],
)
def test_161_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage: quorumlog" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "t", "--config", "k=1", "--config", "k=2"),
        ("topic", "alter", "t", "--config", "k=1", "--config", " k=2"),
        ("topic", "alter", "t", "--config", "k=1", "--delete-config", "k"),
        ("topic", "alter", "t", "--delete-config", "k", "--delete-config", "k"),
        ("broker-config", "alter", "--add-config", "k=1", "--delete-config", "k"),
        ("group", "create", "g", "--set", "k=1", "--set", "k=2"),
        ("group", "alter", "g", "--set", "k=1", "--unset", "k"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(run, arguments):
    servers = "--servers" if arguments[0] == "group" else "--bootstrap-server"
    status, out, error = run(*arguments, servers, "127.0.0.1:1")
    assert (status, out) == (2, "")
    assert "k is given twice" in error


def test_161_short_and_long_options_are_the_same(run, tmp_path):
    long = run("get", "0", "--dir", tmp_path, "--group", "g")
    assert long == run("get", "0", "-d", tmp_path, "-g", "g")
    assert long[0] == 1


def test_161_an_own_id_that_is_not_among_the_peers_is_refused(run, tmp_path):
    config = tmp_path / "n9.toml"
    config.write_text(
        f'selfId = "n9"\nstoreBaseDir = "{tmp_path}"\n'
        '[[groups]]\ngroup = "g"\npeers = "n0-127.0.0.1:7101"\n'
    )
    status, _, err = run("serve", "--config", config)
    assert status == 1
    assert str(config) in err
    assert "n9" in err


@pytest.mark.parametrize("command", [("cluster", "status"), ("cluster", "down"), ("status",)])
def test_a_directory_without_a_cluster_is_one_clear_line(run, tmp_path, command):
    status, out, err = run(*command, "--dir", tmp_path)
    assert (status, out) == (1, "")
    assert err.startswith(f"quorumlog: {tmp_path} holds no cluster")
    assert err.count("\n") == 1


def test_up_refuses_a_directory_with_other_files(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    status, _, err = run("cluster", "up", "--dir", tmp_path)
    assert status == 1
    assert "thesis.tex" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_server_answering_is_status_1(run):
    status, out, err = run("append", "x", "-s", "127.0.0.1:1", "-g", "g", "--timeout", "0.2")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "127.0.0.1:1" in err


def test_json_is_one_object_a_line(run, tmp_path):
    assert run("store", "dump", tmp_path, "--json")[0] == 1
    status, out, _ = run("cluster", "status", "--dir", tmp_path, "--json")
    assert (status, [json.loads(line) for line in out.splitlines()]) == (1, [])


def test_ctrl_c_while_the_command_is_loaded_is_status_130():
    script = (
        "import builtins, sys\n"
        "from quorumlog.cli.main import main\n"
        "load = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'typer':\n"
        "        raise KeyboardInterrupt\n"
        "    return load(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "sys.exit(main(['status', '--servers', '127.0.0.1:1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_next_to_nothing_is_loaded_before_ctrl_c_is_handled():
    script = (
        "import sys\n"
        "from quorumlog.cli.main import main\n"
        "print(sorted(name for name in sys.modules if name.startswith('quorumlog')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = ["", ".cli", ".cli.main", ".model", ".model.release"]
    assert done.stdout.decode() == f"{['quorumlog' + name for name in loaded]}\n"


def test_the_old_name_of_history_still_works_and_is_warned_of(capsys):
    run = ("simulate", "--seeds", "1", "--seconds", "1", "--jobs", "1")
    assert main([*run, "--history"]) == 0
    new, quiet = capsys.readouterr()
    assert main([*run, "--story"]) == 0
    old, warned = capsys.readouterr()
    assert new.startswith("seed 0: ")
    assert old.splitlines()[:-1] == new.splitlines()[:-1]
    assert "--story is now called --history" in warned
    assert "--story" not in quiet


def test_b14_runs_of_partitions_can_be_asked_for_and_repeated(capsys):
    def outcomes_of(*arguments):
        assert main(["simulate", *arguments, "--jobs", "1", "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    outcomes = outcomes_of("--seeds", "2", "--seconds", "1", "--partitions")
    assert all("partitions of topics" in outcome["faults"] for outcome in outcomes)
    command = outcomes[1]["command"].split()
    assert outcomes_of(*command[2:]) == outcomes[1:]


def test_b14_runs_of_brokers_can_be_asked_for(capsys):
    run = ("simulate", "--seeds", "1", "--seconds", "1", "--brokers", "--jobs", "1", "--json")
    assert main([*run]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["faults"][0] == "brokers"
    assert outcome["command"].endswith(" --brokers")


def test_runs_are_of_partitions_or_of_brokers(capsys):
    assert main(["simulate", "--brokers", "--partitions"]) != 0
    assert "--brokers" in capsys.readouterr().err


def test_a_member_without_its_host_is_refused_before_anybody_is_asked(capsys):
    assert main(["members", "add", "n3", "7104", "--servers", "127.0.0.1:1"]) == 1
    assert "'7104' is not host:port, such as 127.0.0.1:7101" in capsys.readouterr().err


def paths(command, path=()):
    """Yield the words of each command."""
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from paths(each, (*path, name))


def helps(command):
    """Yield all texts of the help of a command."""
    yield command.help or ""
    yield command.epilog or ""
    for each in command.params:
        yield getattr(each, "help", None) or ""
    for each in getattr(command, "commands", {}).values():
        yield from helps(each)


def test_no_word_in_brackets_is_taken_for_markup_and_lost():
    texts = [*helps(typer.main.get_command(app))]
    assert len(texts) > 500
    assert [one for one in texts if Text.from_markup(one).plain != one] == []


@pytest.mark.parametrize("path", [*paths(typer.main.get_command(app))], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns_and_loses_nothing(run, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(*path, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert re.findall(r"[^\s│]+…", out) == []
