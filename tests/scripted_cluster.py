"""Scripted servers behind real sockets: what a client sees of a cluster, step by step."""

import asyncio
from collections import deque

from quorumlog.machine.kv_commands import Events, Happened, decode_query, encode_answer
from quorumlog.model.block import decode_entries, encode_block, parse_block, stamp
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import OutOfOrderError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.admin import TransferRequest
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    GroupMetadata,
    MetadataRequest,
    MetadataResponse,
)
from quorumlog.model.messages.login import Authenticate
from quorumlog.model.messages.machine import QueryRequest, QueryResponse
from quorumlog.service.streams import OrderedStreams
from quorumlog.transport.listener import Listener

LIMITS = Limits()
DROP = "drop the connection"
SILENT = "never answer"
LOSE_ANSWER = "store, then drop the connection"
FREEZE = "store nothing and be frozen from now on"


class Server:
    """One node's worth of answers; stores what it accepts.

    `script` is used up append by append, or transfer by transfer (codes alone), `refusals` (codes,
    or DROP) by fetches and questions.
    While `is_frozen` it takes everything and says nothing, like a stopped process; while
    `keeps_fetches` it answers no fetch and no question. `belief` is the leader and the term that it
    names, if not those of the world. `asked` is set when it is asked for them, `asked_count` counts
    that. `login_answer` is how logins are answered (not at all: SILENT), and `logins` counts them.
    """

    def __init__(self, node_id, world):
        self.node_id = node_id
        self.world = world
        self.script = deque()
        self.refusals = deque()
        self.is_frozen = False
        self.keeps_fetches = False
        self.hosts_group = True
        self.login_answer = SILENT
        self.logins = 0
        self.belief = None
        self.asked = asyncio.Event()
        self.asked_count = 0
        self.listener = Listener(
            "127.0.0.1",
            0,
            lambda hello: Handler(self),
            cluster="c",
            node_id=node_id,
            accepts=lambda hello: True,
            limits=LIMITS,
        )

    @property
    def address(self):
        return f"127.0.0.1:{self.listener.port}"


class Handler:
    def __init__(self, server):
        self.server = server
        self.streams = OrderedStreams(8)

    def opened(self, connection, hello):
        pass

    def closed(self, connection, reason):
        pass

    def frame_received(self, connection, frame):
        world, message = self.server.world, frame.message
        if self.server.is_frozen:
            return
        attachments = []
        if isinstance(message, Authenticate):
            self.server.logins += 1
            response = None if self.server.login_answer is SILENT else self.server.login_answer
        elif isinstance(message, MetadataRequest):
            world.asked.set()
            self.server.asked.set()
            self.server.asked_count += 1
            response = world.metadata(message.group, self.server)
        elif isinstance(message, FetchRequest | QueryRequest):
            if self.server.keeps_fetches:
                world.kept.set()
                return
            if self.server.refusals and self.refuse(connection, frame):
                return
            if isinstance(message, FetchRequest):
                response, attachments = self.fetch(message)
            else:
                response, attachments = self.query(message, frame.attachment)
        elif isinstance(message, TransferRequest):
            response = self.transfer(message)
        else:
            assert isinstance(message, AppendRequest)
            response = self.append(connection, message, frame.attachment)
        if response is not None:
            connection.send(response, correlation_id=frame.correlation_id, attachments=attachments)

    def refuse(self, connection, frame):
        planned = self.server.refusals.popleft()
        if planned is DROP:
            connection.abort("scripted")
        else:
            kind = FetchResponse if isinstance(frame.message, FetchRequest) else QueryResponse
            response = kind(code=planned, text="scripted")
            connection.send(response, correlation_id=frame.correlation_id)
        return True

    def query(self, message, attachment):
        """Answer what happened to keys; every entry of this log is a change."""
        world, query = self.server.world, decode_query(attachment)
        assert isinstance(query, Events)
        world.queries.append((self.server.node_id, message))
        first, begin, end = query.first_index, world.first_kept_index, len(world.stored)
        if first < begin:
            happened = Happened([], first, begin)
        else:
            found = [(index, b"key", world.stored[index]) for index in range(first, end)]
            happened = Happened(found, max(first, end), begin)
        return QueryResponse(applied_index=end - 1), [encode_answer(happened)]

    def fetch(self, message):
        world = self.server.world
        world.fetches.append((self.server.node_id, message))
        if message.leader_only and world.leader_id != self.server.node_id:
            code = ResponseCode.NOT_LEADER
            return FetchResponse(code=code, leader_id=world.leader_id), []
        if message.begin_index < world.first_kept_index:
            code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            text = f"index {message.begin_index} is below {world.first_kept_index}"
            return FetchResponse(code=code, text=text), []
        committed = len(world.stored) - 1
        last = committed if message.end_index < 0 else min(message.end_index, committed)
        bodies = world.stored[message.begin_index : last + 1]
        attachments = [stamped(bodies, message.begin_index)] if bodies else []
        response = FetchResponse(
            begin_index=0,
            committed_index=committed,
            first_index=message.begin_index if bodies else -1,
            count=len(bodies),
        )
        return response, attachments

    def transfer(self, message):
        self.server.world.requests += 1
        code = self.server.script.popleft() if self.server.script else ResponseCode.SUCCESS
        return Response(code=code, text="scripted", leader_id=message.transferee_id)

    def append(self, connection, message, attachment):
        world = self.server.world
        world.requests += 1
        if message.stream:
            try:
                self.streams.accept(message.stream, message.sequence)
            except OutOfOrderError as error:
                return AppendResponse(code=error.code, text=str(error))
        planned = self.server.script.popleft() if self.server.script else None
        if world.leader_id != self.server.node_id:
            planned = planned or ResponseCode.NOT_LEADER
        if planned is FREEZE:
            self.server.is_frozen = True
        if planned in (SILENT, FREEZE):
            return None
        if planned is DROP:
            connection.abort("scripted")
            return None
        if planned is None or planned is LOSE_ANSWER:
            first = len(world.stored)
            block = parse_block(attachment, count=message.count, entry_bytes_max=1 << 22)
            world.stored += [entry.body for entry in decode_entries(block)]
            if planned is LOSE_ANSWER:
                connection.abort("scripted")
                return None
            return AppendResponse(
                first_index=first, last_index=len(world.stored) - 1, term=1, positions=[(first, 0)]
            )
        if message.stream:
            self.streams.refused(message.stream, message.sequence)
        return AppendResponse(code=planned, text="scripted", leader_id=world.leader_id)


