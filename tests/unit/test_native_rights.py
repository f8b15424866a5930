"""Which requests of our own protocol a client may have: each kind, for clients with each right.

The table (`native_rights_table`) says what is meant, whatever the product's table has.
"""

from types import SimpleNamespace

import pytest

from native_rights_table import ALICE, CLUSTER, ID, JUDGED, ROLES, TABLE, G
from quorumlog.auth.view import SecurityView
from quorumlog.model.audit_events import NO_AUDIT
from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.limits import Limits
from quorumlog.model.messages import (
    base,
    client,
    groups,
    machine,
    security,
    transactions,
)
from quorumlog.model.security_config import SecurityConfig
from quorumlog.node.request_bounds import RequestBounds
from quorumlog.node.turn import Turn
from quorumlog.service import requests
from quorumlog.service.requests import ClientRequests
from quorumlog.service.security import SecurityService
from quorumlog.sessions.entries import InitTransactions, encode_session_block
from quorumlog.sessions.entries import TransactionPart as Part
from quorumlog.wire.frame import Frame
from quorumlog.wire.kinds import MESSAGE_OF_KIND
from rights import RightsOfTest

OK, FORBIDDEN = ResponseCode.SUCCESS, ResponseCode.NOT_AUTHORIZED
LIMITS = Limits()


class Replica:
    """A replica, as the handler sees it; it answers when it is told to."""

    def __init__(self):
        self.core = SimpleNamespace(
            leader_id="n0",
            term=3,
            identity=b"",
            role=Role.LEADER,
            membership=SimpleNamespace(members=()),
        )
        self.config = SimpleNamespace(group="g")
        self.placement = SimpleNamespace(misplaced_text="")
        self.asked, self.waiting = [], []
        self.pending_requests = SimpleNamespace(leaders=self)

    def propose(self, block, answer, entry, level):
        self.waiting.append(lambda: answer(client.AppendResponse(first_index=1), []))

    def fetch(self, request, answer, client_):
        self.asked.append(request)
        self.waiting.append(lambda: answer(client.FetchResponse(count=1), [b"secret"]))

    def query(self, request, body, answer, client_):
        self.waiting.append(lambda: answer(OK, "", 5, b"secret"))

    def wait(self, above_term, wait_ms, answer, client_):
        self.waiting.append(answer)


class Connected:
    """A connection of a client to a node that hosts some groups, and what it was answered."""

    remote_address = "192.0.2.1:5"
    is_closed_loop = True
    mechanism = login_mechanism = ""
    yields_to_interactive = False

    def __init__(self, rights, principal=ALICE, group="", security=None):
        self.principal = principal
        self.answers, self.unasked = [], []
        self.replicas = {name: Replica() for name in ("g", "hidden", "__cluster", "pg-1")}
        node = SimpleNamespace(
            config=SimpleNamespace(limits=LIMITS, cluster="c", self_id="n0", security=None),
            instruments=SimpleNamespace(audit=NO_AUDIT),
            replicas=self.replicas,
            failed_groups={},
            request_bounds=RequestBounds(LIMITS, lambda: 0.0),
            turn=Turn(lambda call: call()),
        )
        self.handler = ClientRequests(node, None, security, rights and rights.authorizer)
        self.hello = base.Hello(cluster="c", node_id="", role="client", group=group)
        self.handler.opened(self, self.hello)

    def ask(self, message, attachment=b""):
        self.handler.frame_received(self, Frame(1, message, memoryview(attachment)))
        return self.answers[-1][0] if self.answers else None

    def append(self, *entries, **fields):
        block = b"".join(entries) or encode_block([b"x"])
        count = fields.pop("count", 1)
        return self.ask(client.AppendRequest(group="g", count=count, **fields), block)

    def send(self, message, *, correlation_id=0, attachments=(), has_room=False):
        if correlation_id:
            self.answers.append((message, [bytes(one) for one in attachments]))
        else:
            self.unasked.append(message)
        return True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


