"""Our own clients log in: SCRAM without TLS on loopback, all mechanisms with it."""

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager, suppress

import pytest

from certificates import Authority
from kafka_client import until
from login_access import Issuer
from login_cluster import login_node
from quorumlog.auth.quotas import CONNECTIONS, USER, checked_entity
from quorumlog.auth.verifiers import SALT_BYTES, verifier_of
from quorumlog.client import Client, Security
from quorumlog.client.connection import ServerConnection
from quorumlog.client.login import LoginOfClient
from quorumlog.errors import LoginError, NetworkError, Outcome, RemoteProtocolError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.client import FetchRequest, MetadataRequest
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.model.messages.security import AlterUsersRequest, UserAlteration, VerifierFields
from quorumlog.model.secrets import Secret
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.executor import THREADS
from quorumlog.node.node import wall_ms
from quorumlog.transport.tls import OutgoingTls
from quorumlog.transport.tls_contexts import client_context
from quorumlog.wire.decoder import LOGIN_BYTES_MAX, FrameDecoder
from quorumlog.wire.frame import encode_frame

SECONDS = 60


class Credentials:
    def __init__(self, mechanism="SCRAM-SHA-256", user="", password="", token=""):
        self.mechanism = mechanism
        self.user = user
        self.password = Secret(password) if password else None
        self.token = Secret(token) if token else None


BOB = {"user": "bob", "password": "other = ,"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    place = tmp_path_factory.mktemp("plain")
    with login_node(place, groups=["g"], super_users=["User:admin"]) as node:
        node.add_user("bob", BOB["password"])
        node.add_user("a=b,c", "secret", ["SCRAM-SHA-512"])
        yield node


@pytest.fixture(scope="module")
def optional(tmp_path_factory):
    place = tmp_path_factory.mktemp("optional")
    with login_node(place, groups=["g"], login="optional", mechanisms=["SCRAM-SHA-512"]) as node:
        node.add_user("bob", BOB["password"])
        yield node


@pytest.fixture(scope="module")
def issuer():
    return Issuer(wall_ms)


@pytest.fixture(scope="module")
def secured(tmp_path_factory, issuer):
    """A node with TLS and all mechanisms; `tls` is what its clients need."""
    place = tmp_path_factory.mktemp("secured")
    authority, keys = Authority(place), place / "keys.json"
    pair = authority.node("n0")
    keys.write_bytes(issuer.jwks)
    tls = TlsConfig(certificate=str(pair.certificate), key=str(pair.key), ca=str(authority.file))
    with login_node(
        tmp_path_factory.mktemp("node"),
        tls,
        groups=["g"],
        mechanisms=["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"],
        oauth_jwks_file=str(keys),
        oauth_issuer="issuer",
        oauth_audience="log",
    ) as node:
        node.add_user("bob", BOB["password"])
        node.ca = str(authority.file)
        node.tls = OutgoingTls(client_context(node.ca, "", ""))
        pair = authority.user("dave")
        own = client_context(str(authority.file), str(pair.certificate), str(pair.key))
        node.tls_of_dave = OutgoingTls(own)
        yield node


@asynccontextmanager
async def connected(node, credentials=None, login=None, **options):
    login = login or (LoginOfClient(credentials) if credentials else None)
    connection = ServerConnection(
        node.address, "", DEFAULT_LIMITS, group="g", login=login, **options
    )
    await connection.open(SECONDS)
    try:
        yield connection
    finally:
        connection.close()


async def asked(connection):
    """Return what a node answers to a request."""
    response = (await connection.request(MetadataRequest(group="g"))).response
    if response.code != ResponseCode.SUCCESS:
        raise error_for(response.code, response.text)
    return response


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials(**BOB),
        Credentials("SCRAM-SHA-512", **BOB),
        Credentials("SCRAM-SHA-512", "a=b,c", "secret"),
    ],
)
async def test_a_client_logs_in_by_scram_and_is_served(plain, credentials):
    accepted = plain.counters.accepted
    async with connected(plain, credentials) as connection:
        assert (await asked(connection)).groups[0].group == "g"
    assert plain.counters.accepted == accepted + 1


