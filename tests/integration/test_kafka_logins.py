"""Kafka's clients log in: by SCRAM, a password or a token, with TLS or on loopback without."""

import asyncio
import socket
import ssl
import struct
import time

import aiokafka
import confluent_kafka
import kafka
import msgspec
import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider as OtherTokenProvider
from scramp import ScramClient

from certificates import Authority
from kafka_client import fetch_values
from kafka_peer import sent
from login_access import Issuer
from login_cluster import SECONDS, login_node
from quorumlog.auth import login
from quorumlog.auth.quotas import CONNECTIONS, USER, checked_entity
from quorumlog.auth.sasl import Reason
from quorumlog.client.contexts import Access, Context
from quorumlog.client.kafka_security import kafka_python_settings, librdkafka_settings
from quorumlog.kafka.frames import LOGIN_FRAME_BYTES_MAX
from quorumlog.kafka.requests import ApiKey
from quorumlog.machine.cluster.commands import CreateTopics, NewTopic
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.errors import LoginError
from quorumlog.model.limits import Limits
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.node import wall_ms
from quorumlog.spark.access import open_brokers
from quorumlog.spark.sink.topics.coordinator import SinkBatch, SinkCoordinator
from quorumlog.spark.topics.remote_brokers import RemoteBrokers

ALL = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]
SCRAM = ALL[:2]
PATIENT = Limits(handshake_ms=SECONDS * 1_000)
"""A busy machine may take longer for a login than a node waits by default."""
USERS = {"alice": "secret, of =alice", "bob": "other"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def issuer():
    return Issuer(wall_ms)


@pytest.fixture(scope="module")
def secured(tmp_path_factory, authority, issuer):
    """A node with TLS, all mechanisms, and two users."""
    pair = authority.node("n0")
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(issuer.jwks)
    tls = TlsConfig(certificate=str(pair.certificate), key=str(pair.key), ca=str(authority.file))
    oauth = {"oauth_jwks_file": str(keys), "oauth_issuer": "issuer", "oauth_audience": "log"}
    with login_node(
        tmp_path_factory.mktemp("kafka"),
        tls,
        mechanisms=ALL,
        super_users=["User:admin"],
        limits=PATIENT,
        **oauth,
    ) as node:
        for user, password in USERS.items():
            node.add_user(user, password)
        node.add_user("admin", "admin")
        yield node


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A node without TLS, on loopback, where bob logs in."""
    with login_node(tmp_path_factory.mktemp("kafka"), limits=PATIENT) as node:
        for user in ("bob", *CLIENTS):
            node.add_user(user, "other")
        yield node


@pytest.fixture(scope="module")
def optional(tmp_path_factory):
    """A node without TLS, on loopback, where bob may log in."""
    with login_node(tmp_path_factory.mktemp("kafka"), limits=PATIENT, login="optional") as node:
        node.add_user("bob", "other")
        yield node


class Tokens(AbstractTokenProvider, OtherTokenProvider):
    def __init__(self, token):
        self._token = token

    async def token(self):
        return self._token


class OtherTokens(OtherTokenProvider):
    def __init__(self, token):
        self._token = token

    def token(self):
        return self._token


async def with_aiokafka(node, ca, mechanism, user, password, token=""):
    options = {"sasl_oauth_token_provider": Tokens(token)} if token else {}
    client = aiokafka.AIOKafkaProducer(
        bootstrap_servers=node.kafka,
        security_protocol="SASL_SSL" if ca else "SASL_PLAINTEXT",
        ssl_context=ssl.create_default_context(cafile=ca) if ca else None,
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
        request_timeout_ms=SECONDS * 1000,
        **options,
    )
    try:
        await client.start()
        return sorted((await client.client.fetch_all_metadata()).brokers())
    finally:
        await client.stop()


def with_kafka_python(node, ca, mechanism, user, password, token=""):
    options = {"sasl_oauth_token_provider": OtherTokens(token)} if token else {}
    is_wrong = bool(password) and password.startswith("wrong")
    before = sum(node.counters.refused.values())
    while True:
        try:
            client = kafka.KafkaAdminClient(
                bootstrap_servers=node.kafka,
                security_protocol="SASL_SSL" if ca else "SASL_PLAINTEXT",
                ssl_cafile=ca,
                sasl_mechanism=mechanism,
                sasl_plain_username=user,
                sasl_plain_password=password,
                bootstrap_timeout_ms=700 if is_wrong else 30_000,
                **options,
            )
            break
        except kafka.errors.KafkaError:
            # it tries on for all of its time, which is short, and may end before it was answered
            if not is_wrong or sum(node.counters.refused.values()) > before:
                raise
    try:
        return client.list_topics()
    finally:
        client.close()


def with_confluent_kafka(node, ca, mechanism, user, password, token=""):
    errors = []
    options = {"sasl.username": user, "sasl.password": password}
    if token:
        options = {"oauth_cb": lambda _: (token, wall_ms() / 1000 + 60)}
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "unused",
            "security.protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "error_cb": errors.append,
            **({"ssl.ca.location": ca} if ca else {}),
            **options,
        }
    )
    try:
        if token:
            client.poll(0)  # asks for a token
        if password and password.startswith("wrong"):
            while not errors:
                client.poll(0.05)
            raise PermissionError(str(errors[0]))
        return client.list_topics(timeout=SECONDS).brokers
    finally:
        client.close()


CLIENTS = {
    "aiokafka": lambda *given: asyncio.run(with_aiokafka(*given)),
    "kafka-python": with_kafka_python,
    "confluent-kafka": with_confluent_kafka,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_clients_log_in_with_a_password_over_tls(secured, authority, client, mechanism):
    accepted = secured.counters.accepted
    ca = str(authority.file)
    CLIENTS[client](secured, ca, mechanism, "alice", USERS["alice"])
    assert secured.counters.accepted > accepted


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_log_in_with_a_token(secured, authority, issuer, client):
    accepted = secured.counters.accepted
    ca, token = str(authority.file), issuer.token("ES256", sub="carol")
    CLIENTS[client](secured, ca, "OAUTHBEARER", None, None, token)
    assert secured.counters.accepted > accepted


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_log_in_by_scram_without_tls_on_loopback(plain, client):
    accepted = plain.counters.accepted
    CLIENTS[client](plain, None, "SCRAM-SHA-512", "bob", "other")
    assert plain.counters.accepted > accepted


@pytest.mark.parametrize(
    ("client", "error"),
    [
        ("aiokafka", KafkaError),
        ("kafka-python", kafka.errors.KafkaError),
        ("confluent-kafka", PermissionError),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    plain, client, error, known, caplog
):
    accepted, refused = plain.counters.accepted, sum(plain.counters.refused.values())
    user = client if known else f"no {client}"
    with pytest.raises(error) as refusal:
        CLIENTS[client](plain, None, "SCRAM-SHA-256", user, f"wrong {client}")
    told = str(refusal.value) + caplog.text
    assert client == "kafka-python" or "login refused" in told  # it may see the end first
    assert "Unknown user" not in told
    assert plain.counters.accepted == accepted
    assert sum(plain.counters.refused.values()) > refused


# -- by a context: commands and Spark -----------------------------------------------------


@pytest.fixture(params=ALL)
def context(request, secured, authority, issuer, tmp_path):
    """A context for each mechanism, with its secret in a file."""
    file = tmp_path / "secret"
    is_token = request.param == "OAUTHBEARER"
    file.write_text(f"{issuer.token(sub='carol') if is_token else USERS['alice']}\n")
    file.chmod(0o600)
    return Context(
        servers=secured.address,
        kafka=secured.kafka,
        ca=str(authority.file),
        mechanism=request.param,
        **(
            {"token_file": str(file)} if is_token else {"user": "alice", "password_file": str(file)}
        ),
    )


def logged_in(node):
    """Return whether somebody who is connected has logged in."""
    return set(node.connections()) & {"User:alice", "User:carol"}


def test_commands_log_in_by_each_mechanism(context, secured):
    admin = kafka.KafkaAdminClient(
        bootstrap_servers=context.kafka, **kafka_python_settings(context.open().security)
    )
    assert admin.list_topics() is not None
    assert logged_in(secured)
    admin.close()


def test_librdkafka_logs_in_by_each_mechanism(context):
    settings = librdkafka_settings(context.open().security)
    client = confluent_kafka.Producer({"bootstrap.servers": context.kafka, **settings})
    client.poll(0)  # asks for a token
    assert client.list_topics(timeout=SECONDS).brokers


def test_sparks_readers_and_sinks_log_in_by_each_mechanism(context, secured):
    where = Access(given=context)
    brokers = RemoteBrokers(open_brokers(where), SECONDS * 1_000, "test")
    assert isinstance(brokers.topics(), dict)
    assert logged_in(secured)
    brokers.close()
    with SinkCoordinator(where, SECONDS * 1_000) as coordinator:
        assert (
            coordinator.join(SinkBatch("sink", "run", 0), attempt_id("sink", "a")).last_batch == -1
        )
        assert logged_in(secured)


def test_a_refused_login_ends_a_job_of_spark_at_once(secured, authority, tmp_path):
    (tmp_path / "pw").write_text("wrong")
    (tmp_path / "pw").chmod(0o600)
    where = Access(
        given=Context(
            kafka=secured.kafka,
            ca=str(authority.file),
            user="nobody",
            password_file=str(tmp_path / "pw"),
        )
    )
    refused = sum(secured.counters.refused.values())
    brokers = RemoteBrokers(open_brokers(where), SECONDS * 1_000, "test")
    with pytest.raises(LoginError, match=f"{secured.kafka}: login of nobody by SCRAM.*login refus"):
        brokers.topics()
    brokers.close()
    with (
        SinkCoordinator(where, SECONDS * 1_000) as coordinator,
        pytest.raises(LoginError, match="login of nobody by SCRAM-SHA-256: login refused"),
    ):
        coordinator.join(SinkBatch("sink", "run", 0), attempt_id("sink", "a"))
    assert sum(secured.counters.refused.values()) == refused + 2


def test_a_client_logs_in_with_the_token_that_its_file_has_then(
    secured, authority, issuer, tmp_path
):
    """The first one has expired when the second connection is made."""
    file = tmp_path / "token"
    file.write_text(issuer.token(sub="carol", exp=wall_ms() / 1000 - 60))
    file.chmod(0o600)
    context = Context(kafka=secured.kafka, ca=str(authority.file), token_file=str(file))
    brokers = RemoteBrokers(open_brokers(Access(given=context)), SECONDS * 1_000, "test")
    with pytest.raises(LoginError):
        brokers.topics()
    file.write_text(issuer.token(sub="carol"))
    assert isinstance(brokers.topics(), dict)
    brokers.close()


# -- byte by byte -------------------------------------------------------------------------


class Raw:
    """A client that sends what it is told."""

    def __init__(self, node, context=None):
        host, _, port = node.kafka.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()
        self.socket.close()

    def send(self, key, version, body, number=7):
        header = struct.pack(">hhi", key, version, number) + string(b"raw")
        self.frame(header + body)

    def frame(self, content):
        self.socket.sendall(struct.pack(">i", len(content)) + content)

    def answer(self):
        """Return the next frame; None: the connection was closed."""
        try:
            size = self._file.read(4)
        except ConnectionResetError:  # it was closed with a request unread
            return None
        return self._file.read(int.from_bytes(size, "big")) if size else None

    def ask(self, *request):
        self.send(*request)
        answer = self.answer()
        assert answer[:4] == b"\0\0\0\7"
        return answer[4:]


def string(text):
    return struct.pack(">h", len(text)) + text


def data(content):
    return struct.pack(">i", len(content)) + content


HANDSHAKE, AUTHENTICATE, VERSIONS, METADATA = 17, 36, 18, 3
ALL_TOPICS = struct.pack(">i", -1) + b"\0"
NO_ERROR = b"\0\0"


def scram_client():
    return ScramClient(["SCRAM-SHA-256"], "bob", "other")


def test_a_login_step_by_step_with_versions_asked_for_before(plain):
    client = scram_client()
    with Raw(plain) as raw:
        assert raw.ask(VERSIONS, 0, b"")[:2] == NO_ERROR
        answer = raw.ask(HANDSHAKE, 1, string(b"SCRAM-SHA-256"))
        offered = struct.pack(">i", 2) + string(b"SCRAM-SHA-256") + string(b"SCRAM-SHA-512")
        assert answer == NO_ERROR + offered
        first = raw.ask(AUTHENTICATE, 1, data(client.get_client_first().encode()))
        assert first[:4] == NO_ERROR + b"\xff\xff"
        client.set_server_first(first[8:-8].decode())
        last = raw.ask(AUTHENTICATE, 1, data(client.get_client_final().encode()))
        client.set_server_final(last[8:-8].decode())
        assert last[-8:] == bytes(8), "the session has no end"
        assert "User:bob" in plain.connections()
        assert len(raw.ask(METADATA, 4, ALL_TOPICS)) > 20


def test_messages_of_the_mechanism_without_requests_around_them(plain):
    client = scram_client()
    with Raw(plain) as raw:
        assert raw.ask(HANDSHAKE, 0, string(b"SCRAM-SHA-256"))[:2] == NO_ERROR
        raw.frame(client.get_client_first().encode())
        client.set_server_first(raw.answer().decode())
        raw.frame(client.get_client_final().encode())
        client.set_server_final(raw.answer().decode())
        assert len(raw.ask(METADATA, 4, ALL_TOPICS)) > 20
    with Raw(plain) as raw:
        raw.ask(HANDSHAKE, 0, string(b"SCRAM-SHA-256"))
        raw.frame(b"no message")
        assert raw.answer() is None


def test_a_request_before_a_login_is_refused_and_the_connection_closed(plain, monkeypatch):
    audited = []
    monkeypatch.setattr(plain.served.node.instruments.audit, "record", audited.append)
    with Raw(plain) as raw:
        raw.send(METADATA, 4, ALL_TOPICS)
        assert struct.pack(">h", 34) in raw.answer(), "ILLEGAL_SASL_STATE"
        assert raw.answer() is None
    (told,) = audited
    assert (told.event, told.allowed) == ("connection-refused", False)
    assert "has not logged in" in told.reason
    with Raw(plain) as raw:  # a Produce, whose client may want no answer
        raw.send(0, 7, struct.pack(">hhii", -1, 0, 1000, 0))
        assert raw.answer() is None
    with Raw(plain) as raw:  # an unknown request
        raw.send(9_999, 0, b"")
        assert raw.answer() is None


def test_an_unknown_mechanism_is_told_which_are_offered_and_the_connection_closed(plain):
    with Raw(plain) as raw:
        answer = raw.ask(HANDSHAKE, 1, string(b"PLAIN"))
        assert answer[:6] == struct.pack(">hi", 33, 2)
        assert raw.answer() is None


def test_a_refusal_is_told_in_words_and_nothing_is_answered_after_it(plain):
    with Raw(plain) as raw:
        raw.ask(HANDSHAKE, 1, string(b"SCRAM-SHA-256"))
        raw.send(AUTHENTICATE, 1, data(b"p=tls-unique,,n=bob,r=abc"))
        raw.send(METADATA, 4, ALL_TOPICS)
        assert raw.answer()[4:] == struct.pack(">h", 58) + string(b"login refused") + bytes(12)
        assert raw.answer() is None


def test_frames_before_a_login_are_short(plain):
    with Raw(plain) as raw:
        raw.socket.sendall(struct.pack(">i", LOGIN_FRAME_BYTES_MAX + 1))
        assert raw.answer() is None


def test_the_connection_of_who_is_removed_ends_whatever_it_waits_for(plain):
    plain.add_user("gil", "other")
    topic = NewTopic("t", bytes(15) + b"t", 1)
    plain.run(plain.broker.execute(CreateTopics([topic]), SECONDS * 1_000))
    assert plain.run(plain.broker.wait_open([topic.topic_id], SECONDS * 1_000))
    with Raw(plain) as raw, Raw(plain) as bob:
        log_in(raw, "gil")
        log_in(bob, "bob")
        waiting = fetch_values(0, wait_ms=2**31 - 1, bytes_min=1_400)
        raw.socket.sendall(sent(ApiKey.FETCH, 12, waiting))
        queues = [one._queue for one in plain.served._kafka._listener.connections]
        while all(one.is_empty for one in queues):
            time.sleep(0.001)
        plain.add_user("gil", "another")
        assert raw.answer() is None
        assert len(bob.ask(METADATA, 4, ALL_TOPICS)) > 20


def test_a_client_has_a_time_for_its_login(plain, monkeypatch):
    listener = plain.served._kafka._listener
    limits = msgspec.structs.replace(listener._limits, handshake_ms=300)
    monkeypatch.setattr(listener, "_limits", limits)
    with Raw(plain) as raw:
        raw.send(VERSIONS, 0, b"")
        while raw.answer() is not None:
            pass  # the answer, if it came in time


def test_a_client_logs_in_again_as_the_same_user_only(plain, monkeypatch):
    """KIP-368. It is not to wait a second here."""
    monkeypatch.setattr(login, "AGAIN_S", 0)
    with Raw(plain) as raw:
        log_in(raw, "bob")
        log_in(raw, "bob")
        assert len(raw.ask(METADATA, 4, ALL_TOPICS)) > 20
        client = ScramClient(SCRAM[:1], "aiokafka", "other")
        raw.ask(HANDSHAKE, 1, string(b"SCRAM-SHA-256"))
        first = raw.ask(AUTHENTICATE, 1, data(client.get_client_first().encode()))
        client.set_server_first(first[8:-8].decode())
        last = raw.ask(AUTHENTICATE, 1, data(client.get_client_final().encode()))
        assert last[:2] == struct.pack(">h", 58)
        assert raw.answer() is None


def log_in(raw, user):
    client = ScramClient(SCRAM[:1], user, "other")
    raw.ask(HANDSHAKE, 1, string(b"SCRAM-SHA-256"))
    first = raw.ask(AUTHENTICATE, 1, data(client.get_client_first().encode()))
    client.set_server_first(first[8:-8].decode())
    last = raw.ask(AUTHENTICATE, 1, data(client.get_client_final().encode()))
    client.set_server_final(last[8:-8].decode())


def test_where_a_login_is_optional_a_connection_is_counted_for_who_it_turns_out_to_be(optional):
    admissions = optional.served._kafka.admissions
    limits = [("bob", 1), ("ANONYMOUS", 1)]
    admissions.throttles.use(
        {checked_entity([("user", name)]): {CONNECTIONS: most} for name, most in limits}
    )

    def counted():
        return {name: count for (kind, name), count in admissions._open.items() if kind == USER}

    with Raw(optional) as bob, Raw(optional) as nobody, Raw(optional) as beyond:
        assert bob.ask(VERSIONS, 0, b"")[:2] == NO_ERROR
        assert counted() == {}
        log_in(bob, "bob")
        assert counted() == {"bob": 1}
        assert nobody.ask(METADATA, 4, ALL_TOPICS)
        assert counted() == {"bob": 1, "ANONYMOUS": 1}
        beyond.send(METADATA, 4, ALL_TOPICS)
        assert beyond.answer() is None
        bob.socket.shutdown(socket.SHUT_RDWR)
        assert bob.answer() is None
        while counted() != {"ANONYMOUS": 1}:
            time.sleep(0.001)
        log_in(nobody, "bob")
        assert counted() == {"bob": 1}, "it is nobody's any more"


def test_a_request_after_a_token_has_expired_closes_the_connection(
    secured, issuer, authority, monkeypatch
):
    """By the clock of the test, whatever time the login takes, the token holds 400 ms then."""
    expires_s = wall_ms() // 1_000 + SECONDS
    logins = secured.served._kafka._listener._logins
    environment = logins.environment._replace(wall_ms=lambda: expires_s * 1_000 - 400)
    monkeypatch.setattr(logins, "environment", environment)
    with Raw(secured, ssl.create_default_context(cafile=str(authority.file))) as raw:
        raw.ask(HANDSHAKE, 1, string(b"OAUTHBEARER"))
        token = issuer.token(sub="carol", exp=expires_s)
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer = raw.ask(AUTHENTICATE, 1, data(message))
        lifetime = int.from_bytes(answer[-8:], "big")
        assert lifetime == 400

        def until_closed():
            while True:
                raw.send(METADATA, 4, ALL_TOPICS)
                answer = raw.answer()
                if answer is None:
                    return
                assert len(answer) > 20

        until_closed()


def test_nobody_becomes_a_super_user_by_a_password(secured, authority, caplog):
    before = secured.counters.refused.get(Reason.SUPER_USER, 0)
    with pytest.raises(KafkaError):
        CLIENTS["aiokafka"](secured, str(authority.file), "PLAIN", "admin", "admin")
    assert "login refused" in caplog.text
    assert secured.counters.refused[Reason.SUPER_USER] > before


def test_a_certificate_is_enough(secured, authority):
    pair = authority.user("dave")
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(pair.certificate, pair.key)
    with Raw(secured, context) as raw:
        assert len(raw.ask(METADATA, 4, ALL_TOPICS)) > 20
        assert "User:dave" in secured.connections()
