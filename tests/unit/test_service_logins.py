"""The logins of a node: the file of keys, and the lines about refusals."""

import json
import logging
import os
from types import SimpleNamespace

import pytest

from login_access import Clock, Issuer
from quorumlog.auth.login import LoginEvent, origin_of
from quorumlog.auth.sasl import Reason
from quorumlog.model.errors import ConfigError
from quorumlog.model.security_config import SecurityConfig
from quorumlog.service.logins import (
    JWKS_BYTES_MAX,
    JWKS_CHECK_S,
    TokenKeys,
    _audited,
    warn_of_no_super_user,
    warn_of_plain_peers,
    write_line,
)
from quorumlog.transport.client_lines import ClientLines

CLOCK = Clock()
ISSUER = Issuer(CLOCK.wall_ms)


def names(keys):
    return [one.key_id for one in keys()]


def test_the_keys_of_tokens_are_read_again_when_their_file_changes(tmp_path, caplog):
    path, clock = tmp_path / "keys.json", Clock()
    path.write_bytes(ISSUER.jwks)
    keys = TokenKeys(str(path), clock.now)
    assert names(keys) == ["RS256", "ES256", "EdDSA"]
    path.write_text(json.dumps({"keys": ISSUER.entries[:1]}))
    assert names(keys) == ["RS256", "ES256", "EdDSA"], "it is looked at every ten seconds"
    clock.s += JWKS_CHECK_S
    assert names(keys) == ["RS256"]
    for content in (b"{", b"[" * 200_000, None):
        path.write_bytes(content) if content else path.unlink()
        clock.s += JWKS_CHECK_S
        assert names(keys) == ["RS256"]
    assert [one.levelname for one in caplog.records] == ["ERROR"] * 3
    assert "goes on with the keys of tokens that it has" in caplog.text
    assert keys.has_failed
    path.write_bytes(ISSUER.jwks)
    clock.s += JWKS_CHECK_S
    assert names(keys) == ["RS256", "ES256", "EdDSA"]
    assert not keys.has_failed
    path.write_text('{"keys": []}')
    clock.s += JWKS_CHECK_S
    assert (names(keys), keys.has_failed) == ([], False), "nobody's tokens count any more"


def test_a_file_of_keys_that_could_not_be_read_is_tried_again(tmp_path, monkeypatch):
    path, clock = tmp_path / "keys.json", Clock()
    path.write_bytes(ISSUER.jwks)
    keys = TokenKeys(str(path), clock.now)
    path.write_text(json.dumps({"keys": ISSUER.entries[:1]}))
    with monkeypatch.context() as patched:  # as with EACCES, of which the stamp shows nothing

        def refused(*given):
            raise PermissionError(13, "Permission denied")

        patched.setattr("quorumlog.service.logins.read_regular", refused)
        clock.s += JWKS_CHECK_S
        assert names(keys) == ["RS256", "ES256", "EdDSA"]
    clock.s += JWKS_CHECK_S
    assert names(keys) == ["RS256"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: "),
        (b"[]", "is no JWKS"),
        (b" " * (JWKS_BYTES_MAX + 1), "cannot be read: it has more than"),
    ],
)
def test_a_node_does_not_start_with_a_file_of_keys_of_no_use(tmp_path, content, reason):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        TokenKeys(str(path), Clock().now)


def test_a_file_of_keys_that_is_no_regular_one_is_not_waited_for(tmp_path):
    path, clock = tmp_path / "keys.json", Clock()
    path.write_bytes(ISSUER.jwks)
    keys = TokenKeys(str(path), clock.now)
    path.unlink()
    os.mkfifo(path)
    clock.s += JWKS_CHECK_S
    assert names(keys) == ["RS256", "ES256", "EdDSA"]
    assert keys.has_failed
    with pytest.raises(ConfigError, match="cannot be read: it is no regular file"):
        TokenKeys(str(path), clock.now)


def test_an_address_has_one_line_a_minute_about_refused_logins(caplog):
    clock = Clock()
    lines = ClientLines(logging.getLogger("test"), clock.now)

    def refused(address, user, reason=Reason.PASSWORD):
        write_line(lines, LoginEvent(address, "PLAIN", user, reason, "why"))

    refused("192.0.2.1:5000", "alice")
    refused("192.0.2.1:5001", "bob")
    refused("2001:db8::1:5000", "alice\nforged line")
    refused("192.0.2.1:5000", "alice", None)  # it was let in
    assert len(caplog.records) == 2
    clock.s += 60
    refused("192.0.2.1:5000", "carol")
    assert len(caplog.records) == 3
    assert "\nforged" not in caplog.text


def test_a_refused_login_is_audited_with_the_port_and_with_a_user_if_one_was_named():
    origin = origin_of("192.0.2.1:5000", is_encrypted=True)
    assert (origin.address, origin.remote) == ("192.0.2.1", "192.0.2.1:5000")
    for user, resource in (("alice", "user:alice"), ("", "")):
        told = _audited(LoginEvent(origin.remote, "PLAIN", user, None), Reason.PASSWORD)
        assert (told.address, told.resource) == ("192.0.2.1:5000", resource)


@pytest.mark.parametrize(
    ("security", "mode", "is_warned"),
    [(True, "", True), (True, "optional", True), (True, "required", False), (False, "", False)],
)
def test_a_node_says_that_nobody_proves_to_be_a_peer(security, mode, is_warned, caplog):
    config = SimpleNamespace(
        self_id="n0",
        security=object() if security else None,
        tls=SimpleNamespace(mode=mode) if mode else None,
    )
    warn_of_plain_peers(config)
    assert ("is believed to be a peer" in caplog.text) == is_warned


@pytest.mark.parametrize(
    ("security", "client_auth", "said"),
    [
        ({}, "optional", "superUsers in [security] names nobody"),
        ({"super_users": ["User:admin"]}, "optional", ""),
        ({"super_users": ["User:admin"]}, "required", ""),
        ({"super_users": ["User:admin"]}, "none", "no client can show one here"),
        ({"super_users": ["User:admin"]}, "", "no client can show one here"),
        ({"authorization": "log"}, "optional", ""),
        ({"authorization": "off"}, "", ""),
        (None, "", ""),
    ],
)
def test_a_node_says_at_its_start_that_no_super_user_can_ever_come(
    security, client_auth, said, caplog
):
    config = SimpleNamespace(
        self_id="n0",
        security=None if security is None else SecurityConfig(**security),
        tls=SimpleNamespace(client_auth=client_auth) if client_auth else None,
    )
    warn_of_no_super_user(config)
    assert len(caplog.records) == bool(said)
    assert not said or said in str(vars(caplog.records[0]))
