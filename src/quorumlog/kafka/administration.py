"""Which requests of Kafka clients administer something, and what the audit log has of each.

Requests that producers and members of consumer groups send in the course of their work are none,
nor are those that only show something, or only check whether something could be done. ElectLeaders
is none either: preferred leaders take over by themselves, and it waits for them. Nor is
AlterPartitionReassignments, which is refused to everybody.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from quorumlog.auth.acls import Operation, PatternType, Permission, ResourceType, word_of
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.handlers.security import SCRAM_MECHANISMS
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.audit_events import acl_resource, acl_words, quota_resource
from quorumlog.model.wording import counted, topic_id_text

_TOPIC: Final = 2
"""The type of a resource that is a topic (`ConfigResource.Type` of Kafka); others are brokers."""

Asked: TypeAlias = Iterator[tuple[str, str]]
"""Resources that a request names, and what is asked for besides the kind of the request."""
Outcomes: TypeAlias = Iterator[tuple[str, int, str | None]]
"""Resources that an answer names, with the error code of each and its text."""


class Act(NamedTuple):
    """What was done to a resource. `reason`: why all or a part of it was not; empty: all was.

    `failed`: nothing was done, as far as is known.
    """

    operation: str
    resource: str
    detail: str
    reason: str
    failed: bool


_Outcome: TypeAlias = tuple[int, str | None]
"""An error code, and its text."""


def _nothing_more(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, _Outcome]]:
    yield from ()


class _Administered(NamedTuple):
    """`by_place`: outcomes name no resources, but the places of what is asked for, from 0 on.

    `more`: resources that only the answer names, with what was done to each.
    """

    operation: str
    asked: Callable[[Any], Asked]
    outcomes: Callable[[Mapping[str, Any]], Outcomes]
    by_place: bool = False
    more: Callable[[Mapping[str, Any]], Iterator[tuple[str, str, _Outcome]]] = _nothing_more


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
        yield f"topic:{one.name}", counted(one.count, "partition")


def _configs_to_alter(request: Any) -> Asked:
    for one in request.resources:
        keys = ", ".join(config.name for config in one.configs)
        yield _of_config(one.resource_type, one.resource_name), keys


def _records_to_delete(request: Any) -> Asked:
    for topic in request.topics:
        yield f"topic:{topic.name}", f"records of {counted(len(topic.partitions), 'partition')}"


def _groups_to_delete(request: Any) -> Asked:
    for name in request.groups_names:
        yield f"consumer-group:{name}", ""


def _offsets_to_delete(request: Any) -> Asked:
    topics = ", ".join(topic.name for topic in request.topics)
    yield f"consumer-group:{request.group_id}", f"offsets in {topics}"


def _word(kind: type[Operation | Permission | PatternType | ResourceType], number: int) -> str:
    try:
        return word_of(kind(number))
    except ValueError:  # anybody may send any number
        return str(number)


def _acls_to_create(request: Any) -> Asked:
    for one in request.creations:
        yield (
            acl_resource(one.principal),
            acl_words(
                "add",
                _word(Permission, one.permission_type),
                _word(Operation, one.operation),
                _word(ResourceType, one.resource_type),
                one.resource_name,
                _word(PatternType, one.resource_pattern_type),
                one.host,
            ),
        )


def _acls_to_delete(request: Any) -> Asked:
    for one in request.filters:
        yield (
            acl_resource(one.principal_filter or ""),
            acl_words(
                "remove all of",
                _word(Permission, one.permission_type),
                _word(Operation, one.operation),
                _word(ResourceType, one.resource_type_filter),
                one.resource_name_filter or "",
                _word(PatternType, one.pattern_type_filter),
                one.host_filter or "",
            ),
        )


def _users_to_alter(request: Any) -> Asked:
    details: dict[str, list[str]] = {}
    for verb, changes in (("remove", request.deletions), ("set", request.upsertions)):
        for one in changes:
            mechanism = SCRAM_MECHANISMS.get(one.mechanism, str(one.mechanism))
            details.setdefault(one.name, []).append(f"{verb} {mechanism}")
    for name, words in details.items():
        yield f"user:{name}", ", ".join(words)


def _quotas_to_alter(request: Any) -> Asked:
    for entry in request.entries:
        parts = ((one.entity_type, one.entity_name) for one in entry.entity)
        keys = (f"{'remove' if one.remove else 'set'} {one.key}" for one in entry.ops)
        yield quota_resource(parts), ", ".join(keys)


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
    if answer["error_code"] or not answer["topics"]:
        yield "", answer["error_code"], None
    for topic in answer["topics"]:
        for one in topic["partitions"]:
            place = f"partition {one['partition_index']} of {topic['name']}"
            yield "", one["error_code"], place


def _in_order(field: str) -> Callable[[Mapping[str, Any]], Outcomes]:
    def outcomes(answer: Mapping[str, Any]) -> Outcomes:
        for place, one in enumerate(answer[field]):
            yield str(place), one["error_code"], one["error_message"]

    return outcomes


def _of_users(answer: Mapping[str, Any]) -> Outcomes:
    for one in answer["results"]:
        yield f"user:{one['user']}", one["error_code"], one["error_message"]


def _deleted_acls(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, _Outcome]]:
    for found in answer["filter_results"]:
        for one in found["matching_acls"]:
            words = acl_words(
                "remove",
                _word(Permission, one["permission_type"]),
                _word(Operation, one["operation"]),
                _word(ResourceType, one["resource_type"]),
                one["resource_name"],
                _word(PatternType, one["pattern_type"]),
                one["host"],
            )
            yield acl_resource(one["principal"]), words, (one["error_code"], one["error_message"])


ADMINISTRATION: Final[dict[int, _Administered]] = {
    ApiKey.CREATE_TOPICS: _Administered("Create", _topics_to_create, _of_topics("topics")),
    ApiKey.DELETE_TOPICS: _Administered("Delete", _topics_to_delete, _of_deleted_topics),
    ApiKey.CREATE_PARTITIONS: _Administered("Alter", _topics_to_grow, _of_topics("results")),
    ApiKey.ALTER_CONFIGS: _Administered("AlterConfigs", _configs_to_alter, _of_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Administered("AlterConfigs", _configs_to_alter, _of_configs),
    ApiKey.DELETE_RECORDS: _Administered("Delete", _records_to_delete, _of_records),
    ApiKey.DELETE_GROUPS: _Administered("Delete", _groups_to_delete, _of_groups),
    ApiKey.OFFSET_DELETE: _Administered("Delete", _offsets_to_delete, _of_offsets),
    ApiKey.CREATE_ACLS: _Administered(
        "Alter", _acls_to_create, _in_order("results"), by_place=True
    ),
    ApiKey.DELETE_ACLS: _Administered(
        "Alter", _acls_to_delete, _in_order("filter_results"), by_place=True, more=_deleted_acls
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _Administered("Alter", _users_to_alter, _of_users),
    ApiKey.ALTER_CLIENT_QUOTAS: _Administered(
        "AlterConfigs", _quotas_to_alter, _in_order("entries"), by_place=True
    ),
}
"""Requests that administer, and how to read them and their answers."""
_CHECKABLE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    }
)
"""Those that may ask only whether it could be done."""
_FORBIDDEN: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Errors of what the client may not do."""


