"""What the audit log has of requests of Kafka clients that administer something."""

import asyncio
from types import SimpleNamespace as Is
from uuid import UUID

import pytest

from quorumlog.kafka.administration import ADMINISTRATION, acts_of, administers
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.needs import NEEDS
from quorumlog.kafka.request_queue import _recorded
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.audit_events import NO_AUDIT
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError

ID = UUID(int=7)
ID_TEXT = "AAAAAAAAAAAAAAAAAAAABw"
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def told(key, request, answer, failure=""):
    return [
        (act.resource, act.detail, act.reason) for act in acts_of(key, request, answer, failure)
    ]


def test_topics_are_deleted_by_their_names_or_their_ids():
    request = Is(topics=[Is(name="t", topic_id=None), Is(name=None, topic_id=ID)], topic_names=[])
    answer = {
        "responses": [
            {"name": "t", "topic_id": UUID(int=1), "error_code": NONE, "error_message": None},
            {"name": None, "topic_id": ID, "error_code": UNKNOWN, "error_message": "no such"},
        ]
    }
    assert told(ApiKey.DELETE_TOPICS, request, answer) == [
        ("topic:t", "", ""),
        (f"topic:id {ID_TEXT}", "", "UNKNOWN_TOPIC_OR_PARTITION: no such"),
    ]
    before = Is(topics=[], topic_names=["t"])
    assert told(ApiKey.DELETE_TOPICS, before, answer) == [("topic:t", "", "")]


def test_of_configs_the_names_are_told_and_never_the_values():
    configs = [Is(name="ssl.key.password", value="canary"), Is(name="retention.ms", value="1")]
    request = Is(
        resources=[
            Is(resource_type=kind, resource_name=name, configs=configs)
            for kind, name in ((2, "t"), (4, ""), (4, "1"))
        ]
    )
    answer = {
        "responses": [
            {
                "resource_type": one.resource_type,
                "resource_name": one.resource_name,
                "error_code": NONE,
                "error_message": None,
            }
            for one in request.resources
        ]
    }
    found = told(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, answer)
    keys = "ssl.key.password, retention.ms"
    assert found == [("topic:t", keys, ""), ("cluster", keys, ""), ("broker:1", keys, "")]
    assert "canary" not in str(found)


def test_offsets_of_a_group_are_one_act_with_its_first_error():
    request = Is(group_id="g", topics=[Is(name="t"), Is(name="u")])
    partitions = [
        {"partition_index": number, "error_code": error}
        for number, error in ((0, NONE), (1, UNKNOWN))
    ]
    answer = {"error_code": NONE, "topics": [{"name": "t", "partitions": partitions}]}
    assert told(ApiKey.OFFSET_DELETE, request, answer) == [
        (
            "consumer-group:g",
            "offsets in t, u",
            "UNKNOWN_TOPIC_OR_PARTITION: partition 1 of t",
        )
    ]


FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_what_the_client_may_not_do_is_no_administration():
    request = Is(topics=[Is(name=name) for name in "abc"])
    answer = {
        "topics": [
            {"name": name, "error_code": error, "error_message": None}
            for name, error in (("a", FORBIDDEN), ("b", ErrorCode.NONE), ("c", UNKNOWN))
        ]
    }
    acts = list(acts_of(ApiKey.CREATE_TOPICS, request, answer))
    assert [(act.resource, act.failed) for act in acts] == [("topic:b", False), ("topic:c", True)]


def test_a_part_that_is_refused_hides_nothing_that_was_done():
    request = Is(group_id="g", topics=[Is(name="t")])
    for errors, expected in (
        ((NONE, FORBIDDEN), [("TOPIC_AUTHORIZATION_FAILED: partition 1 of t", False)]),
        ((FORBIDDEN, FORBIDDEN), []),
        ((UNKNOWN, FORBIDDEN), [("UNKNOWN_TOPIC_OR_PARTITION: partition 0 of t", True)]),
    ):
        partitions = [
            {"partition_index": number, "error_code": error} for number, error in enumerate(errors)
        ]
        answer = {"error_code": NONE, "topics": [{"name": "t", "partitions": partitions}]}
        acts = acts_of(ApiKey.OFFSET_DELETE, request, answer)
        assert [(act.reason, act.failed) for act in acts] == expected
    answer = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
    assert not list(acts_of(ApiKey.OFFSET_DELETE, request, answer))


def outcome(error=NONE, text=None, **values):
    return {"error_code": error, "error_message": text, **values}


def test_passwords_are_told_by_the_names_of_users_and_mechanisms():
    request = Is(
        deletions=[Is(name="alice", mechanism=1)],
        upsertions=[
            Is(name=name, mechanism=number, salt=b"canary", salted_password=b"canary")
            for name, number in (("alice", 2), ("bob", 99))
        ],
    )
    bad = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    answer = {"results": [outcome(user="alice"), outcome(bad, "no", user="bob")]}
    found = told(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, answer)
    assert found == [
        ("user:alice", "remove SCRAM-SHA-256, set SCRAM-SHA-512", ""),
        ("user:bob", "set 99", "UNSUPPORTED_SASL_MECHANISM: no"),
    ]
    assert "canary" not in str(found)