@pytest.fixture
def rights():
    return RightsOfTest()


# -- each kind, with each right -----------------------------------------------------------------


def test_the_table_has_each_kind_that_clients_send():
    assert {kind for kind, _, _ in TABLE} == JUDGED
    assert all(type(request) is MESSAGE_OF_KIND[kind] for kind, request, _ in TABLE)


def principal_of(role):
    return {"anonymous": "User:ANONYMOUS", "super": "User:root"}.get(role, ALICE)


@pytest.fixture
def handled(monkeypatch):
    """Handlers that do nothing but answer."""

    def handler(self, connection, frame, request):
        self._answer(connection, frame, base.Response())

    for kind in JUDGED:
        monkeypatch.setitem(requests._HANDLERS, MESSAGE_OF_KIND[kind], handler)


@pytest.mark.parametrize("role", ROLES)
def test_a_client_may_have_what_its_rights_say_and_nothing_else(handled, rights, role):
    rights.give(ALICE, *ROLES[role])
    connected = Connected(rights, principal_of(role))
    found = {
        place: connected.ask(request).code == OK for place, (_, request, _) in enumerate(TABLE)
    }
    assert found == {
        place: role == "super" or role in allowed for place, (_, _, allowed) in enumerate(TABLE)
    }


def test_results_of_a_machine_need_the_right_to_read_beside_that_to_write(handled, rights):
    rights.give(ALICE, "write group g", "read group g")
    assert Connected(rights).append(wants_results=True).code == OK


VERIFIER = security.VerifierFields(b"salt-of-tests", b"stored", b"server", 4_096)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([security.UserAlteration("alice", {"SCRAM-SHA-256": VERIFIER}, True, True)], OK),
        ([security.UserAlteration("bob", {"SCRAM-SHA-256": VERIFIER}, True, True)], FORBIDDEN),
        ([security.UserAlteration("alice", {"SCRAM-SHA-256": VERIFIER})], FORBIDDEN),
        ([security.UserAlteration("alice", {"SCRAM-SHA-256": None}, True)], FORBIDDEN),
        ([security.UserAlteration("alice", {}, True, True)], FORBIDDEN),
        (
            [
                security.UserAlteration("alice", {"SCRAM-SHA-256": VERIFIER}, True),
                security.UserAlteration("bob", {"SCRAM-SHA-256": VERIFIER}, True),
            ],
            FORBIDDEN,
        ),
    ],
)
def test_a_user_who_has_a_password_changes_it_and_nothing_else(handled, rights, changes, code):
    request = security.AlterUsersRequest(**CLUSTER, changes=changes)
    connected = Connected(rights)
    connected.login_mechanism = "SCRAM-SHA-256"
    assert connected.ask(request).code == code


@pytest.mark.parametrize(
    ("mechanism", "iterations", "code"),
    [
        ("", 4_096, FORBIDDEN),  # by a certificate
        ("OAUTHBEARER", 4_096, FORBIDDEN),
        ("PLAIN", 4_096, OK),
        ("PLAIN", 1_000_000, FORBIDDEN),
    ],
)
def test_who_has_not_shown_the_password_does_not_change_it(
    handled, rights, mechanism, iterations, code
):
    verifier = security.VerifierFields(b"salt-of-tests", b"stored", b"server", iterations)
    change = security.UserAlteration("alice", {"SCRAM-SHA-256": verifier}, True, True)
    connected = Connected(rights)
    connected.login_mechanism = mechanism
    request = security.AlterUsersRequest(**CLUSTER, changes=[change])
    assert connected.ask(request).code == code


def test_who_may_create_groups_in_the_cluster_may_create_any(handled, rights):
    rights.give(ALICE, "create cluster")
    request = next(one for kind, one, _ in TABLE if kind == 60)
    assert Connected(rights).ask(request).code == OK


