"""Clients of a secure node that send what a test says: over TLS or plain, logged in or not."""

import asyncio
import ssl
from contextlib import asynccontextmanager

from scramp import ScramClient

from kafka_client import Client as KafkaClient
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import encode_frame
from quorumlog.wire.versions import stating_versions

SCRAM = "SCRAM-SHA-256"
NAME = "localhost"
"""For which the certificates of tests are."""


def client_hello(role="client", node_id="", cluster=""):
    return stating_versions(Hello(cluster=cluster, node_id=node_id, role=role, group="g"))


class NativeClient:
    """Sends frames of our own protocol, and reads what comes."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder(DEFAULT_LIMITS)

    def send(self, message, *, number=7, attachments=()):
        parts = encode_frame(
            message, correlation_id=number, attachments=attachments, limits=DEFAULT_LIMITS
        )
        self._writer.writelines(parts)

    async def next(self):
        """Return the next message; None: the connection was ended."""
        while (frame := self._decoder.next_frame()) is None:
            space = self._decoder.space()
            try:
                came = await self._reader.read(len(space))
            except ConnectionResetError:  # it was closed with something unread
                return None
            if not came:
                return None
            space[: len(came)] = came
            self._decoder.received(len(came))
        return frame.message

    async def all(self):
        """Return all messages until the connection is ended."""
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        return found

    async def answer(self, kind=object):
        """Return the next message, unless it was not asked for (`GroupIdentity`)."""
        while type(message := await self.next()).__name__ == "GroupIdentity":
            pass
        assert isinstance(message, kind), message
        return message

    async def ask(self, message, *attachments):
        self.send(message, attachments=attachments)
        return await self.answer()

    async def scram(self, user, password):
        """Send what a login by SCRAM consists of; its last answer has to come."""
        client = ScramClient([SCRAM], user, password)
        first = await self.ask(
            Authenticate(mechanism=SCRAM, data=client.get_client_first().encode())
        )
        client.set_server_first(first.data.decode())
        self.send(Authenticate(mechanism=SCRAM, data=client.get_client_final().encode()))

    async def log_in(self, user, password):
        await self.scram(user, password)
        answer = await self.answer(Authenticated)
        assert answer.principal == f"User:{user}", answer


@asynccontextmanager
async def opened(address, context=None):
    """Connect to an address, with TLS if there is a context of it."""
    host, _, port = address.rpartition(":")
    given = {} if context is None else {"ssl": context, "server_hostname": NAME}
    reader, writer = await asyncio.open_connection(host, int(port), **given)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def native(node, context=None, hello=None):
    """A client of the node's own port that has said Hello."""
    async with opened(node.address, context) as (reader, writer):
        client = NativeClient(reader, writer)
        client.send(hello or client_hello(), number=0)
        yield client


class SecureKafkaClient(KafkaClient):
    """A client of the port for Kafka's clients."""

    async def scram(self, user, password):
        """Begin a login; return the client's side and the proof that is to be sent."""
        client = ScramClient([SCRAM], user, password)
        await self.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=SCRAM)
        first = await self.ask(
            ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=client.get_client_first().encode()
        )
        client.set_server_first(first.auth_bytes.decode())
        return client, client.get_client_final().encode()

    async def log_in(self, user, password):
        client, proof = await self.scram(user, password)
        last = await self.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=proof)
        assert last.error_code == 0, last
        client.set_server_final(last.auth_bytes.decode())

    async def frame_or_end(self):
        """Return the next answer as it came; None: the connection was ended."""
        try:
            return await self.frame()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None


@asynccontextmanager
async def kafka(node, context=None):
    async with opened(node.kafka, context) as (reader, writer):
        yield SecureKafkaClient(reader, writer)


async def http(node, path, context=None):
    """Return the status and the text of a page of the admin port."""
    async with opened(node.admin, context) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        came = (await reader.read()).decode()
    head, _, body = came.partition("\r\n\r\n")
    return int(head.split()[1]), body


def context_of(authority, pair=None):
    """Return what a client needs that trusts an authority, and may show a certificate."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context