def mechanisms(node):
    """Return what the audit log would have as the mechanism of each client."""
    return {one.mechanism for one in list(node.served.node.listener.connections)}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_client_logs_in_with_a_password_over_tls(secured, mechanism):
    async with connected(secured, Credentials(mechanism, **BOB), tls=secured.tls) as connection:
        assert await asked(connection)
        assert mechanism in mechanisms(secured)


async def test_a_password_is_computed_while_all_threads_that_read_are_busy(secured):
    secured.add_user("grace", "hopper", ["SCRAM-SHA-256"])
    executor, may_end = secured.served.node.executor, threading.Event()

    async def occupy():
        for _ in range(THREADS):
            executor.run(may_end.wait, lambda found: None, lambda error: None)

    secured.run(occupy())
    try:
        credentials = Credentials("PLAIN", user="grace", password="hopper")
        async with connected(secured, credentials, tls=secured.tls) as connection:
            assert await asked(connection)
    finally:
        may_end.set()


@pytest.mark.parametrize("user", ["bob", "eve"])
async def test_a_security_with_a_password_is_a_login(secured, user):
    security = Security(ca=secured.ca, user=user, password=Secret(BOB["password"]))
    async with Client(secured.address, "g", security=security) as client:
        if user == "eve":
            with pytest.raises(LoginError, match="login refused") as refused:
                await client.append(b"x")
            assert refused.value.outcome is Outcome.DID_NOT_HAPPEN
        else:
            assert (await client.append(b"x")).index >= 0


async def test_a_client_logs_in_with_a_token_until_it_expires(secured, issuer):
    token = issuer.token("EdDSA", sub="carol", exp=wall_ms() / 1000 + 5)
    credentials = Credentials("OAUTHBEARER", token=token)
    async with connected(secured, credentials, tls=secured.tls) as connection:

        async def ask_again_and_again():
            while True:
                await asked(connection)
                await asyncio.sleep(0.02)

        with pytest.raises(LoginError, match="has expired") as refusal:
            await ask_again_and_again()
    assert refusal.value.code == ResponseCode.LOGIN_EXPIRED


async def test_a_certificate_is_a_login(secured):
    async with connected(secured, tls=secured.tls_of_dave) as connection:
        assert await asked(connection)
        assert "certificate" in mechanisms(secured)


@pytest.mark.parametrize(
    ("user", "password"), [("bob", "wrong"), ("nobody", "wrong"), ("admin", "admin")]
)
async def test_all_refusals_read_alike_and_do_not_say_why(plain, user, password):
    began = time.monotonic()
    with pytest.raises(LoginError) as refusal:
        async with connected(plain, Credentials("SCRAM-SHA-256", user, password)):
            pass
    assert time.monotonic() - began > 0.45
    assert str(refusal.value) == f"login of {user} at {plain.address}: login refused"
    assert refusal.value.outcome is Outcome.DID_NOT_HAPPEN
    assert not refusal.value.retriable


async def test_without_a_login_nothing_is_answered(plain):
    async with connected(plain) as connection:
        with pytest.raises(LoginError, match="MetadataRequest before a login") as refusal:
            await asked(connection)
        assert refusal.value.code == ResponseCode.LOGIN_REQUIRED


async def test_a_secret_is_not_sent_without_tls(plain):
    accepted = plain.counters.accepted
    for credentials in (
        Credentials("PLAIN", **BOB),
        Credentials("OAUTHBEARER", token="t"),
    ):
        with pytest.raises(LoginError, match="needs TLS"):
            async with connected(plain, credentials):
                pass
    assert plain.counters.accepted == accepted


async def test_where_a_login_is_optional_a_client_may_log_in_or_not(optional):
    async with connected(optional) as connection:
        assert await asked(connection)
    async with connected(optional, Credentials("SCRAM-SHA-512", **BOB)) as connection:
        assert await asked(connection)
    text = "mechanism SCRAM-SHA-256 is not offered here, but SCRAM-SHA-512"
    with pytest.raises(LoginError, match=text):
        async with connected(optional, Credentials("SCRAM-SHA-256", **BOB)):
            pass


