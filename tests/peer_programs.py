"""Clients that are not ours, for a secure node: each connects once, and says in words how it went.

`openssl s_client` and `curl` are programs; the others are Kafka's clients for Python.
"""

import asyncio
import shutil
import ssl
import subprocess

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider as OtherTokenProvider

from quorumlog.node.node import wall_ms

SECONDS = 30


class Trust:
    """What a client is given: whom it trusts, its certificate, its login. Files are paths."""

    def __init__(self, ca, pair=None, mechanism="", user="", password="", token=""):
        self.ca = str(getattr(ca, "file", ca or ""))
        self.certificate = str(pair.certificate) if pair else ""
        self.key = str(pair.key) if pair else ""
        self.mechanism, self.user, self.password, self.token = mechanism, user, password, token

    def context(self):
        if not self.ca:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    @property
    def protocol(self):
        """What Kafka calls `security.protocol`."""
        secured = "SSL" if self.ca else "PLAINTEXT"
        return f"SASL_{secured}" if self.mechanism else secured


# -- Kafka's clients ------------------------------------------------------------------------------


class _Tokens(AbstractTokenProvider):
    def __init__(self, token):
        self._token = token

    async def token(self):
        return self._token


class _OtherTokens(OtherTokenProvider):
    def __init__(self, token):
        self._token = token

    def token(self):
        return self._token


def _of_aiokafka(node, trust):
    found = {
        "bootstrap_servers": node.kafka,
        "security_protocol": trust.protocol,
        "ssl_context": trust.context(),
        "request_timeout_ms": SECONDS * 1000,
    }
    if trust.mechanism:
        found["sasl_mechanism"] = trust.mechanism
        found["sasl_plain_username"], found["sasl_plain_password"] = trust.user, trust.password
    if trust.token:
        found["sasl_oauth_token_provider"] = _Tokens(trust.token)
    return found


async def _pass_by_aiokafka(node, trust, topic, value):
    settings = _of_aiokafka(node, trust)
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        at = await producer.send_and_wait(topic, value)
    async with aiokafka.AIOKafkaConsumer(**settings) as consumer:
        partition = aiokafka.TopicPartition(topic, at.partition)
        consumer.assign([partition])
        consumer.seek(partition, at.offset)
        return (await consumer.getone()).value


def _of_kafka_python(node, trust):
    found = {
        "bootstrap_servers": node.kafka,
        "security_protocol": trust.protocol,
        "bootstrap_timeout_ms": SECONDS * 1000,
    }
    if trust.ca:
        found["ssl_context"] = trust.context()
    if trust.mechanism:
        found["sasl_mechanism"] = trust.mechanism
        found["sasl_plain_username"] = trust.user or None
        found["sasl_plain_password"] = trust.password or None
    if trust.token:
        found["sasl_oauth_token_provider"] = _OtherTokens(trust.token)
    return found


def _pass_by_kafka_python(node, trust, topic, value):
    settings = _of_kafka_python(node, trust)
    producer = kafka.KafkaProducer(**settings)
    at = producer.send(topic, value).get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(**settings)
    partition = kafka.TopicPartition(topic, at.partition)
    consumer.assign([partition])
    consumer.seek(partition, at.offset)
    found = next(consumer).value
    consumer.close()
    return found


def _of_confluent_kafka(node, trust, **more):
    found = {"bootstrap.servers": node.kafka, "security.protocol": trust.protocol, **more}
    given = {
        "ssl.ca.location": trust.ca,
        "ssl.certificate.location": trust.certificate,
        "ssl.key.location": trust.key,
        "sasl.mechanism": trust.mechanism,
        "sasl.username": trust.user,
        "sasl.password": trust.password,
    }
    found |= {name: value for name, value in given.items() if value}
    if trust.token:
        found["oauth_cb"] = lambda _: (trust.token, wall_ms() / 1000 + 60)
    return found


