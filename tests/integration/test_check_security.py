"""`quorumlog cluster check-security`: who comes plain or anonymous, and what stands open."""

import asyncio
import json

import confluent_kafka
import pytest
from command_line import command

from certificates import Authority
from login_cluster import login_node
from peer_programs import SECONDS
from quorumlog.client import Client, Security, SyncClient
from quorumlog.model.secrets import Secret
from quorumlog.model.tls_config import TlsConfig
from rights import acl

PASSWORD = "of = all, of them"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def check(*options):
    return command("cluster", "check-security", *options)


def tls_of(authority, **keys):
    own = authority.node("n0")
    return TlsConfig(
        certificate=str(own.certificate), key=str(own.key), ca=str(authority.file), **keys
    )


async def append(address, security=None):
    async with Client(address, "g", security=security) as client:
        await client.append(b"x")


def test_who_comes_plain_or_anonymous_is_shown_and_the_exit_status_says_so(tmp_path, authority):
    with login_node(
        tmp_path, tls_of(authority, mode="optional"), groups=["g"], login="optional"
    ) as node:
        node.add_user("alice", PASSWORD)
        asyncio.run(append(node.address))
        asyncio.run(append(node.address, Security(ca=str(authority.file))))
        login = Security(ca=str(authority.file), user="alice", password=Secret(PASSWORD))
        asyncio.run(append(node.address, login))
        kafka = {"bootstrap.servers": node.kafka, "client.id": "etl"}
        assert confluent_kafka.Producer(kafka).list_topics(timeout=SECONDS).brokers
        status, out, _ = check("--servers", node.address, "--json")
        assert status == 1
        (found,) = [json.loads(line) for line in out.splitlines()]
        assert (found["node"], found["open"], found["error"]) == ("n0", True, None)
        assert [one["finding"] for one in found["findings"]] == [
            "tls-optional",
            "login-optional",
            "authorization-off",
        ]
        seen = {
            (one["principal"], one["host"], one["port"], one["called"], one["plain"])
            for one in found["clients"]
        }
        assert ("User:ANONYMOUS", "127.0.0.1", "kafka", "etl", True) in seen
        plain = {one[-1] for one in seen if one[2] == "native"}
        assert plain == {True, False}
        assert "User:alice" not in {one[0] for one in seen}
        status, out, _ = check("--servers", node.address)
        assert status == 1
        assert "n0: tls-optional: mode = " in out
        assert "plain, anonymous" in out


def test_where_nothing_is_open_the_exit_status_is_0(tmp_path, authority, monkeypatch):
    with login_node(
        tmp_path, tls_of(authority), groups=["g"], authorization="on", super_users=["User:root"]
    ) as node:
        node.add_user("alice", PASSWORD)
        node.add_user("eve", PASSWORD)
        node.give([acl("User:alice", "describe cluster")])
        (tmp_path / "password").write_text(PASSWORD)
        (tmp_path / "password").chmod(0o600)
        contexts = tmp_path / "contexts.toml"
        contexts.write_text(
            f'[contexts.alice]\nservers = "{node.address}"\nca = "{authority.file}"\n'
            f'user = "alice"\npasswordFile = "password"\n'
        )
        contexts.chmod(0o600)
        monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(contexts))
        assert check("--context", "alice") == (0, "n0: nothing is open\n", "")
        security = Security(ca=str(authority.file), user="eve", password=Secret(PASSWORD))
        with SyncClient(node.address, "g", security=security) as client:
            (found,) = client.security.check_nodes()
        assert found.is_open
        assert "eve may not describe the cluster" in found.error
        assert (found.findings, found.clients) == ((), ())


def test_a_node_that_does_not_answer_is_said_to_be_open():
    status, out, _ = check("--servers", "127.0.0.1:1", "--timeout", "1")
    assert status == 1
    assert out.startswith("cannot connect to 127.0.0.1:1: ")