class Made:
    """A node's groups, and those that are made."""

    def __init__(self, connected, monkeypatch):
        def make(node, request, answer, sees):
            answer(base.Response())

        monkeypatch.setattr(requests, "answer_groups_request", make)
        self._ask, node = connected.ask, connected.handler._node
        node.own_address, node.replicas = "h0:1", {}
        used = SimpleNamespace(state_machine="theirs:Machine")
        known = {"n0": "h0:1", "n1": "h1:1"}
        node.catalog = SimpleNamespace(known_addresses=lambda: known, configs={"g": used})

    def code(self, peers, machine=""):
        settings = {"stateMachine": machine} if machine else {}
        request = groups.CreateGroupRequest(**G, identity=bytes(16), peers=peers, settings=settings)
        answer = self._ask(request)
        assert (answer.code == OK) == ("is not known to node n0" not in answer.text)
        return answer.code


@pytest.mark.parametrize(
    ("peers", "machine"),
    [
        ("n0-h0:1;n7-h7:1", ""),  # the node would dial it
        ("n0-h0:1;n1-h7:1", ""),
        ("n0-h7:1", ""),
        ("n0-h0:1;n1-h1:1", "antigravity:Machine"),  # it would import it
    ],
)
@pytest.mark.parametrize("role", ["alter cluster", "create cluster"])
def test_new_members_and_machines_are_brought_by_who_has_a_right_on_the_cluster(
    rights, monkeypatch, peers, machine, role
):
    rights.give(ALICE, "create group g")
    made = Made(Connected(rights), monkeypatch)
    assert made.code(peers, machine) == FORBIDDEN
    rights.give(ALICE, role)
    assert made.code(peers, machine) == OK


@pytest.mark.parametrize("machine", ["", "kv", "theirs:Machine"])
def test_who_may_create_a_group_makes_it_of_what_the_node_knows(rights, monkeypatch, machine):
    rights.give(ALICE, "create group g")
    assert Made(Connected(rights), monkeypatch).code("n0-h0:1;n1-h1:1", machine) == OK


def test_a_request_without_a_line_in_the_table_is_refused(handled, monkeypatch, rights):
    class NewRequest(base.Request, frozen=True, kw_only=True):
        pass

    handler = requests._HANDLERS[client.MetadataRequest]
    monkeypatch.setitem(requests._HANDLERS, NewRequest, handler)
    found = Connected(rights, "User:root").ask(NewRequest(group="g"))
    assert found.code == FORBIDDEN
    assert "not known which rights" in found.text


@pytest.mark.parametrize("principal", [ALICE, "User:root"])
@pytest.mark.parametrize("group", ["__cluster", "pg-1", "pg-999"])
def test_nobody_reads_or_writes_groups_of_the_brokers(handled, rights, principal, group):
    rights.give(ALICE, "all group *")
    connected = Connected(rights, principal)
    for request in (
        client.AppendRequest(group=group, count=1),
        client.FetchRequest(group=group, begin_index=0),
        machine.QueryRequest(group=group),
        transactions.TransactionalRequest(
            group=group, transactional_id=bytes(16), run_id=bytes(16)
        ),
    ):
        found = connected.ask(request)
        assert found.code == FORBIDDEN
        assert "brokers" in found.text
    assert connected.ask(client.MetadataRequest(group=group)).code == OK


def test_without_authorization_everybody_may_have_everything(handled):
    connected = Connected(None, "User:ANONYMOUS")
    assert {connected.ask(request).code for _, request, _ in TABLE} == {OK}


def test_where_passwords_are_checked_nobody_reads_them_from_the_log_though_none_is_judged(handled):
    def asked(security_):
        connected = Connected(None, "User:ANONYMOUS", security=security_)
        return [
            connected.ask(request).code
            for request in (
                client.FetchRequest(**CLUSTER, begin_index=0),
                machine.QueryRequest(**CLUSTER),
                client.FetchRequest(**G, begin_index=0),
            )
        ]

    broker = SimpleNamespace(security=SecurityView())
    plain = SecurityService(SimpleNamespace(security=None), broker)
    assert asked(plain) == [OK, OK, OK]
    broker.security = SecurityView(users={"alice": {}})
    assert asked(plain) == [FORBIDDEN, FORBIDDEN, OK]
    secured = SecurityService(SimpleNamespace(security=SecurityConfig(authorization="off")))
    assert asked(secured) == [FORBIDDEN, FORBIDDEN, OK]


