"""`quorumlog context`, and which cluster a command is about."""

import json
import logging
import socket
import traceback

import pytest
import typer

from quorumlog.cli.app import run
from quorumlog.cli.errors import CommandError
from quorumlog.cli.target import find_access, find_servers
from quorumlog.client.contexts import Access, Context, read_contexts
from quorumlog.client.kafka_security import secured

CANARY = "canary-7f3a"


@pytest.fixture
def path(tmp_path, monkeypatch):
    for name in ("QUORUMLOG_CONTEXT", "QUORUMLOG_SERVERS", "QUORUMLOG_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "own" / "contexts.toml"
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(found))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def password(tmp_path):
    made = tmp_path / "alice.pw"
    made.write_text(f"{CANARY}\n")
    made.chmod(0o600)
    return made


THREE = """# mine
default = "prod"

[contexts.laptop]
servers = "127.0.0.1:7101"

# of the company
[contexts."prod"] # its table
servers = "h:1"
kafka = "h:9"

# the old one
[contexts.old]
servers = "h:2"
"""


def test_a_context_is_removed_and_all_else_stays_as_it_was(path, capsys):
    path.parent.mkdir()
    path.write_text(THREE)
    path.chmod(0o600)
    assert run(["context", "remove", "laptop"]) == 0
    assert run(["context", "show", "laptop"]) == 1
    assert path.read_text() == THREE.replace(
        '[contexts.laptop]\nservers = "127.0.0.1:7101"\n\n', ""
    )
    assert run(["context", "remove", "prod"]) == 0
    assert "there is no default now" in capsys.readouterr().out
    found = read_contexts(path)
    assert (found.default, list(found.by_name)) == ("", ["old"])
    assert "# the old one\n[contexts.old]" in path.read_text()
    assert run(["context", "remove", "old"]) == 0
    assert read_contexts(path).by_name == {}
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(["context", "list"]) == 0
    capsys.readouterr()
    assert run(["context", "remove", "old"]) == 1
    assert "there is no context 'old'" in capsys.readouterr().err


def test_a_context_that_is_no_table_of_its_own_is_not_removed(path, capsys):
    path.parent.mkdir()
    text = '[contexts]\na = {servers = "h:1"}\nb = {servers = "h:2"}\n'
    path.write_text(text)
    path.chmod(0o600)
    assert run(["context", "remove", "a"]) == 1
    assert "nothing is changed: context a is not a table of its own" in capsys.readouterr().err
    assert path.read_text() == text


