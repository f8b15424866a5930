"""What `user`, `acl` and `quota` understand, and what they ask a cluster for."""

import pytest

from quorumlog.cli.app import run

NOWHERE = "127.0.0.1:1"
COMMANDS = [
    ("user", "list"),
    ("user", "add", "alice"),
    ("user", "passwd", "alice"),
    ("user", "remove", "alice"),
    ("acl", "list"),
    ("acl", "add", "--user", "alice", "--operation", "read", "--topic", "t"),
    ("acl", "check", "--user", "alice", "--operation", "read", "--topic", "t"),
    ("acl", "remove", "--user", "alice"),
    ("quota", "list"),
    ("quota", "set", "--user", "alice", "producer_byte_rate=1"),
    ("quota", "remove", "--user", "alice"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_finds_the_cluster_by_a_context(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "correct horse")
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(f'[contexts.prod]\nservers = "{NOWHERE}"\nca = "lost.pem"\n')
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(contexts))
    assert run([*words, "--context", "prod", "--timeout", "0.2"]) == 1
    assert f"{tmp_path}/lost.pem" in capsys.readouterr().err
    assert run([*words, "--context", "test", "--timeout", "0.2"]) == 1
    assert "there is no context 'test'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [one for one in COMMANDS if "alice" in one], ids=" ".join)
def test_the_name_of_a_user_is_no_principal(words, capsys):
    given = ["User:alice" if word == "alice" else word for word in words]
    assert run([*given, "--servers", NOWHERE]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "give the name alone, 'alice': not 'User:alice'" in said
