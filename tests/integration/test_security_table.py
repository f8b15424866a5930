"""Every kind of request, asked for over real connections by seven kinds of clients.

They connect without TLS, without a login, with a wrong one, or are logged in: without rights, or
with the role of a reader, a writer or an operator. The tables say who may have what. They are this
test's own; a kind that has no row fails.
"""

import asyncio
import os

import pytest

from certificates import Authority
from kafka_client import produce_request
from kafka_peer import answered, sent
from kafka_rights_table import LOGINS, errors_in
from kafka_rights_table import TABLE as KAFKA_REQUESTS
from login_cluster import login_node
from native_rights_table import ID
from native_rights_table import TABLE as NATIVE_REQUESTS
from quorumlog.auth.acls import PatternType, ResourceType
from quorumlog.auth.roles import Pattern, acls_of_role
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import Limits
from quorumlog.model.messages.admin import ChangeMembersRequest, MemberAction
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.client import AppendRequest
from quorumlog.model.messages.login import Authenticated
from quorumlog.model.tls_config import TlsConfig
from quorumlog.service import admin_access
from quorumlog.wire.kinds import CLIENT_KINDS, LOGIN_KINDS, MESSAGE_OF_KIND
from record_batches import batch_of
from secured_peers import client_hello, context_of, http, kafka, native
from wire_samples import sample_of

PASSWORD = "of = all, of them"
USERS = {"n": "nobody", "r": "reader", "w": "writer", "o": "operator"}
"""By letter: who is logged in."""
ALL, NONE = "nrwo", ""

KAFKA = [
    ("LIST_OFFSETS", "rwo"),
    ("METADATA", "rwo"),
    ("OFFSET_COMMIT", "r"),
    ("OFFSET_FETCH", "ro"),
    ("OFFSET_FETCH", "ro"),
    ("FIND_COORDINATOR", "ro"),  # of a consumer group
    ("FIND_COORDINATOR", "wo"),  # of a transactional id
    ("JOIN_GROUP", "r"),
    ("HEARTBEAT", "r"),
    ("LEAVE_GROUP", "r"),
    ("SYNC_GROUP", "r"),
    ("DESCRIBE_GROUPS", "ro"),
    ("LIST_GROUPS", ALL),
    ("API_VERSIONS", ALL),
    ("CREATE_TOPICS", NONE),
    ("DELETE_TOPICS", NONE),
    ("CREATE_PARTITIONS", "o"),
    ("DELETE_RECORDS", NONE),
    ("INIT_PRODUCER_ID", "w"),
    ("INIT_PRODUCER_ID", "w"),  # of a transactional id
    ("OFFSET_FOR_LEADER_EPOCH", "rwo"),
    ("ADD_PARTITIONS_TO_TXN", "w"),
    ("ADD_OFFSETS_TO_TXN", NONE),  # of a consumer group that the writer may not read
    ("END_TXN", "w"),
    ("TXN_OFFSET_COMMIT", NONE),
    ("DESCRIBE_CONFIGS", "o"),
    ("DESCRIBE_CONFIGS", "o"),  # of a broker
    ("ALTER_CONFIGS", "o"),
    ("ALTER_CONFIGS", "o"),
    ("INCREMENTAL_ALTER_CONFIGS", "o"),
    ("DESCRIBE_LOG_DIRS", "o"),
    ("DELETE_GROUPS", NONE),
    ("ELECT_LEADERS", "o"),
    ("ALTER_PARTITION_REASSIGNMENTS", "o"),
    ("LIST_PARTITION_REASSIGNMENTS", "o"),
    ("OFFSET_DELETE", NONE),
    ("DESCRIBE_CLUSTER", ALL),
    ("DESCRIBE_PRODUCERS", "r"),
    ("DESCRIBE_TRANSACTIONS", "wo"),
    ("LIST_TRANSACTIONS", ALL),
    ("CONSUMER_GROUP_HEARTBEAT", "r"),
    ("CONSUMER_GROUP_DESCRIBE", "ro"),
    ("JOIN_SINK", "w"),
    ("END_SINK_BATCH", "w"),
    ("LOCATE_BATCHES", "r"),
    ("DESCRIBE_ACLS", "o"),
    ("CREATE_ACLS", "o"),
    ("DELETE_ACLS", "o"),
    ("DESCRIBE_CLIENT_QUOTAS", "o"),
    ("ALTER_CLIENT_QUOTAS", "o"),
    ("DESCRIBE_USER_SCRAM_CREDENTIALS", "o"),
    ("ALTER_USER_SCRAM_CREDENTIALS", "o"),
    ("FETCH", "r"),
    ("PRODUCE", "w"),
]
"""Who may have each request of `KAFKA_REQUESTS`, in their order, and Produce."""

