"""Requests of one client connection: all are answered, and waiting ones keep nobody waiting."""

import gc
import weakref
from types import SimpleNamespace

import pytest

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.needs import NEEDS
from quorumlog.model.audit_events import ADMINISTRATION_REFUSED, NO_AUDIT
from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.admin import ChangeMembersRequest, MemberAction, TransferRequest
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    StatusRequest,
)
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.model.messages.security import (
    AclFields,
    AlterAclsRequest,
    AlteredResponse,
    AlterQuotasRequest,
    AlterUsersRequest,
    QuotaAlteration,
    UserAlteration,
    VerifierFields,
)
from quorumlog.node.request_bounds import (
    RECENT_S,
    REQUEST_BYTES,
    SHARED_BYTES,
    RequestBounds,
)
from quorumlog.node.turn import Turn
from quorumlog.service import requests
from quorumlog.service.administration import ADMINISTRATION, RecordedRequests
from quorumlog.service.requests import FETCH_BYTES_BESIDE_INTERACTIVE_MAX, ClientRequests
from quorumlog.wire.frame import Frame

KIB, MIB = 1 << 10, 1 << 20
LIMITS = Limits(
    requests_in_flight_max=8,
    fetch_waiters_max=20,
    append_bytes_max=16 * MIB,
    query_bytes_max=16 * MIB,
)
OK, FULL = ResponseCode.SUCCESS, ResponseCode.LEADER_PENDING_FULL


class Replica:
    """Keeps fetches, appends and queries until it is told to answer."""

    core = SimpleNamespace(leader_id="n0", term=1, identity=b"", role=Role.LEADER)

    def __init__(self):
        self.asked = []
        self.clients = []
        self.waiting = []
        self.forgotten = []
        self.fetches = SimpleNamespace(forget=self.forgotten.append)
        self.applier = SimpleNamespace(queries=self.fetches)
        self.pending_requests = SimpleNamespace(leaders=SimpleNamespace(forget=lambda _: None))

    def propose(self, block, answer, entry, level):
        self.waiting.append(answer)

    def fetch(self, request, answer, client):
        self.asked.append(request)
        self.clients.append(id(client))
        self.waiting.append(answer)

    def query(self, request, body, answer, client):
        self.clients.append(id(client))
        self.waiting.append(answer)


class Jobs:
    """Threads, as the handler sees them."""

    def __init__(self):
        self.forgotten = []

    def forget(self, client):
        self.forgotten.append(id(client))


class Client:
    """A connection, as the handler sees it, and what came over it."""

    remote_address = "127.0.0.1:1"
    principal = ANONYMOUS
    mechanism = ""
    is_closed_loop = True
    yields_to_interactive = False
    hello = Hello(cluster="c", node_id="", role="client")

    def __init__(self, refuses=(), node=None):
        self.refuses = refuses
        clock = self.clock = [0.0]
        self.replica = Replica()
        self.answers = {}
        self.is_read = True
        self.ended = ""
        config = SimpleNamespace(limits=LIMITS, cluster="c", self_id="n0")
        served = {"replicas": {"g": self.replica}, "failed_groups": {}}
        bounds = RequestBounds(LIMITS, lambda: clock[0])
        served |= {
            "instruments": SimpleNamespace(audit=NO_AUDIT),
            "request_bounds": bounds,
            "executor": Jobs(),
            "turn": Turn(lambda call: call()),
        }
        self.node = node or SimpleNamespace(config=config, **served)
        self.handler = ClientRequests(self.node)
        self.number = 0

    def ask(self, message, attachment=b""):
        assert self.is_read
        self.number += 1
        self.handler.frame_received(self, Frame(self.number, message, memoryview(attachment)))
        return self.number

    def append(self, size):
        self.ask(AppendRequest(group="g", count=1), encode_block([bytes(size)]))

    def send(self, message, *, correlation_id, attachments=()):
        if isinstance(message, self.refuses):
            raise UnexpectedArgumentError(f"{type(message).__name__} is above a limit")
        self.answers[correlation_id] = message
        return True

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def close(self, reason):
        self.ended = reason


class Audited(type(NO_AUDIT)):
    def __init__(self, *, has_room):
        super().__init__()
        self.has_room = has_room
        self.told = []

    def record(self, event):
        self.told.append((event.operation, event.resource, event.request, event.reason))

    def is_accessed(self, kind, name):
        return (kind, name) == ("group", "g")


def audited(*, has_room=True):
    client = Client()
    client.node.instruments.audit = audit = Audited(has_room=has_room)
    client.handler = ClientRequests(client.node)
    return client, audit


