"""Where the command line has a new password from."""

import getpass
import sys
from types import SimpleNamespace

import pytest

from quorumlog.cli.errors import CommandError
from quorumlog.cli.passwords import VARIABLE, new_password


@pytest.fixture
def terminal(monkeypatch):
    """Somebody types passwords at a terminal: those in the list that is returned."""
    typed = []
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(getpass, "getpass", lambda prompt: typed.pop(0))
    return typed


def test_a_password_is_asked_for_twice(terminal):
    terminal += ["secret", "secret"]
    assert new_password(None, "alice") == "secret"
    terminal += ["secret", "secert"]
    with pytest.raises(CommandError, match="the two passwords differ"):
        new_password(None, "alice")


def test_the_environment_may_hold_it(terminal, monkeypatch):
    monkeypatch.setenv(VARIABLE, "from there")
    assert new_password(None, "alice") == "from there"
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(CommandError, match=f"{VARIABLE} has no password"):
        new_password(None, "alice")


def test_a_file_has_it_in_its_first_line(terminal, tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"first\nsecond\n")
    file.chmod(0o600)
    assert new_password(file, "alice") == "first"
    for content, said in ((b"", "no password in its first line"), (b"\xff\n", "in UTF-8")):
        file.write_bytes(content)
        with pytest.raises(CommandError, match=said):
            new_password(file, "alice")
    file.chmod(0o640)
    with pytest.raises(CommandError, match="chmod 600"):
        new_password(file, "alice")
