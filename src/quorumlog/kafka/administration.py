"""Which requests of Kafka clients administer something, and what the audit log has of each.

Requests that producers and members of consumer groups send in the course of their work are none,
nor are those that only show something, or only check whether something could be done. ElectLeaders
is none either: preferred leaders take over by themselves, and it waits for them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.wording import topic_id_text

_TOPIC: Final = 2
"""The type of a resource that is a topic (`ConfigResource.Type` of Kafka); others are brokers."""

Asked: TypeAlias = Iterator[tuple[str, str]]
"""Resources that a request names, and what is asked for besides the kind of the request."""
Outcomes: TypeAlias = Iterator[tuple[str, int, str | None]]
"""Resources that an answer names, with the error code of each and its text."""


class Act(NamedTuple):
    """What was done to a resource. `reason`: why it was not; empty: it was."""

    operation: str
    resource: str
    detail: str
    reason: str


class _Administered(NamedTuple):
    operation: str
    asked: Callable[[Any], Asked]
    outcomes: Callable[[Mapping[str, Any]], Outcomes]


def _topic_named(name: str | None, topic_id: UUID | None) -> str:
    if name is not None or topic_id is None:
        return f"topic:{name}"
    return f"topic:id {topic_id_text(topic_id.bytes)}"


def _of_config(kind: int, name: str) -> str:
    if kind == _TOPIC:
        return f"topic:{name}"
    return f"broker:{name}" if name else "cluster"


# -- what is asked for ----------------------------------------------------------------------------


def _topics_to_create(request: Any) -> Asked:
    for one in request.topics:
        yield f"topic:{one.name}", ""


def _topics_to_delete(request: Any) -> Asked:
    if request.topics:  # from version 6 on
        for one in request.topics:
            yield _topic_named(one.name, one.topic_id), ""
    else:
        for name in request.topic_names:
            yield f"topic:{name}", ""


def _topics_to_grow(request: Any) -> Asked:
    for one in request.topics:
        yield f"topic:{one.name}", f"{one.count} partitions"


def _configs_to_alter(request: Any) -> Asked:
    for one in request.resources:
        keys = ", ".join(config.name for config in one.configs)
        yield _of_config(one.resource_type, one.resource_name), keys


def _records_to_delete(request: Any) -> Asked:
    for topic in request.topics:
        yield f"topic:{topic.name}", f"records of {len(topic.partitions)} partitions"


def _groups_to_delete(request: Any) -> Asked:
    for name in request.groups_names:
        yield f"consumer-group:{name}", ""


def _offsets_to_delete(request: Any) -> Asked:
    topics = ", ".join(topic.name for topic in request.topics)
    yield f"consumer-group:{request.group_id}", f"offsets in {topics}"


# -- what became of it ----------------------------------------------------------------------------


def _of_topics(field: str) -> Callable[[Mapping[str, Any]], Outcomes]:
    def outcomes(answer: Mapping[str, Any]) -> Outcomes:
        for one in answer[field]:
            yield f"topic:{one['name']}", one["error_code"], one["error_message"]

    return outcomes


def _of_deleted_topics(answer: Mapping[str, Any]) -> Outcomes:
    for one in answer["responses"]:
        for resource in {
            _topic_named(one["name"], None),
            _topic_named(None, one["topic_id"]),
        }:
            yield resource, one["error_code"], one["error_message"]


def _of_configs(answer: Mapping[str, Any]) -> Outcomes:
    for one in answer["responses"]:
        resource = _of_config(one["resource_type"], one["resource_name"])
        yield resource, one["error_code"], one["error_message"]


def _of_records(answer: Mapping[str, Any]) -> Outcomes:
    for one in answer["topics"]:
        for partition in one["partitions"]:
            place = f"partition {partition['partition_index']}"
            yield f"topic:{one['name']}", partition.get("error_code", 0), place


def _of_groups(answer: Mapping[str, Any]) -> Outcomes:
    for one in answer["results"]:
        yield f"consumer-group:{one['group_id']}", one["error_code"], None


def _of_offsets(answer: Mapping[str, Any]) -> Outcomes:
    yield "", answer["error_code"], None
    for topic in answer["topics"]:
        for one in topic["partitions"]:
            place = f"partition {one['partition_index']} of {topic['name']}"
            yield "", one["error_code"], place


ADMINISTRATION: Final[dict[int, _Administered]] = {
    ApiKey.CREATE_TOPICS: _Administered("Create", _topics_to_create, _of_topics("topics")),
    ApiKey.DELETE_TOPICS: _Administered("Delete", _topics_to_delete, _of_deleted_topics),
    ApiKey.CREATE_PARTITIONS: _Administered("Alter", _topics_to_grow, _of_topics("results")),
    ApiKey.ALTER_CONFIGS: _Administered("AlterConfigs", _configs_to_alter, _of_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Administered("AlterConfigs", _configs_to_alter, _of_configs),
    ApiKey.DELETE_RECORDS: _Administered("Delete", _records_to_delete, _of_records),
    ApiKey.DELETE_GROUPS: _Administered("Delete", _groups_to_delete, _of_groups),
    ApiKey.OFFSET_DELETE: _Administered("Delete", _offsets_to_delete, _of_offsets),
}
"""Requests that administer, and how to read them and their answers."""
_CHECKABLE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
"""Those that may ask only whether it could be done."""


def administers(api_key: int, request: Any) -> bool:
    """Whether a request changes something, other than what clients do in their daily work."""
    return api_key in ADMINISTRATION and not (api_key in _CHECKABLE and request.validate_only)


def acts_of(
    api_key: int, request: Any, answer: Mapping[str, Any] | None, failure: str = ""
) -> Iterator[Act]:
    """Yield what was done to each resource that a request names.

    Without an `answer` it is unknown: `failure` says why. If several partitions of a topic have an
    error, the first one is told.
    """
    operation, asked, outcomes = ADMINISTRATION[api_key]
    reasons: dict[str, str] = {}
    for resource, error, text in () if answer is None else outcomes(answer):
        if error:
            name = ErrorCode(error).name
            reasons.setdefault(resource, f"{name}: {text}" if text else name)
    of_all = reasons.get("", failure)
    for resource, detail in asked(request):
        yield Act(operation, resource, detail, reasons.get(resource, of_all))