def test_acls_are_told_with_all_that_they_say():
    acl = {"principal": "User:alice", "host": "*", "operation": 4, "resource_name": "t"}
    acl |= {"resource_type": 2}
    created = Is(**acl, resource_pattern_type=4, permission_type=3)
    strange = Is(**acl, resource_pattern_type=99, permission_type=3)
    answer = {"results": [outcome(), outcome(ErrorCode.INVALID_REQUEST)]}
    words = "allow write topic:t"
    assert told(ApiKey.CREATE_ACLS, Is(creations=[created, strange]), answer) == [
        ("acl:User:alice", f"add {words} prefixed from *", ""),
        ("acl:User:alice", f"add {words} 99 from *", "INVALID_REQUEST"),
    ]
    asked = Is(
        principal_filter=None,
        permission_type=1,
        operation=1,
        resource_type_filter=2,
        resource_name_filter=None,
        pattern_type_filter=1,
        host_filter=None,
    )
    matching = [outcome(**acl, pattern_type=4, permission_type=3)]
    results = [outcome(matching_acls=matching), outcome(UNKNOWN, matching_acls=[])]
    answer = {"filter_results": results}
    removed = "remove all of any any topic:any any from any"
    assert told(ApiKey.DELETE_ACLS, Is(filters=[asked, asked]), answer) == [
        ("acl:any", removed, ""),
        ("acl:any", removed, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("acl:User:alice", f"remove {words} prefixed from *", ""),
    ]


def test_quotas_are_told_by_whom_they_are_for():
    parts = [Is(entity_type="user", entity_name=None), Is(entity_type="client-id", entity_name="a")]
    ops = [Is(key="producer_byte_rate", remove=False), Is(key="request_percentage", remove=True)]
    request = Is(entries=[Is(entity=parts, ops=ops)], validate_only=False)
    assert administers(ApiKey.ALTER_CLIENT_QUOTAS, request)
    assert told(ApiKey.ALTER_CLIENT_QUOTAS, request, {"entries": [outcome()]}) == [
        (
            "quota:user=<default>,client-id=a",
            "set producer_byte_rate, remove request_percentage",
            "",
        )
    ]


OTHERS = {
    # daily work of producers, consumers and sinks
    *("PRODUCE", "OFFSET_COMMIT", "JOIN_GROUP", "HEARTBEAT", "LEAVE_GROUP", "SYNC_GROUP"),
    *("CONSUMER_GROUP_HEARTBEAT", "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN"),
    *("ADD_OFFSETS_TO_TXN", "END_TXN", "TXN_OFFSET_COMMIT", "JOIN_SINK", "END_SINK_BATCH"),
    # what only shows something, or says who asks
    *("FETCH", "LIST_OFFSETS", "METADATA", "OFFSET_FETCH", "FIND_COORDINATOR", "DESCRIBE_GROUPS"),
    *("LIST_GROUPS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "API_VERSIONS", "LOCATE_BATCHES"),
    *("OFFSET_FOR_LEADER_EPOCH", "DESCRIBE_ACLS", "DESCRIBE_CONFIGS", "DESCRIBE_LOG_DIRS"),
    *("LIST_PARTITION_REASSIGNMENTS", "DESCRIBE_CLIENT_QUOTAS", "DESCRIBE_CLUSTER"),
    *("DESCRIBE_USER_SCRAM_CREDENTIALS", "DESCRIBE_PRODUCERS", "DESCRIBE_TRANSACTIONS"),
    *("LIST_TRANSACTIONS", "CONSUMER_GROUP_DESCRIBE"),
    # waits for what happens by itself; is always refused
    *("ELECT_LEADERS", "ALTER_PARTITION_REASSIGNMENTS"),
}


def test_each_request_administers_or_is_known_not_to():
    assert {ApiKey(key).name for key in NEEDS} == OTHERS | {
        ApiKey(key).name for key in ADMINISTRATION
    }


def test_what_has_no_answer_has_the_failure_as_its_reason():
    request = Is(topics=[Is(name="t"), Is(name="u")])
    found = told(ApiKey.CREATE_TOPICS, request, None, "it broke")
    assert found == [("topic:t", "", "it broke"), ("topic:u", "", "it broke")]


@pytest.mark.parametrize("key", [ApiKey.CREATE_TOPICS, ApiKey.ALTER_CONFIGS])
def test_what_only_asks_whether_it_could_be_done_is_no_administration(key):
    assert administers(key, Is(validate_only=False))
    assert not administers(key, Is(validate_only=True))


def test_daily_work_of_clients_is_no_administration():
    for key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.JOIN_GROUP, ApiKey.END_TXN):
        assert not administers(key, Is())
    assert {one.operation for one in ADMINISTRATION.values()} == {
        "Create",
        "Delete",
        "Alter",
        "AlterConfigs",
    }


class Context:
    def __init__(self, audit=NO_AUDIT):
        self.services = Is(audit=audit)
        self.header = Is(api_key=ApiKey.CREATE_TOPICS)
        self.told = []

    def record(self, event, operation, resource, *, detail, reason, failed):
        self.told.append((str(event), operation, resource, reason, failed))


class Full(type(NO_AUDIT)):
    has_room = False


REQUEST = Is(topics=[Is(name="t")], validate_only=False)


async def test_what_cannot_be_recorded_is_not_done():
    context, done = Context(Full()), []

    async def handle(context, request):
        done.append(request)

    with pytest.raises(RequestError, match="the audit log has no room") as caught:
        await _recorded(context, REQUEST, handle)
    assert caught.value.code is ResponseCode.LEADER_PENDING_FULL
    assert done == []


async def test_a_handler_that_fails_is_told_of_with_its_error():
    context = Context()

    async def handle(context, request):
        raise RequestError("no leader", code=ResponseCode.NOT_LEADER)

    with pytest.raises(RequestError):
        await _recorded(context, REQUEST, handle)
    reason = "RequestError: no leader"
    assert context.told == [("administration", "Create", "topic:t", reason, True)]


async def test_a_request_whose_client_leaves_is_told_of_as_not_known():
    context, begun = Context(), asyncio.Event()

    async def handle(context, request):
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(_recorded(context, REQUEST, handle))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    ((_, _, resource, reason, _),) = context.told
    assert resource == "topic:t"
    assert reason == "it ended before it was answered: it may be done, or not"