def test_administration_that_cannot_be_recorded_is_not_done():
    client, _ = audited(has_room=False)
    answer = client.answers[client.ask(TransferRequest(group="g", transferee_id="n1"))]
    assert answer.code == ResponseCode.LEADER_PENDING_FULL
    assert "the audit log has no room" in answer.text
    client.ask(fetch(0))
    assert [one.group for one in client.replica.asked] == ["g"], "data is served"


def test_administration_is_recorded_with_what_became_of_it():
    client, audit = audited()
    client.ask(
        ChangeMembersRequest(
            group="none", action=MemberAction.ADD, node_id="n3", address="h:1", learner=True
        )
    )
    ((operation, resource, request, reason),) = audit.told
    assert (operation, resource) == ("Alter", "group:none")
    assert request == "ChangeMembers add n3 h:1 learner"
    assert reason.startswith("UNKNOWN_GROUP: node n0 does not host group 'none'")


def told_of(request, response):
    told, asking = [], SimpleNamespace(principal="User:a", mechanism="", remote_address="h:1")
    audit = SimpleNamespace(record=told.append)
    RecordedRequests(audit).answered(asking, request, response)
    return [(one.resource, one.request, one.reason, one.failed) for one in told]


def test_what_a_client_may_not_do_is_no_administration_of_its():
    request = TransferRequest(group="g", transferee_id="n1")
    refused = Response(code=ResponseCode.NOT_AUTHORIZED, text="you may not")
    assert told_of(request, refused) == []
    full = Response(code=ResponseCode.LEADER_PENDING_FULL, text=ADMINISTRATION_REFUSED)
    assert told_of(request, full) == []
    failed = Response(code=ResponseCode.NOT_LEADER)
    assert told_of(request, failed) == [("group:g", "Transfer n1", "NOT_LEADER", True)]
    assert told_of(request, Response()) == [("group:g", "Transfer n1", "", False)]


def test_administration_is_that_of_whoever_asked_for_it():
    told, client = [], SimpleNamespace(principal="User:a", mechanism="PLAIN", remote_address="h:1")
    recorded = RecordedRequests(SimpleNamespace(record=told.append, has_room=True))
    first = TransferRequest(group="g", transferee_id="n1")
    second = TransferRequest(group="g", transferee_id="n2")
    recorded.begins(client, first)
    client.principal, client.mechanism = "User:b", "SCRAM-SHA-256"
    recorded.begins(client, second)
    recorded.answered(client, second, Response())
    recorded.answered(client, first, Response())
    assert [(one.request, one.principal, one.mechanism) for one in told] == [
        ("Transfer n2", "User:b", "SCRAM-SHA-256"),
        ("Transfer n1", "User:a", "PLAIN"),
    ]


def test_changes_of_users_acls_and_quotas_have_a_line_each():
    verifier = VerifierFields(b"canary", b"canary", b"canary", 4096)
    users = AlterUsersRequest(
        group="__cluster",
        changes=[
            UserAlteration("alice", {"SCRAM-SHA-256": verifier, "SCRAM-SHA-512": None}),
            UserAlteration("bob", {}, exists=True, replaces=True),
        ],
    )
    answer = AlteredResponse(outcomes=[(ResponseCode.SUCCESS, ""), (603, "there is no bob")])
    found = told_of(users, answer)
    assert found == [
        ("user:alice", "AlterUsers set SCRAM-SHA-256, remove SCRAM-SHA-512", "", False),
        ("user:bob", "AlterUsers remove", found[1][2], True),
    ]
    assert found[1][2].endswith(": there is no bob")
    assert "canary" not in str(found)
    acl = AclFields("User:alice", "allow", "write", "topic", "t", "literal", "*")
    acls = AlterAclsRequest(group="__cluster", added=[acl], removed=[acl])
    words = "allow write topic:t literal from *"
    assert told_of(acls, AlteredResponse(outcomes=[(ResponseCode.SUCCESS, "")] * 2)) == [
        ("acl:User:alice", f"AlterAcls add {words}", "", False),
        ("acl:User:alice", f"AlterAcls remove {words}", "", False),
    ]
    quotas = AlterQuotasRequest(
        group="__cluster", changes=[QuotaAlteration([("user", "alice")], "producer_byte_rate", 1.0)]
    )
    failed = AlteredResponse(code=ResponseCode.NOT_LEADER, text="n0 starts")
    assert told_of(quotas, failed) == [
        ("quota:user=alice", "AlterQuotas set producer_byte_rate", "NOT_LEADER: n0 starts", True)
    ]


