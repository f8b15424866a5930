"""What `user`, `acl` and `quota` understand, and what they ask a cluster for."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from quorumlog.cli import user as user_commands
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


@pytest.mark.parametrize("left", [[], ["an ACL"]])
@pytest.mark.parametrize("words", [("user", "add"), ("user", "remove")], ids=" ".join)
@pytest.mark.parametrize(
    ("name", "pasted"), [("alice", "--user alice"), ("a b", "--user 'a b'"), ("al\u200bice", "")]
)
def test_a_command_is_hinted_at_only_if_it_can_be_pasted(
    words, left, name, pasted, monkeypatch, capsys
):
    security = SimpleNamespace(
        add_user=lambda *_, **__: None, remove_user=lambda _: None, acls=lambda _: left
    )
    client = nullcontext(SimpleNamespace(security=security))
    monkeypatch.setattr(user_commands, "cluster_client", lambda *_: client)
    monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "correct horse")
    assert run([*words, name, "--servers", NOWHERE]) == 0
    said = capsys.readouterr().err
    is_said = bool(left) or words == ("user", "add")
    assert bool(said) == is_said
    assert ("quorumlog acl" in said) == (is_said and bool(pasted))
    assert not is_said or pasted in said
