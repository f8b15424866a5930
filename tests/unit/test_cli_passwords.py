"""Where the command line has a new password from."""

import getpass
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorumlog.cli.errors import CommandError
from quorumlog.cli.passwords import new_password
from quorumlog.client.contexts import NEW_PASSWORD_VARIABLE as VARIABLE
from quorumlog.client.secret_sources import secret_from_file
from quorumlog.model.errors import ConfigError


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
    with pytest.raises(ConfigError, match=f"{VARIABLE} is not set, or empty"):
        new_password(None, "alice")


def test_a_file_has_it_alone_and_is_read_as_that_of_a_context(terminal, tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b" first \r\n")
    file.chmod(0o600)
    assert new_password(file, "alice") == " first "
    assert secret_from_file(file, "password file").reveal() == " first "
    for content, error, said in (
        (b"", ConfigError, "is empty"),
        (b"\xff\n", ConfigError, "in UTF-8"),
        (b"first\nsecond\n", CommandError, "more than one line"),
        (b"first\n\n", CommandError, "more than one line"),
        (b"\n", ConfigError, "is empty"),
    ):
        file.write_bytes(content)
        with pytest.raises(error, match=said):
            new_password(file, "alice")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        new_password(file, "alice")


def test_the_standard_input_has_it_alone(monkeypatch):
    for content, password in (("piped\n", "piped"), ("piped", "piped")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(content))
        assert new_password(Path("-"), "alice") == password
    for content, said in (("", "has no password"), ("a\nb\n", "more than one line")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(content))
        with pytest.raises(CommandError, match=said):
            new_password(Path("-"), "alice")
