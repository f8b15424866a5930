"""A node inside a program that speaks TLS and judges rights, as one of `quorumlog serve` does."""

import asyncio
from contextlib import asynccontextmanager

import pytest

import quorumlog.errors as qe
from certificates import CLUSTER_ID, Authority
from quorumlog import Client, Node
from quorumlog.client import Security
from quorumlog.local.ports import free_ports
from small_files import SMALL_SETTINGS

SECONDS = 60
FILE = """
selfId = "n0"
storeBaseDir = "{place}/n0"

[tls]
certificate = "n0.pem"
key = "n0.key"
ca = "{ca}"

[security]
superUsers = ["User:admin"]

[[groups]]
group = "g"
peers = "n0-127.0.0.1:{port}"
mappedFileSizeForEntryData = 8388608
mappedFileSizeForEntryIndex = 32768
diskAmpleBytes = 1073741824

[[groups]]
group = "__cluster"
kind = "cluster"
peers = "n0-127.0.0.1:{port}"
mappedFileSizeForEntryData = 8388608
mappedFileSizeForEntryIndex = 32768
diskAmpleBytes = 1073741824
"""


@pytest.fixture
def pki(tmp_path):
    made = Authority(tmp_path)
    made.node("n0")
    for user in ("admin", "bob"):
        made.user(user)
    return made


def security_of(pki, user=""):
    files = {"certificate": f"{user}.pem", "key": f"{user}.key"} if user else {}
    own = {name: str(pki.directory / file) for name, file in files.items()}
    return Security(ca=str(pki.file), cluster_id=CLUSTER_ID, **own)


@asynccontextmanager
async def embedded(pki, security=None):
    (port,) = free_ports(1)
    path = pki.directory / "n0.toml"
    place = pki.directory / str(port)
    place.mkdir()
    path.write_text(FILE.format(place=place, ca=pki.file, port=port))
    async with Node(path, security=security) as node:
        assert await asyncio.wait_for(node.group("g").wait_leader(), SECONDS) == "n0"
        address = f"127.0.0.1:{port}"
        async with Client(address, "g", security=security_of(pki, "bob")) as client:
            with pytest.raises(qe.NotAuthorizedError, match="bob may not"):
                await client.append(b"once the node knows who may do what")
        yield node, address


async def test_a_remote_client_gets_what_its_certificate_may_have(pki):
    async with embedded(pki) as (node, address):
        async with Client(address, "g", security=security_of(pki, "admin")) as client:
            await client.append(b"from a super user")
        async with Client(address, "g", timeout_ms=SECONDS * 1000) as client:
            with pytest.raises(qe.HandshakeError, match="this port speaks TLS"):
                await client.append(b"without TLS")
        bodies = [one.body async for one in node.group("g").read(follow=False)]
        assert bodies == [b"from a super user"]


async def test_a_program_creates_groups_as_the_user_that_it_is(pki):
    async with embedded(pki, security_of(pki, "admin")) as (node, _):
        found = await node.create_group("made", replicas=1, settings=SMALL_SETTINGS)
        assert found.group == "made"
        await node.group("made").append(b"x")
        await node.delete_group("made")
    async with embedded(pki, security_of(pki, "bob")) as (node, _):
        with pytest.raises(qe.NotAuthorizedError):
            await node.create_group("other", replicas=1, settings=SMALL_SETTINGS)


async def test_a_program_that_is_nobody_is_told_what_to_give(pki):
    async with embedded(pki) as (node, _):
        with pytest.raises(qe.ConfigError, match="give Node"):
            await node.create_group("made", replicas=1, settings=SMALL_SETTINGS)