class World:
    """Servers, one of them the leader; `elsewhere` are addresses given out instead of theirs."""

    def __init__(self, *node_ids):
        self.node_ids = node_ids or ("n0", "n1")
        self.term = 1
        self.elsewhere = {}
        self.stored = []
        self.requests = 0
        self.asked = asyncio.Event()
        self.fetches = []
        self.queries = []
        self.kept = asyncio.Event()
        self.first_kept_index = 0
        self.leader_id = "n0"
        self.servers = {}

    async def start(self):
        for node_id in self.node_ids:
            self.servers[node_id] = Server(node_id, self)
            await self.servers[node_id].listener.start()

    async def stop(self):
        for server in self.servers.values():
            await server.listener.stop()

    @property
    def addresses(self):
        return ",".join(server.address for server in self.servers.values())

    def elect(self, node_id):
        self.leader_id = node_id
        self.term += 1

    def metadata(self, group, server):
        if group != "g" or not server.hosts_group:
            text = f"node does not host group {group!r}"
            return Response(code=ResponseCode.UNKNOWN_GROUP, text=text)
        peers = {node_id: server.address for node_id, server in self.servers.items()}
        leader_id, term = server.belief or (self.leader_id, self.term)
        peers |= self.elsewhere
        return MetadataResponse(groups=[GroupMetadata("g", peers, leader_id, term)])

    def script(self, *steps, node_id="n0"):
        self.servers[node_id].script.extend(steps)


def stamped(bodies, first_index):
    """Return a block as a server would send it."""
    data = memoryview(bytearray(encode_block(bodies)))
    block = parse_block(data, count=len(bodies), entry_bytes_max=LIMITS.entry_bytes_max)
    stamp(block, first_index, 1, block.offsets, 0)
    return data


def address_of(listening):
    """Return where a socket listens, as clients are told."""
    return f"127.0.0.1:{listening.getsockname()[1]}"


def metadata_of(client):
    """Return what a client knows of its group: servers, leader, connections."""
    return client._requester.metadata


SOON_S = 10.0
"""Far below the time-outs that must not have to pass, far above what a loaded machine takes."""


async def soon(awaitable):
    async with asyncio.timeout(SOON_S):
        return await awaitable


async def passed(condition):
    """Let the loop turn until something is so that nobody tells of."""
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
