"""What the configuration of a node leaves open."""

from types import SimpleNamespace

import pytest

from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.security_config import SecurityConfig
from quorumlog.model.tls_config import TlsConfig
from quorumlog.service.security_check import findings_of

DAY_S = 86_400.0
FILES = {"certificate": "c", "key": "k", "ca": "a"}


def words(tls=None, security=None, files=None, **config):
    made = NodeConfig(
        self_id="n0",
        store_base_dir="/nowhere",
        groups=[GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers="n0-127.0.0.1:1")],
        tls=None if tls is None else TlsConfig(**FILES, **tls),
        security=None if security is None else SecurityConfig(**security),
        **config,
    )
    return [word for word, text in findings_of(made, files) if text]


def files(*, has_failed=False, **left_days):
    left = {key: days * DAY_S for key, days in left_days.items()}
    return SimpleNamespace(has_failed=has_failed, seconds_left=left)


def test_nothing_is_open_where_all_is_required():
    assert words({}, {}, files(certificate=365, ca=3_650, crl=30)) == []


@pytest.mark.parametrize(
    ("tls", "security", "config", "expected"),
    [
        (None, None, {}, ["no-tls", "no-security"]),
        (None, {}, {}, ["no-tls"]),
        ({"mode": "optional"}, {}, {}, ["tls-optional"]),
        ({}, None, {}, ["no-security"]),
        ({}, {"login": "optional"}, {}, ["login-optional"]),
        ({}, {"login": "none"}, {}, ["login-optional"]),
        ({"client_auth": "required"}, {"login": "none"}, {}, []),
        ({}, {"authorization": "log"}, {}, ["authorization-log"]),
        ({}, {"authorization": "off"}, {}, ["authorization-off"]),
        ({}, {}, {"insecure": True}, ["insecure"]),
        ({}, {}, {"audit_files": 0}, ["no-audit-log"]),
        ({}, {}, {"admin_listen": "0.0.0.0:1"}, []),
        (
            {},
            {},
            {"admin_listen": "0.0.0.0:1", "admin_anonymous": "all"},
            ["admin-port-open"],
        ),
        ({}, {}, {"admin_listen": "127.0.0.1:1", "admin_anonymous": "all"}, []),
    ],
)
def test_each_thing_that_is_open_has_a_word(tls, security, config, expected):
    assert words(tls, security, **config) == expected


def test_files_that_expire_or_cannot_be_used_are_told_of():
    assert words({}, {}, files(certificate=29, ca=31, crl=8)) == ["expires-certificate"]
    assert words({}, {}, files(certificate=31, crl=6)) == ["expires-crl"]
    assert words({}, {}, files(certificate=-1, ca=-2)) == ["expired-certificate", "expired-ca"]
    assert words({}, {}, files(has_failed=True)) == ["tls-files-refused"]