async def test_where_a_login_is_optional_a_connection_is_counted_for_who_it_turns_out_to_be(
    optional,
):
    admissions, login = optional.served._kafka.admissions, Credentials("SCRAM-SHA-512", **BOB)
    limits = [("bob", 1), ("ANONYMOUS", 1)]
    admissions.throttles.use(
        {checked_entity([("user", name)]): {CONNECTIONS: most} for name, most in limits}
    )

    def counted():
        return {name: count for (kind, name), count in admissions._open.items() if kind == USER}

    await until(lambda: not counted())  # those of other tests
    async with connected(optional, login) as bob, connected(optional) as nobody:
        assert counted() == {"bob": 1}
        assert await asked(bob)
        assert await asked(nobody)
        assert counted() == {"bob": 1, "ANONYMOUS": 1}
        async with connected(optional) as beyond:
            with pytest.raises(NetworkError, match="ANONYMOUS has used up its quota") as refused:
                await asked(beyond)
            assert refused.value.outcome is Outcome.DID_NOT_HAPPEN
        with pytest.raises(NetworkError, match="bob has used up its quota: connections 1"):
            async with connected(optional, login):
                pass
        bob.close()
        await until(lambda: "bob" not in counted())
        await LoginOfClient(login).run(
            nobody._authenticate, address=optional.address, is_encrypted=False
        )
        assert await asked(nobody)
        assert counted() == {"bob": 1}, "it is nobody's any more"
    admissions.throttles.use({})


async def test_a_salted_password_is_computed_once(plain, monkeypatch):
    login, calls = LoginOfClient(Credentials(**BOB)), []
    from quorumlog.client import login_steps as module  # noqa: PLC0415

    real = module.hashlib.pbkdf2_hmac
    counted = lambda *given: calls.append(given) or real(*given)  # noqa: E731
    monkeypatch.setattr(module.hashlib, "pbkdf2_hmac", counted)
    for _ in range(3):
        async with connected(plain, login=login):
            pass
    assert len(calls) == 1


# -- a node that is not what it says ------------------------------------------------------


async def answers(credentials, *given):
    """Log in where the answers are these; `{nonce}` is the client's."""
    left, asked = list(given), []

    async def ask(message):
        asked.append(message)
        answer = left.pop(0)
        data = answer.data.replace(b"{nonce}", b"abc")
        return Authenticated(
            code=answer.code, text=answer.text, data=data, more=answer.more, principal="User:bob"
        )

    login = LoginOfClient(credentials, nonce=lambda: "abc")
    await login.run(ask, address="h:1", is_encrypted=True)


FIRST = Authenticated(data=b"r={nonce}def,s=MDEyMzQ1Njc4OWFi,i=4096", more=True)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([Authenticated(data=b"", more=True)], "first message is not RFC 5802's"),
        ([Authenticated(data=b"e=unknown-user", more=True)], "first message is not RFC 5802's"),
        ([Authenticated(data=b"r=xdef,s=MDEy,i=4096", more=True)], "answers another login"),
        ([Authenticated(data=b"r={nonce},s=MDEy,i=4096", more=True)], "answers another login"),
        ([Authenticated(data=b"r={nonce}d,s=MDEy,i=1000001", more=True)], "asks for 1000001 iter"),
        ([Authenticated(data=b"r={nonce}d,s=MDEy,i=4095", more=True)], "asks for 4095 iterations"),
        ([Authenticated(data=b"r={nonce}d,s=M===,i=4096", more=True)], "is not RFC 5802's"),
        ([Authenticated(data=FIRST.data)], "ends the login before a proof"),
        ([FIRST, Authenticated(data=b"v=AAAA")], "has not shown that it knows the user"),
        ([FIRST, Authenticated(data=b"")], "has not shown that it knows the user"),
    ],
)
async def test_a_node_that_does_not_know_the_password_is_found_out(given, error):
    with pytest.raises(RemoteProtocolError, match=error):
        await answers(Credentials(**BOB), *given)


async def test_a_node_that_is_busy_may_be_asked_again():
    busy = Authenticated(code=ResponseCode.LOGIN_BUSY, text="busy")
    with pytest.raises(NetworkError, match="put off: busy") as refusal:
        await answers(Credentials(**BOB), busy)
    assert refusal.value.retriable