def administers(api_key: int, request: Any) -> bool:
    """Whether a request changes something, other than what clients do in their daily work."""
    return api_key in ADMINISTRATION and not (api_key in _CHECKABLE and request.validate_only)


def acts_of(
    api_key: int, request: Any, answer: Mapping[str, Any] | None, failure: str = ""
) -> Iterator[Act]:
    """Yield what was done to each resource that a request names.

    Without an `answer` it is unknown: `failure` says why. If several partitions of a topic have an
    error, the first one is told. What the client may not do is left out: that is another event.
    """
    administered = ADMINISTRATION[api_key]
    found: dict[str, list[_Outcome]] = {}
    if answer is not None:
        for key, error, text in administered.outcomes(answer):
            found.setdefault(key, []).append((error, text))
    of_all = found.get("", [])
    operation = administered.operation
    for place, (resource, detail) in enumerate(administered.asked(request)):
        outcomes = found.get(str(place) if administered.by_place else resource, of_all)
        if failure:
            yield Act(operation, resource, detail, failure, failed=True)
        elif not _is_forbidden(outcomes):
            yield _act(operation, resource, detail, outcomes)
    if answer is not None:
        for resource, detail, outcome in administered.more(answer):
            yield _act(operation, resource, detail, [outcome])


def _is_forbidden(outcomes: Sequence[_Outcome]) -> bool:
    return bool(outcomes) and all(error in _FORBIDDEN for error, _ in outcomes)


def _act(operation: str, resource: str, detail: str, outcomes: Sequence[_Outcome]) -> Act:
    reasons = [
        f"{ErrorCode(error).name}: {text}" if text else ErrorCode(error).name
        for error, text in outcomes
        if error
    ]
    reason = reasons[0] if reasons else ""
    failed = bool(reasons) and len(reasons) == len(outcomes)
    return Act(operation, resource, detail, reason, failed)