def test_contexts_are_added_shown_and_chosen(path, password, capsys):
    assert run(["context", "add", "laptop", "--servers", "127.0.0.1:7101"]) == 0
    login = ["--user", "alice", "--password-file", "alice.pw"]
    assert run(["context", "add", "prod", "--servers", "h:1", "--kafka", "h:9", *login]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(["context", "use", "prod"]) == 0
    found = read_contexts(path)
    assert found.default == "prod"
    assert found.named("prod").password_file == str(password)
    capsys.readouterr()
    assert run(["context", "list", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["context"], line["default"]) for line in lines] == [
        ("laptop", False),
        ("prod", True),
    ]
    assert run(["context", "list"]) == 0
    assert run(["context", "show", "prod"]) == 0
    printed = capsys.readouterr()
    assert "TLS, alice" in printed.out
    assert CANARY not in printed.out + printed.err


def test_absent_contexts_and_the_way_to_a_default_are_told(path, capsys):
    assert run(["context", "list"]) == 0
    assert f"{path} is not there yet" in capsys.readouterr().err
    for name in ("a", "b"):
        assert run(["context", "add", name, "--servers", "h:1"]) == 0
        use = f"'quorumlog context use {name}' makes it the default"
        assert capsys.readouterr().err == f"quorumlog: {use}, for commands without --context\n"
        if name == "a":
            assert run(["status"]) == 2
            assert "context use NAME" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert run(["context", "use", "a"]) == 0
    capsys.readouterr()
    assert run(["context", "add", "c", "--servers", "h:1"]) == 0
    assert capsys.readouterr().err == ""


def test_choosing_keeps_what_else_is_in_the_file(path, capsys):
    path.parent.mkdir()
    path.write_text(
        '# mine\n[contexts.a]\nservers = "h:1" # first\n[contexts.b]\nservers = "h:2"\n'
    )
    path.chmod(0o600)
    for name in ("a", "b"):
        assert run(["context", "use", name]) == 0
        assert read_contexts(path).default == name
    assert path.read_text().count("default") == 1
    assert "# mine" in path.read_text()
    assert "# first" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "a", "--servers", "h:1"], "there is a context a already"),
        (["add", "b", "--servers", "127.0.0.1"], "'127.0.0.1' is not host:port"),
        (["add", "b", "--servers", "h:1,h", "--kafka", "h:9"], "'h' is not host:port"),
        (["add", "b", "--servers", "h:1", "--ca", "none.pem"], "none.pem: No such file"),
        (["add", "b", "--servers", "h:1", "--cluster-id", "x"], "--cluster-id is a cluster's id"),
        (["add", "b c", "--servers", "h:1"], "nothing is changed: .*'b c' is not usable"),
        (["use", "b"], "there is no context 'b'"),
        (["show", "b"], "there is no context 'b'"),
    ],
)
def test_what_makes_no_context_changes_nothing(path, capsys, arguments, said):
    assert run(["context", "add", "a", "--servers", "h:1"]) == 0
    before = path.read_text()
    assert run(["context", *arguments]) == 1
    assert pytest.raises(AssertionError, match=said).matches(
        AssertionError(capsys.readouterr().err)
    )
    assert path.read_text() == before


def test_a_command_is_told_of_one_cluster(path):
    path.parent.mkdir()
    path.touch()
    given = {"directory": None, "servers": None, "context": None}
    assert find_access(**given | {"servers": "h:1"}) == Access(given=Context(servers="h:1"))
    assert find_access(**given | {"context": "prod"}) == Access(context="prod")
    with pytest.raises(typer.BadParameter, match="give one of --context, --dir and --servers"):
        find_access(**given | {"servers": "h:1", "context": "prod"})
    with pytest.raises(typer.BadParameter, match="give --dir DIR or --servers HOST:PORT"):
        find_access(**given)


def test_a_password_is_asked_for_only_at_a_terminal(path, monkeypatch):
    path.parent.mkdir()
    path.write_text('[contexts.prod]\nservers = "h:1"\nuser = "alice"\n')
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(CommandError, match="Password of alice is in no file, and there is no term"):
        find_servers(None, None, "prod")

    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda question: CANARY)
    assert find_servers(None, None, "prod").security.password.reveal() == CANARY


def test_no_command_shows_a_secret(path, password, capsys, caplog, monkeypatch):
    """Whatever fails: with a password from a file and one from the environment."""
    monkeypatch.setenv("PW", CANARY)
    caplog.set_level(logging.DEBUG)
    path.parent.mkdir()
    words = {"file": f'passwordFile = "{password}"', "env": 'passwordEnv = "PW"'}
    tables = [
        f"[contexts.{name}]\nservers = '127.0.0.1:1'\nkafka = '127.0.0.1:1'\nuser = 'a'\n{word}\n"
        for name, word in words.items()
    ]
    path.write_text("".join(tables))
    path.chmod(0o600)
    shown = []
    for name in words:
        for command in (
            ["status", "--timeout", "0.2"],
            ["append", "x", "--group", "g", "--timeout", "0.2"],
            ["topic", "list", "--timeout", "1"],
            ["context", "show", "--json"],
        ):
            named = [name] if command[0] == "context" else ["--context", name]
            run([*command, *named])
        try:
            left, right = socket.socketpair()
            right.close()
            secured(left, "127.0.0.1", find_servers(None, None, name).security)
        except OSError as error:
            trace = traceback.TracebackException.from_exception(error, capture_locals=True)
            shown += trace.format()
    printed = capsys.readouterr()
    assert "passwordFile" in printed.out
    assert CANARY not in "".join([printed.out, printed.err, caplog.text, *shown])