NATIVE = [
    ("MetadataRequest", "rwo"),
    ("MetadataRequest", ALL),  # of all groups: those that it may know
    ("MetadataRequest", ALL),  # of __cluster
    ("WatchLeaderRequest", ALL),  # of __cluster
    ("AppendRequest", "w"),
    ("AppendRequest", NONE),  # which wants to read results
    ("FetchRequest", "r"),
    ("FetchRequest", "r"),
    ("StatusRequest", "o"),
    ("TransferRequest", "o"),
    ("ChangeMembersRequest", "o"),
    ("HistoryRequest", "o"),
    ("QueryRequest", "r"),
    ("SnapshotRequest", "o"),
    ("TransactionalRequest", "wo"),
    ("CreateGroupRequest", NONE),
    ("DeleteGroupRequest", NONE),
    ("AlterGroupRequest", "o"),
    ("ListGroupsRequest", "rwo"),
    ("ListGroupsRequest", ALL),
    ("WatchLeaderRequest", "rwo"),
    ("ConsumerHeartbeatRequest", "r"),
    ("CommitPositionsRequest", "r"),
    ("PositionsRequest", "ro"),
    ("UsersRequest", "o"),
    ("AlterUsersRequest", "o"),
    ("AclsRequest", "o"),
    ("AlterAclsRequest", "o"),
    ("CheckAclRequest", "o"),
    ("QuotasRequest", "o"),
    ("AlterQuotasRequest", "o"),
    ("CheckSecurityRequest", "o"),
]
"""Who may have each request of `NATIVE_REQUESTS`, in their order."""