OTHERS = {
    *("Metadata", "Append", "Fetch", "Status", "WatchLeader", "History", "Query"),
    *("Transactional", "ListGroups", "ConsumerHeartbeat", "CommitPositions", "Positions"),
    *("Users", "Acls", "CheckAcl", "Quotas", "CheckSecurity"),
}
"""Requests that only show something, or that clients send in the course of their work."""


def test_each_request_administers_or_is_known_not_to():
    names = {kind.__name__.removesuffix("Request") for kind in NEEDS}
    assert names == OTHERS | {kind.__name__.removesuffix("Request") for kind in ADMINISTRATION}


def test_nothing_is_told_of_data_that_was_refused():
    client, audit = audited()
    client.ask(AppendRequest(group="g", count=0))
    assert audit.told == []


def test_reads_and_writes_are_recorded_where_that_is_wanted():
    client, audit = audited()
    client.append(1)
    client.ask(fetch(0))
    client.ask(QueryRequest(group="other"))
    assert audit.told == [("Write", "group:g", "Append", ""), ("Read", "group:g", "Fetch", "")]


def fetch(wait_ms):
    return FetchRequest(group="g", begin_index=0, bytes_max=1, wait_ms=wait_ms)


def test_an_answer_that_no_frame_takes_is_answered_with_the_reason():
    client = Client(refuses=(MetadataResponse,))
    client.handler._node.replicas.clear()
    for _ in range(3 * LIMITS.requests_in_flight_max):
        answer = client.answers[client.ask(MetadataRequest(group=""))]
        assert answer.code == ResponseCode.INTERNAL_ERROR
        assert "cannot be sent: MetadataResponse is above a limit" in answer.text
    assert client.is_read


