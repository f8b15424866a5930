"""Secrets in memory, and the files, variables and prompts that they come from."""

import copy
import os
import pickle
import traceback

import msgspec
import pytest

from quorumlog.client import Security
from quorumlog.client.secret_sources import secret_from_environment, secret_from_file
from quorumlog.model.errors import ConfigError
from quorumlog.model.secrets import SECRET_BYTES_MAX, Secret
from quorumlog.transport.private_files import read_private

CANARY = "canary-7f3a"


def file_with(path, content, rights=0o600):
    path.write_bytes(content)
    path.chmod(rights)
    return path


def test_a_secret_shows_itself_to_nobody_who_does_not_ask():
    secret = Secret(CANARY)
    security = Security(user="alice", password=secret)
    for shown in (str(secret), repr(secret), f"{secret}", repr([secret]), repr(security)):
        assert CANARY not in shown
        assert "***" in shown
    assert secret.reveal() == CANARY


@pytest.mark.parametrize(
    "dump",
    [pickle.dumps, copy.deepcopy, msgspec.json.encode, msgspec.to_builtins],
)
@pytest.mark.parametrize("within", [Secret, lambda it: Security(user="a", password=Secret(it))])
def test_a_secret_is_neither_pickled_nor_copied_nor_encoded(dump, within):
    with pytest.raises(TypeError) as raised:
        dump(within(CANARY))
    assert CANARY not in str(raised.value)


def test_secrets_are_equal_by_what_they_hold():
    assert Secret("a") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


@pytest.mark.parametrize("value", ["", "x" * (SECRET_BYTES_MAX + 1), CANARY + "\ud800"])
def test_what_can_be_no_secret_is_refused_and_not_repeated(value):
    with pytest.raises(ConfigError) as raised:
        Secret(value)
    assert CANARY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"word", "word"),
        (b"word\n", "word"),
        (b"word\r\n", "word"),
        (b"word\n\n", "word\n"),
        (b" a b ", " a b "),
        ("pässword\n".encode(), "pässword"),
    ],
)
def test_a_file_holds_a_secret_and_one_newline_at_most(tmp_path, content, secret):
    path = file_with(tmp_path / "pw", content)
    assert secret_from_file(path, "password file").reveal() == secret


@pytest.mark.parametrize("content", [b"", b"\n", b"a\0b", b"canary-7f3a\xff"])
def test_a_file_without_a_secret_is_refused(tmp_path, content):
    path = file_with(tmp_path / "pw", content)
    with pytest.raises(ConfigError, match=f"password file {path} is empty, or no text") as raised:
        secret_from_file(path, "password file")
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_a_file_of_too_many_bytes_is_refused(tmp_path):
    path = file_with(tmp_path / "pw", b"x" * 11)
    assert read_private(path, "key", 11) == b"x" * 11
    with pytest.raises(ConfigError, match="has more than 10 bytes"):
        read_private(path, "key", 10)


@pytest.mark.parametrize("rights", [0o640, 0o604, 0o620, 0o644, 0o601])
def test_a_file_that_others_can_use_is_refused_with_the_command_that_helps(tmp_path, rights):
    path = file_with(tmp_path / "pw", b"word", rights)
    with pytest.raises(ConfigError, match=f"{rights:04o}.*: chmod 600 {path}$"):
        secret_from_file(path, "password file")


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = file_with(tmp_path / "pw", b"word")
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:  # what root has, any user may use
        assert secret_from_file(path, "password file").reveal() == "word"
        return
    with pytest.raises(ConfigError, match=f"belongs to the user of number {owner}.*chown"):
        secret_from_file(path, "password file")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(ConfigError, match=f"key {path} is no regular file"):
            read_private(path, "key", 100)
    with pytest.raises(ConfigError, match=r"key .*none cannot be read: No such file"):
        read_private(tmp_path / "none", "key", 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_private("a\0b", "key", 100)


def test_a_secret_comes_from_the_environment():
    assert secret_from_environment("PW", {"PW": "word\n"}, "password").reveal() == "word\n"
    for environment in ({}, {"PW": ""}):
        with pytest.raises(ConfigError, match="password: the environment variable PW is not set"):
            secret_from_environment("PW", environment, "password")