PAGES = {"/health": ALL, "/metrics": "o", "/other": "o"}
"""Of the admin port, and who may have each beyond loopback: `/health` with one word is for all;
details and the rest are for who may describe the cluster."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def node(tmp_path_factory, authority):
    """A node of TLS, logins and rights, with users of each role."""
    own = authority.node("n0")
    tls = TlsConfig(certificate=str(own.certificate), key=str(own.key), ca=str(authority.file))
    with pytest.MonkeyPatch.context() as patch:
        # pages are shown as beyond loopback
        patch.setattr(admin_access, "is_loopback", lambda host: False)
        with login_node(
            tmp_path_factory.mktemp("table"),
            tls,
            groups=["g"],
            limits=Limits(handshake_ms=60_000),
            has_admin=True,
            authorization="on",
            super_users=["User:root"],
        ) as node:
            node.create_topic("t", os.urandom(16))
            for user in USERS.values():
                node.add_user(user, PASSWORD)
            node.give(rights())
            yield node


def rights():
    """The ACLs of the roles that the users have."""
    topic, group = Pattern(ResourceType.TOPIC, "t"), Pattern(ResourceType.GROUP, "g")
    consumers = Pattern(ResourceType.CONSUMER_GROUP, "c")
    ids = [
        Pattern(ResourceType.TRANSACTIONAL_ID, "x"),
        Pattern(ResourceType.TRANSACTIONAL_ID, str(ID)),
        Pattern(ResourceType.TRANSACTIONAL_ID, "quorumlog-sink:s:", PatternType.PREFIXED),
    ]
    return [
        *acls_of_role("reader", "User:reader", [topic, group, consumers]),
        *acls_of_role("writer", "User:writer", [topic, group, *ids]),
        *acls_of_role("operator", "User:operator"),
    ]


# -- the tables are complete ----------------------------------------------------------------------


def test_each_kind_of_request_has_a_row():
    names = [key.name for key, *_ in KAFKA_REQUESTS]
    assert [name for name, _ in KAFKA] == [*names, ApiKey.PRODUCE.name]
    asked = {ApiKey[name] for name, _ in KAFKA}
    assert asked | LOGINS == set(SPOKEN)
    names = [type(request).__name__ for _, request, _ in NATIVE_REQUESTS]
    assert [name for name, _ in NATIVE] == names
    assert {kind for kind, _, _ in NATIVE_REQUESTS} == CLIENT_KINDS - LOGIN_KINDS


def requests_of_kafka():
    """Yield the frame of each request, with its key and version."""
    for key, version, values, _ in KAFKA_REQUESTS:
        yield key, version, sent(key, version, values)
    yield ApiKey.PRODUCE, 9, produce_request(batch_of(range(1)))


def attached(request):
    return [encode_block([b"x"])] if isinstance(request, AppendRequest) else []


MESSAGES = [
    *((request, attached(request)) for _, request, _ in NATIVE_REQUESTS),
    *(
        (sample_of(message), [])
        for kind, message in MESSAGE_OF_KIND.items()
        if kind not in CLIENT_KINDS
    ),
]
"""All requests of clients, and a message of each other kind."""
OTHERS = [one for one, _ in MESSAGES[len(NATIVE_REQUESTS) :]]


# -- without TLS ----------------------------------------------------------------------------------


async def test_without_tls_a_client_of_our_own_is_told_so_and_nothing_else(node):
    async def asked(message, attachments):
        async with native(node) as client:
            client.send(message, attachments=attachments)
            return await client.all()

    found = await asyncio.gather(*(asked(*one) for one in MESSAGES))
    for answers in found:
        (told,) = answers
        assert isinstance(told, Hello)
        assert told.code == ResponseCode.TLS_REQUIRED
        assert (told.cluster, told.node_id, told.group) == ("", "", "")


async def test_without_tls_a_client_of_kafka_gets_nothing(node):
    async def asked(frame):
        async with kafka(node) as client:
            client.writer.write(frame)
            return await client.frame_or_end()

    found = await asyncio.gather(*(asked(frame) for *_, frame in requests_of_kafka()))
    assert set(found) == {None}


async def test_without_tls_no_page_is_shown(node):
    for path in PAGES:
        status, text = await http(node, path)
        assert (status, text) == (400, "this port speaks TLS: ask with https://\n")


# -- without a login, or with a wrong one ---------------------------------------------------------


async def test_without_a_login_each_request_of_our_own_protocol_is_refused(node, authority):
    async with native(node, context_of(authority)) as client:
        await client.answer(Hello)
        for message, attachments in MESSAGES:
            answer = await client.ask(message, *attachments)
            assert answer.code == ResponseCode.LOGIN_REQUIRED, message
            name = type(message).__name__
            assert answer.text == (
                f"{name} before a login: this node takes requests of known users only"
            )


async def test_without_a_login_a_client_of_kafka_is_told_to_log_in_first(node, authority):
    async def asked(key, version, frame):
        async with kafka(node, context_of(authority)) as client:
            client.writer.write(frame)
            came = await client.frame_or_end()
            return key, came and answered(RequestHeader(key, version, 7), came).to_dict()

    found = dict(await asyncio.gather(*(asked(*one) for one in requests_of_kafka())))
    assert set(errors_in(found.pop(ApiKey.API_VERSIONS))) == {0}
    for key, answer in found.items():
        assert answer is None or 34 in errors_in(answer), key  # ILLEGAL_SASL_STATE
        assert answer is None or set(errors_in(answer)) <= {0, 34}, key


async def test_after_a_wrong_login_nothing_is_answered(node, authority):
    async with native(node, context_of(authority)) as client:
        await client.answer(Hello)
        await client.scram("operator", "wrong")
        for number, (message, attachments) in enumerate(MESSAGES):
            client.send(message, number=100 + number, attachments=attachments)
        answers = await client.all()
    told = [one for one in answers if isinstance(one, Authenticated)]
    assert [(one.code, one.text) for one in told] == [(ResponseCode.LOGIN_REFUSED, "login refused")]
    others = [one.code for one in answers if not isinstance(one, Authenticated)]
    assert set(others) <= {ResponseCode.LOGIN_REQUIRED}


async def test_after_a_wrong_login_kafka_clients_get_the_refusal_alone(node, authority):
    """Each as a user of its own: refusals of one name are answered later and later."""

    async def asked(number, frame):
        async with kafka(node, context_of(authority)) as client:
            _, proof = await client.scram(f"guest{number}", "wrong")
            client.writer.write(sent(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": proof}) + frame)
            refusal = await client.answer(ApiKey.SASL_AUTHENTICATE, 1)
            return refusal.error_code, refusal.error_message, await client.frame_or_end()

    frames = [frame for *_, frame in requests_of_kafka()]
    found = await asyncio.gather(*(asked(*one) for one in enumerate(frames)))
    assert set(found) == {(58, "login refused", None)}


@pytest.mark.parametrize("shows", ["nothing", "another cluster's"])
async def test_who_is_nobody_sees_of_the_pages_only_whether_the_node_is_healthy(
    node, authority, shows
):
    pair = None
    if shows != "nothing":
        pair = authority.issue("mallory", "URI:quorumlog://9999999999abcdefghijk_/user/mallory")
    found = [await http(node, path, context_of(authority, pair)) for path in PAGES]
    assert found[0] == (200, '{"healthy": true}\n')
    assert all(status in (401, 403) for status, _ in found[1:])


# -- logged in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", USERS)
async def test_a_user_has_those_requests_of_kafka_that_the_role_allows(node, authority, letter):
    found = []
    async with kafka(node, context_of(authority)) as client:
        await client.log_in(USERS[letter], PASSWORD)
        for key, version, frame in requests_of_kafka():
            client.writer.write(frame)
            answer = await client.answer(key, version)
            is_served = {29, 30, 31, 53}.isdisjoint(errors_in(answer.to_dict()))
            found.append((key.name, is_served))
    assert found == [(name, letter in allowed) for name, allowed in KAFKA]


@pytest.mark.parametrize("letter", USERS)
async def test_a_user_has_those_requests_of_our_own_that_the_role_allows(node, authority, letter):
    found = []
    async with native(node, context_of(authority)) as client:
        await client.answer(Hello)
        await client.log_in(USERS[letter], PASSWORD)
        for _, request, _ in NATIVE_REQUESTS:
            answer = await client.ask(request, *attached(request))
            found.append((type(request).__name__, answer.code != ResponseCode.NOT_AUTHORIZED))
            assert found[-1][1] or "may not" in answer.text
    assert found == [(name, letter in allowed) for name, allowed in NATIVE]


@pytest.mark.parametrize("user", ["operator", "root"])
async def test_messages_of_peers_and_answers_are_taken_from_no_client(node, authority, user):
    """`root` is a super user, who may have every request."""
    async with native(node, context_of(authority, authority.user(user))) as client:
        await client.answer(Hello)
        for message in OTHERS:
            answer = await client.ask(message)
            assert answer.code == ResponseCode.UNSUPPORTED
            assert answer.text == f"{type(message).__name__} is not a client's message"


async def test_requests_of_clients_are_taken_from_no_peer(node, authority):
    added = ChangeMembersRequest(
        group="g", action=MemberAction.ADD, node_id="n1", address="127.0.0.1:1", learner=True
    )
    async with native(node, context_of(authority, authority.user("root"))) as client:
        await client.answer(Hello)
        assert (await client.ask(added)).code == ResponseCode.SUCCESS
    hello = client_hello("control", "n1", cluster="quorumlog")
    async with native(node, context_of(authority, authority.node("n1")), hello) as peer:
        await peer.answer(Hello)
        for _, request, _ in NATIVE_REQUESTS:
            answer = await peer.ask(request, *attached(request))
            assert answer.code == ResponseCode.UNSUPPORTED
            assert answer.text == f"{type(request).__name__} is not a peer's message"


@pytest.mark.parametrize("role", ["control", "bulk"])
async def test_a_user_is_no_peer(node, authority, role):
    hello = client_hello(role, "n0")
    async with native(node, context_of(authority, authority.user("operator")), hello) as peer:
        *_, told = await peer.all()
    assert told.code == ResponseCode.LOGIN_REFUSED
    assert told.text == "a user's certificate (operator) was shown for node n0"


@pytest.mark.parametrize("letter", USERS)
async def test_a_user_has_those_pages_that_the_role_allows(node, authority, letter):
    context = context_of(authority, authority.user(USERS[letter]))
    found = [await http(node, path, context) for path in PAGES]
    is_served = [status != 403 for status, _ in found]
    assert is_served == [letter in allowed for allowed in PAGES.values()]
    if letter in "o":
        assert [status for status, _ in found] == [200, 200, 404]
    assert ("groups" in found[0][1]) == (letter == "o")