def _pass_by_confluent_kafka(node, trust, topic, value):
    placed = []
    producer = confluent_kafka.Producer(_of_confluent_kafka(node, trust))
    producer.produce(topic, value, on_delivery=lambda error, message: placed.append(message))
    assert producer.flush(SECONDS) == 0
    (at,) = placed
    assert at.error() is None, at.error()
    consumer = confluent_kafka.Consumer(
        _of_confluent_kafka(node, trust, **{"group.id": "unused", "enable.auto.commit": False})
    )
    place = confluent_kafka.TopicPartition(topic, at.partition(), at.offset())
    consumer.assign([place])
    found = consumer.poll(SECONDS).value()
    consumer.close()
    return found


PASS = {
    "aiokafka": lambda *given: asyncio.run(_pass_by_aiokafka(*given)),
    "kafka-python": _pass_by_kafka_python,
    "confluent-kafka": _pass_by_confluent_kafka,
}
"""Each produces a value to a topic, and returns what it reads there."""


def _fail_aiokafka(node, trust):
    async def connect():
        producer = aiokafka.AIOKafkaProducer(**_of_aiokafka(node, trust))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(Exception) as raised:  # noqa: PT011  (what is said, the test judges)
        asyncio.run(connect())
    return str(raised.value)


def _fail_kafka_python(node, trust):
    """It would try again until its time is over, so it is closed after it has failed once."""
    update_backoff = KafkaConnectionManager.update_backoff

    def give_up(manager, node_id):
        manager.closed = True
        return update_backoff(manager, node_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaConnectionManager, "update_backoff", give_up)
        with pytest.raises(Exception) as raised:  # noqa: PT011
            kafka.KafkaAdminClient(**_of_kafka_python(node, trust))
    return str(raised.value)


def _fail_confluent_kafka(node, trust):
    errors = []
    client = confluent_kafka.Producer(
        _of_confluent_kafka(node, trust, error_cb=errors.append, log_level=0)
    )
    while not errors:
        client.poll(0.05)
    return str(errors[0])


# -- programs -------------------------------------------------------------------------------------


def _run(*command, given=b""):
    """Return all that a program prints until it ends by itself; its standard input stays open."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            process.stdin.write(given)
            process.stdin.flush()
            printed = process.stdout.read()
        finally:
            process.kill()
    return printed.decode(errors="replace")


def s_client(address, trust, *options, given=b""):
    """Have OpenSSL's own client connect, to whichever port, until the node ends that."""
    files = []
    if trust.ca:
        files += ["-CAfile", trust.ca, "-verify_return_error", "-verify_hostname", "localhost"]
    if trust.certificate:
        files += ["-cert", trust.certificate, "-key", trust.key]
    return _run("openssl", "s_client", "-connect", address, *files, *options, given=given)


def curl(node, trust, path="/metrics", scheme="https"):
    files = ["--cacert", trust.ca] if trust.ca else []
    if trust.certificate:
        files += ["--cert", trust.certificate, "--key", trust.key]
    return _run("curl", "-sS", "-i", "--max-time", str(SECONDS), *files,
                f"{scheme}://{node.admin}{path}")  # fmt: skip


_FAIL = {
    "aiokafka": _fail_aiokafka,
    "kafka-python": _fail_kafka_python,
    "confluent-kafka": _fail_confluent_kafka,
    "openssl": lambda node, trust: s_client(node.kafka, trust),
    "curl": lambda node, trust: curl(node, trust, scheme="https" if trust.ca else "http"),
}
NEEDED = {"openssl": "openssl", "curl": "curl"}
"""By client: the program that it is."""


def fail(client, node, trust):
    """Have a client fail to connect; return what it says."""
    return _FAIL[client](node, trust)


def clients(without=""):
    """Return the names of all but one for `parametrize`; programs that are lacking are skipped."""
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name in NEEDED and shutil.which(NEEDED[name]) is None,
                reason=f"{name} is not installed",
            ),
        )
        for name in _FAIL
        if name != without
    ]