def test_where_refusals_are_only_reported_all_are_served_but_the_log_of_the_cluster(handled):
    rights = RightsOfTest(only_reports=True)
    connected = Connected(rights)
    assert {connected.ask(request).code for _, request, _ in TABLE} == {OK}
    reported = {one.right for one in rights.refused}
    assert len(reported) > 10
    assert not any(one.is_enforced for one in rights.refused)
    assert connected.ask(client.FetchRequest(group="pg-1", begin_index=0)).code == OK
    assert connected.ask(client.FetchRequest(group="__cluster", begin_index=0)).code == FORBIDDEN
    assert rights.refused[-1].is_enforced


# -- a node that has just started -----------------------------------------------------------------

FOR_ALL = [
    client.MetadataRequest(group="__cluster"),
    client.WatchLeaderRequest(group="__cluster"),
]
"""What everybody may have, whoever is judged by."""


@pytest.mark.parametrize("acls", [(), ("all group *", "all cluster")], ids=["empty", "old"])
def test_a_node_that_does_not_know_the_rights_yet_has_clients_try_again(handled, rights, acls):
    """Neither an empty nor an old view counts: a refusal would be final, a right may be gone."""
    rights.give(ALICE, *acls)
    rights.is_ready = False
    connected = Connected(rights, group="g")
    connected.replicas["g"].core.identity = bytes(16)
    asked = [request for _, request, _ in TABLE if request not in FOR_ALL]
    for request in asked:
        found = connected.ask(request)
        assert found.code == ResponseCode.LEADER_NOT_READY
        assert "has just started" in found.text
    assert connected.unasked == []  # the identity of a group is told to who may know the group
    assert rights.refused == []
    assert [connected.ask(request).code for request in FOR_ALL] == [OK, OK]
    assert Connected(rights, "User:root").ask(client.FetchRequest(**G, begin_index=0)).code == OK
    rights.is_ready = True
    expected = OK if acls else FORBIDDEN
    assert connected.ask(client.FetchRequest(**G, begin_index=0)).code == expected
    rights.is_ready = False  # the node stops
    assert connected.ask(client.FetchRequest(**G, begin_index=0)).code == expected


def test_what_would_be_refused_is_not_reported_before_the_rights_are_known(handled):
    rights = RightsOfTest(only_reports=True)
    rights.is_ready = False
    connected = Connected(rights)
    assert connected.ask(client.FetchRequest(**G, begin_index=0)).code == OK
    assert connected.ask(client.FetchRequest(**CLUSTER, begin_index=0)).code == FORBIDDEN
    assert {one.right.name for one in rights.refused} == {"__cluster"}
    rights.is_ready = True
    assert connected.ask(client.FetchRequest(**G, begin_index=0)).code == OK
    assert {one.right.name for one in rights.refused} == {"__cluster", "g"}


# -- what is told ---------------------------------------------------------------------------------


def test_groups_that_do_not_exist_are_refused_as_those_that_are_hidden(rights):
    rights.give(ALICE, "read group g")
    connected = Connected(rights)
    hidden = connected.ask(client.FetchRequest(group="hidden", begin_index=0))
    absent = connected.ask(client.FetchRequest(group="absent", begin_index=0))
    assert hidden.code == absent.code == FORBIDDEN
    assert hidden.text.replace("hidden", "absent") == absent.text
    assert absent.text.startswith("alice may not read group 'absent'")


