"""What the audit log has of requests of Kafka clients that administer something."""

import asyncio
from types import SimpleNamespace as Is
from uuid import UUID

import pytest

from quorumlog.kafka.administration import ADMINISTRATION, acts_of, administers
from quorumlog.kafka.errors import ErrorCode
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

    def record(self, event, operation, resource, *, detail, reason):
        self.told.append((str(event), operation, resource, reason))


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
    assert context.told == [("administration", "Create", "topic:t", "RequestError: no leader")]


async def test_a_request_whose_client_leaves_is_told_of_as_not_known():
    context, begun = Context(), asyncio.Event()

    async def handle(context, request):
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(_recorded(context, REQUEST, handle))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    ((_, _, resource, reason),) = context.told
    assert resource == "topic:t"
    assert reason == "it ended before it was answered: it may be done, or not"