# -- frame by frame -----------------------------------------------------------------------


class Stranger:
    """Sends frames to a node, and reads what comes."""

    def __init__(self, node):
        host, _, port = node.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS)
        self._decoder = FrameDecoder(DEFAULT_LIMITS)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()

    def send(self, message, number=7):
        for part in encode_frame(message, correlation_id=number, limits=DEFAULT_LIMITS):
            self.socket.sendall(part)

    def next(self):
        """Return the next message; None: the connection was closed."""
        while (frame := self._decoder.next_frame()) is None:
            space = self._decoder.space()
            size = self.socket.recv_into(space)
            if not size:
                return None
            self._decoder.received(size)
        return frame.message


CLIENT = Hello(cluster="", node_id="", role="client", group="g")


def test_nothing_but_a_login_is_taken_before_one(plain):
    with Stranger(plain) as stranger:
        stranger.send(CLIENT, 0)
        assert isinstance(stranger.next(), Hello)
        stranger.send(MetadataRequest(group="g"))
        assert stranger.next().code == ResponseCode.LOGIN_REQUIRED
        stranger.send(Authenticate(mechanism="SCRAM-SHA-256", data=b"n,,n=bob,r=abc"))
        assert stranger.next().more
        stranger.send(Authenticate(mechanism="SCRAM-SHA-256", data=b"nonsense"))
        stranger.send(MetadataRequest(group="g"))
        told = {type(one): one.code for one in (stranger.next(), stranger.next())}
        assert told[Authenticated] == ResponseCode.LOGIN_REFUSED
        assert stranger.next() is None


async def test_who_is_removed_gets_nothing_that_was_asked_for_before(plain):
    plain.add_user("gil", "secret")
    async with connected(plain, Credentials(user="gil", password="secret")) as connection:
        known = (await connection.request(FetchRequest(group="g", begin_index=0))).response
        end = known.committed_index + 1
        waiting = [
            asyncio.ensure_future(
                connection.request(FetchRequest(group="g", begin_index=one, wait_ms=30_000))
            )
            for one in range(end, end + 20)
        ]
        await asked(connection)  # those before it wait by now
        plain.add_user("gil", "another")
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(one) for one in found} == {NetworkError}
    async with connected(plain, Credentials(user="gil", password="another")) as connection:
        assert await asked(connection)


async def test_who_changes_the_own_password_is_told_that_it_is_done(plain):
    plain.add_user("una", "secret")
    async with connected(plain, Credentials(user="una", password="secret")) as connection:
        found = verifier_of("newer", "SCRAM-SHA-256", bytes(SALT_BYTES), 4_096)
        verifiers = {"SCRAM-SHA-256": VerifierFields(*found)}
        change = UserAlteration("una", verifiers, exists=True)
        request = AlterUsersRequest(group="__cluster", changes=[change])
        assert (await connection.request(request)).response.code == ResponseCode.SUCCESS
        with pytest.raises(LoginError, match="the password") as refused:
            await asked(connection)
        assert refused.value.code == ResponseCode.LOGIN_EXPIRED


def test_frames_before_a_login_are_short(plain):
    with Stranger(plain) as stranger:
        stranger.send(CLIENT, 0)
        stranger.next()
        (frame,) = encode_frame(
            Authenticate(mechanism="m", data=bytes(LOGIN_BYTES_MAX)),
            correlation_id=1,
            limits=DEFAULT_LIMITS,
        )
        stranger.socket.sendall(frame)
        with suppress(ConnectionResetError):
            assert stranger.next() is None


def test_a_login_by_an_unknown_mechanism_ends_the_connection(plain):
    with Stranger(plain) as stranger:
        stranger.send(CLIENT, 0)
        stranger.next()
        stranger.send(Authenticate(mechanism="PLAIN", data=b""))
        answer = stranger.next()
        assert answer.code == ResponseCode.LOGIN_REFUSED
        assert answer.text == (
            "mechanism PLAIN is not offered here, but SCRAM-SHA-256, SCRAM-SHA-512"
        )
        assert stranger.next() is None