def test_long_polls_keep_nothing_else_from_being_read_and_have_a_bound_of_their_own():
    client = Client()
    for _ in range(LIMITS.fetch_waiters_max // 4):
        client.ask(fetch(wait_ms=10_000))
    assert client.is_read
    assert client.answers == {}
    refused = client.answers[client.ask(fetch(wait_ms=10_000))]
    assert refused.code == ResponseCode.LEADER_PENDING_FULL
    assert client.answers[client.ask(StatusRequest(group="none"))].code == (
        ResponseCode.UNKNOWN_GROUP
    )


def test_long_polls_of_all_connections_have_a_bound_in_sum(monkeypatch):
    monkeypatch.setattr(requests, "POLLS_MAX", 12)
    first = Client()
    others = [Client(node=first.node) for _ in range(3)]
    for client in (first, *others):
        for _ in range(LIMITS.fetch_waiters_max // 4 - 1):
            client.ask(fetch(wait_ms=10_000))
    codes = [answer.code for client in others for answer in client.answers.values()]
    assert codes == [ResponseCode.LEADER_PENDING_FULL] * 4
    for answer in first.node.replicas["g"].waiting:
        answer(Response(), [])
    assert first.node.request_bounds.polls == 0
    assert first.ask(fetch(wait_ms=10_000)) not in first.answers


def test_a_fetch_is_answered_in_parts_while_interactive_clients_ask():
    client = Client()
    for client.yields_to_interactive in (False, True):
        for bytes_max in (1, 4 << 20):
            client.ask(FetchRequest(group="g", begin_index=7, bytes_max=bytes_max, wait_ms=9))
    asked = [(one.bytes_max, one.begin_index, one.wait_ms) for one in client.replica.asked]
    most = FETCH_BYTES_BESIDE_INTERACTIVE_MAX
    assert asked == [(1, 7, 9), (4 << 20, 7, 9), (1, 7, 9), (most, 7, 9)]


def test_reads_for_a_client_that_has_disconnected_are_dropped():
    client = Client()
    client.ask(fetch(wait_ms=0))
    client.handler.closed(client, "it ended")
    assert client.node.executor.forgotten == client.replica.clients == [id(client.handler)]


def test_polls_whose_client_has_disconnected_do_not_count_any_more():
    """Those of them that wait for a thread are dropped, and never answered."""
    client = Client()
    other = Client(node=client.node)
    for _ in range(3):
        client.ask(fetch(wait_ms=10_000))
    other.ask(fetch(wait_ms=10_000))
    client.handler.closed(client, "gone")
    assert client.replica.forgotten == [client.handler] * 2  # its fetches, its queries
    assert client.node.request_bounds.polls == 1
    client.replica.waiting.pop(0)(Response(), [])
    assert client.node.request_bounds.polls == 1


def test_a_client_that_asks_for_an_unknown_group_is_told_a_few_of_many():
    client = Client()
    client.node.replicas = {f"group-{number}": client.replica for number in range(1_000)}
    refused = client.answers[client.ask(StatusRequest(group="none"))]
    assert len(refused.text) < 300
    assert "group-0, group-1" in refused.text
    assert "and 992 more" in refused.text


def test_too_many_other_requests_are_read_again_once_half_of_them_are_answered():
    client = Client()
    for _ in range(LIMITS.requests_in_flight_max):
        client.ask(fetch(wait_ms=0))
    assert not client.is_read
    while not client.is_read:
        client.replica.waiting.pop()(Response(code=ResponseCode.TIMEOUT), [])
    assert len(client.replica.waiting) == LIMITS.requests_in_flight_max // 2 - 1


def test_the_requests_of_a_disconnected_client_are_freed_at_once():
    client = Client()
    client.ask(StatusRequest(group="none"))
    requests_of_it = weakref.ref(client.handler)
    gc.disable()
    try:
        del client
        assert requests_of_it() is None
    finally:
        gc.enable()


def append_until_paused(client, size):
    """Return how many appends of a client are taken before no more are read."""
    count = 0
    while client.is_read and count < LIMITS.requests_in_flight_max:
        client.append(size)
        count += 1
    return count


QUARTER = SHARED_BYTES // 4


def test_a_client_that_appends_alone_may_have_all_requests_in_flight():
    assert append_until_paused(Client(), SHARED_BYTES) == LIMITS.requests_in_flight_max


def test_each_of_several_bulk_clients_has_its_share_and_always_one_block_in_flight():
    first = Client()
    others = [Client(node=first.node) for _ in range(3)]
    for client in (first, *others):
        client.is_closed_loop = False
    for other in others:
        other.append(1)
    assert append_until_paused(first, QUARTER // 2) == 2
    assert append_until_paused(others[0], SHARED_BYTES) == 1
    first.node.replicas["g"].waiting[3](AppendResponse(), [])
    assert first.is_read


def test_a_client_that_waits_for_its_answers_has_no_share_however_many_append():
    """Of 300 pipelines each has a share of less than one append."""
    first = Client()
    for other in [Client(node=first.node) for _ in range(300)]:
        other.is_closed_loop = False
        other.append(1)
    assert append_until_paused(first, 1024) == LIMITS.requests_in_flight_max


def test_the_log_is_crowded_once_several_clients_have_too_much_in_flight_together():
    """One alone may fill all the space there is, whoever else reads."""
    first = Client()
    shares = first.node.request_bounds.shares
    append_until_paused(first, SHARED_BYTES)
    assert not shares.is_crowded()
    second = Client(node=first.node)
    second.append(1)
    assert shares.is_crowded()
    for answer in list(first.replica.waiting):
        answer(AppendResponse(), [])
    assert not shares.is_crowded()
    append_until_paused(first, SHARED_BYTES)
    assert shares.is_crowded()
    first.handler.closed(first, "gone")
    assert not shares.is_crowded()


def test_a_client_that_is_idle_or_disconnected_has_no_share():
    first = Client()
    first.is_closed_loop = False
    second, third = Client(node=first.node), Client(node=first.node)
    second.append(1)
    third.append(1)
    third.handler.closed(third, "gone")
    first.clock[0] = 0.9 * RECENT_S
    assert append_until_paused(first, QUARTER) == 2
    for answer in list(first.replica.waiting):
        answer(AppendResponse(), [])
    first.clock[0] = 2.1 * RECENT_S
    assert append_until_paused(first, SHARED_BYTES) == LIMITS.requests_in_flight_max


def test_appends_of_a_disconnected_client_are_freed_with_it():
    client = Client()
    node, handler = client.node, weakref.ref(client.handler)
    client.append(1)
    answer = client.replica.waiting.pop()
    client.handler.closed(client, "gone")
    answer(AppendResponse(), [])
    gc.disable()
    try:
        del client, answer
        assert handler() is None
    finally:
        gc.enable()
    assert Client(node=node).is_read


# -- memory of all requests that wait ---------------------------------------------------------


def appended_by_new_clients(first, size, count):
    """Have so many clients append one block each; return the codes of those refused."""
    clients = [Client(node=first.node) for _ in range(count)]
    for client in clients:
        client.append(size)
    return [answer.code for client in clients for answer in client.answers.values()]


def test_appends_of_all_clients_that_wait_are_bounded_in_bytes_also_if_they_disconnect():
    first = Client()
    waiting = first.node.replicas["g"].waiting
    assert appended_by_new_clients(first, 4 * MIB - 2 * REQUEST_BYTES, 6) == [FULL] * 2
    for client in [Client(node=first.node) for _ in range(2)]:
        client.handler.closed(client, "gone")
    assert appended_by_new_clients(first, 1 * MIB, 1) == [FULL]
    waiting.pop()(AppendResponse(), [])
    assert appended_by_new_clients(first, 1 * MIB, 1) == []
    for answer in waiting:
        answer(AppendResponse(), [])
    assert first.node.request_bounds.appends.used == 0


def test_the_memory_of_a_disconnected_clients_append_is_held_until_it_is_answered():
    client = Client()
    client.append(1 * MIB)
    client.handler.closed(client, "gone")
    assert client.node.request_bounds.appends.used > 1 * MIB
    client.replica.waiting.pop()(AppendResponse(), [])
    assert client.node.request_bounds.appends.used == 0


def test_a_client_waits_with_its_next_append_while_half_of_the_memory_is_used():
    client = Client()
    client.is_closed_loop = False
    assert append_until_paused(client, 3 * MIB) == 3
    assert client.answers == {}
    client.replica.waiting.pop()(AppendResponse(), [])
    assert client.is_read


def query(wait_ms):
    return QueryRequest(group="g", linearizable=not wait_ms, wait_ms=wait_ms)


def test_queries_of_all_clients_that_wait_are_bounded_in_bytes_and_long_ones_leave_room():
    first = Client()
    for wait_ms, taken in ((10_000, 2), (0, 2)):
        clients = [Client(node=first.node) for _ in range(4)]
        for client in clients:
            client.ask(query(wait_ms), bytes(3 * MIB))
        refused = [answer.code for client in clients for answer in client.answers.values()]
        assert refused == [FULL] * (4 - taken)
    for answer in first.node.replicas["g"].waiting:
        answer(OK, "", 0, b"")
    bounds = first.node.request_bounds
    assert (bounds.queries.used, bounds.waiting_queries.used) == (0, 0)


def test_queries_of_a_disconnected_client_are_dropped_and_hold_no_memory():
    client = Client()
    for wait_ms in (0, 10_000):
        client.ask(query(wait_ms), bytes(MIB))
    client.handler.closed(client, "gone")
    assert client.handler in client.replica.forgotten
    bounds = client.node.request_bounds
    assert (bounds.queries.used, bounds.waiting_queries.used, bounds.polls) == (0, 0, 0)
    client.replica.waiting.pop()(OK, "", 0, b"")  # the machine had it already
    assert (bounds.queries.used, bounds.waiting_queries.used, bounds.polls) == (0, 0, 0)


def test_a_client_with_little_under_way_is_read_while_others_take_the_memory():
    few = Client()
    few.is_closed_loop = False
    appended_by_new_clients(few, 4 * MIB - 2 * REQUEST_BYTES, 2)
    few.clock[0] = 1.1 * RECENT_S  # so the others have no share any more
    few.append(1 * MIB)
    assert not few.is_read
    small = Client(node=few.node)
    small.is_closed_loop = False
    small.append(1 * KIB)
    assert small.is_read


def test_one_client_has_a_part_of_the_memory_for_queries():
    """Of those that wait for an index more are refused; with others it waits for answers."""
    client = Client()
    numbers = [client.ask(query(10_000), bytes(MIB - 2 * KIB)) for _ in range(4)]
    assert [client.answers[one].code for one in numbers if one in client.answers] == [FULL] * 2
    while client.is_read:
        client.ask(query(0), bytes(MIB - 2 * KIB))
    assert len(client.replica.waiting) == 2 + 3
    client.replica.waiting.pop()(OK, "", 0, b"")
    assert client.is_read


def test_a_query_larger_than_a_part_is_taken_if_it_is_alone():
    client = Client()
    for wait_ms in (0, 10_000):
        number = client.ask(query(wait_ms), bytes(8 * MIB))
        assert number not in client.answers
        client.replica.waiting.pop()(OK, "", 0, b"")


def test_a_request_whose_handler_fails_is_counted_no_more():
    client = Client()

    def fails(*_):
        raise ZeroDivisionError

    client.replica.propose = fails
    with pytest.raises(ZeroDivisionError):
        client.append(1 * MIB)
    assert client.node.request_bounds.appends.used == 0
