"""What a broker says of where clients connect to it, and how."""

from types import SimpleNamespace

import pytest

from quorumlog.kafka.handlers.configs import _Known
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.security_config import SecurityConfig
from quorumlog.model.tls_config import TlsConfig

BROKER = 4
TLS = TlsConfig(certificate="c", key="k", ca="a")
TOKENS = SecurityConfig(
    mechanisms=["OAUTHBEARER"], oauth_jwks_file="j", oauth_issuer="i", oauth_audience="q"
)
PASSWORDS = SecurityConfig(login="optional")
CLUSTER = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers="n0-127.0.0.1:1")


@pytest.mark.parametrize(
    ("host", "secured", "said"),
    [
        ("10.0.0.1", {}, "PLAINTEXT://10.0.0.1:9092"),
        ("fd00::1", {}, "PLAINTEXT://[fd00::1]:9092"),
        ("b.example", {"tls": TLS}, "SSL://b.example:9092"),
        ("b.example", {"tls": TLS, "security": TOKENS}, "SASL_SSL://b.example:9092"),
        ("b.example", {"security": PASSWORDS}, "SASL_PLAINTEXT://b.example:9092"),
        ("b.example", {"security": SecurityConfig(login="none")}, "PLAINTEXT://b.example:9092"),
        (
            "b.example",
            {"tls": TLS, "security": SecurityConfig(login="none")},
            "SSL://b.example:9092",
        ),
    ],
)
def test_the_listener_that_is_described_is_the_one_that_clients_have_to_use(host, secured, said):
    broker = SimpleNamespace(broker_id=0, rack="", host=host, port=9092, node_id="n0")
    view = SimpleNamespace(topics={}, defaults={}, registered={0: broker})
    config = NodeConfig(self_id="n0", store_base_dir="/d", groups=[CLUSTER], **secured)
    entries = _Known(view, config).entries(BROKER, "0")
    assert {one.name: one.created()["value"] for one in entries}["advertised.listeners"] == said