def test_who_asks_for_an_unknown_group_is_told_of_those_that_it_may_know(rights):
    rights.give(ALICE, "describe group g", "describe group x*")
    found = Connected(rights).ask(client.MetadataRequest(group="xyz"))
    assert found.code == ResponseCode.UNKNOWN_GROUP
    assert found.text.endswith("does not host group 'xyz'; it hosts g")
    rights.take(ALICE, "describe group g")
    found = Connected(rights).ask(client.MetadataRequest(group="xyz"))
    assert found.text.endswith("does not host group 'xyz'")


def test_a_list_of_groups_has_those_that_the_client_may_know(rights, monkeypatch):
    monkeypatch.setattr(requests, "addresses_of", lambda membership: {})
    rights.give(ALICE, "describe group g")
    connected = Connected(rights)
    for replica in connected.replicas.values():
        replica.config.group = next(
            name for name, one in connected.replicas.items() if one is replica
        )
    found = connected.ask(client.MetadataRequest(group=""))
    assert [one.group for one in found.groups] == ["g"]


def test_the_identity_of_a_group_is_told_to_those_who_may_know_the_group(rights):
    connected = Connected(rights, group="g")
    connected.replicas["g"].core.identity = bytes(16)
    connected.handler.opened(connected, connected.hello)
    assert connected.unasked == []
    rights.give(ALICE, "read group g")
    connected.handler.opened(connected, connected.hello)
    assert [one.group for one in connected.unasked] == ["g"]


@pytest.mark.parametrize(("acls", "machine_"), [((), ""), (("describe cluster",), "m")])
def test_where_files_are_is_told_to_those_who_may_describe_the_cluster(rights, acls, machine_):
    rights.give(ALICE, "read group g", *acls)
    connected = Connected(rights)
    connected.ask(client.FetchRequest(group="g", begin_index=0, machine="m"))
    assert connected.replicas["g"].asked[0].machine == machine_


def test_a_block_of_a_transaction_needs_the_right_to_its_transactional_id(rights):
    part = Part(ID.bytes, 1, 1, 0)
    blocks = [
        (2, encode_session_block(1, 0, [b"x"], part=part)),
        (1, InitTransactions(ID.bytes, bytes(16), 1_000).encode()),
    ]
    rights.give(ALICE, "write group g")
    connected = Connected(rights)
    assert connected.append(encode_session_block(1, 0, [b"x"]), count=2) is None  # it waits
    for count, block in blocks:
        found = connected.append(block, count=count)
        assert found.code == FORBIDDEN
        assert str(ID) in found.text
    assert len(connected.replicas["g"].waiting) == 1
    rights.give(ALICE, f"write transaction {ID}")
    for count, block in blocks:
        connected.append(block, count=count)
    assert len(connected.replicas["g"].waiting) == 3


# -- rights that are taken away -------------------------------------------------------------------

WAITING = [
    client.FetchRequest(group="g", begin_index=9, wait_ms=1_000),
    machine.QueryRequest(group="g", wait_ms=1_000),
    client.WatchLeaderRequest(group="g", wait_ms=1_000),
]


@pytest.mark.parametrize("request_", WAITING, ids=lambda one: type(one).__name__)
def test_a_request_that_waits_ends_with_the_refusal_once_the_right_is_gone(rights, request_):
    rights.give(ALICE, "read group g")
    connected = Connected(rights)
    assert connected.ask(request_) is None
    rights.take(ALICE, "read group g")
    connected.replicas["g"].waiting.pop()()
    ((answer, attached),) = connected.answers
    assert (answer.code, attached) == (FORBIDDEN, [])
    assert connected.ask(request_).code == FORBIDDEN


def test_an_append_that_was_taken_is_answered_as_it_is_though_the_right_is_gone(rights):
    rights.give(ALICE, "write group g")
    connected = Connected(rights)
    connected.append()
    rights.take(ALICE, "write group g")
    connected.replicas["g"].waiting.pop()()
    assert [one.code for one, _ in connected.answers] == [OK]
    found = connected.append()
    assert isinstance(found, client.AppendResponse)
    assert found.code == FORBIDDEN
