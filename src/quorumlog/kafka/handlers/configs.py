"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: of topics and of the cluster.

The configs of brokers are those of the whole cluster, whichever broker is named, or none: many
clients can only name one. What the configuration file of a node says is described for its broker,
and cannot be altered.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from quorumlog.auth.acls import CLUSTER_NAME, Operation, ResourceType
from quorumlog.auth.permits import Right
from quorumlog.kafka.broker_view import BrokerAddress, BrokerView
from quorumlog.kafka.codec import encode_response
from quorumlog.kafka.config_entries import (
    ConfigEntry,
    cluster_entries,
    node_entry,
    problem_of_lengths,
    topic_entries,
)
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.kafka.requests import RequestHeader
from quorumlog.machine.cluster.commands import (
    AlterConfigs,
    AlterResource,
    ConfigChange,
    ConfigOperation,
)
from quorumlog.machine.cluster.topics import problem_of_name
from quorumlog.model.config import NodeConfig, host_port
from quorumlog.model.errors import RequestError

DESCRIBED_MAX: Final = 1_000
"""Resources that one request describes: the answer has some 5 KiB for each."""
ON_LOOP_MAX: Final = 2
"""Resources that are described at once; more are described on a thread."""
RESOURCES_PER_COMMAND: Final = 250
"""Resources of a request that become one command, which must stay small."""
CHANGES_MAX: Final = 256
"""Changes of one resource."""
CONFIG_NAME_MAX: Final = 256
"""Characters of the name of a config."""
ALTER_TIMEOUT_MS: Final = 30_000
"""How long an alteration takes at most; requests do not say it."""
_DIGITS_MAX: Final = 9
_TOPIC: Final = 2
_BROKER: Final = 4
_OPERATIONS: Final[tuple[ConfigOperation, ...]] = ("set", "delete", "append", "subtract")
_TOO_MANY: Final = f"one request describes at most {DESCRIBED_MAX} resources; ask for others again"
_Refusal: TypeAlias = tuple[ErrorCode, str]


# -- describing -----------------------------------------------------------------------------------


async def handle_describe_configs(context: RequestContext, request: Any) -> Answer:
    """Describe configs: all of a resource, or those that are named."""
    refusals = [_refused(context, one, Operation.DESCRIBE_CONFIGS) for one in request.resources]
    describe = partial(
        _describe, _Known(context.broker, context.config), refusals, context.header, request
    )
    if len(request.resources) <= ON_LOOP_MAX:
        answer, problems = describe()
    else:
        answer, problems = await context.on_thread(describe)
    for error, text in problems:
        context.note_error(error, text)
    return answer


def _security_protocol(config: NodeConfig) -> str:
    """Return what clients set as `security.protocol`; nodes of a cluster are configured alike."""
    encrypted = "PLAINTEXT" if config.tls is None else "SSL"
    has_logins = config.security is not None and config.security.login != "none"
    return f"SASL_{encrypted}" if has_logins else encrypted


class _Known:
    """What there is to be described, at one moment; it may be read on any thread."""

    def __init__(self, broker: BrokerView, config: NodeConfig) -> None:
        self._protocol = _security_protocol(config)
        self._topics = broker.topics
        self._defaults = broker.defaults
        self._brokers = broker.registered

    def entries(self, kind: int, name: str) -> list[ConfigEntry] | _Refusal:
        """Return all configs of a resource."""
        if kind == _TOPIC:
            topic = self._topics.get(name)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
            return topic_entries(topic.configs, self._defaults)
        if kind != _BROKER:
            text = f"resources of type {kind} have no configs here, only topics (2) and brokers (4)"
            return ErrorCode.INVALID_REQUEST, text
        if not name:
            return cluster_entries(self._defaults)
        broker = _broker_of(self._brokers, name)
        if broker is None:
            return ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}"
        where = f"{self._protocol}://{host_port(broker.host, broker.port)}"
        return [
            *cluster_entries(self._defaults),
            node_entry("broker.id", str(broker.broker_id), "Number of the broker in the cluster."),
            node_entry("broker.rack", broker.rack, "kafkaRack of the node's configuration."),
            node_entry("advertised.listeners", where, "Where clients connect to the broker."),
        ]


def _describe(
    known: _Known,
    refusals: Sequence[_Refusal | None],
    header: RequestHeader,
    request: Any,
) -> tuple[bytes, list[_Refusal]]:
    """Return the answer, and what is wrong with the request.

    `refusals`: of each resource why the client may not have it described, unless it may.
    """
    results, problems = [], list[_Refusal]()
    for place, (one, refused) in enumerate(zip(request.resources, refusals, strict=True)):
        found: list[ConfigEntry] | _Refusal = ErrorCode.POLICY_VIOLATION, _TOO_MANY
        if refused is not None:
            found = refused
        elif place < DESCRIBED_MAX:
            found = known.entries(one.resource_type, one.resource_name)
        result = {"resource_type": one.resource_type, "resource_name": one.resource_name}
        if isinstance(found, tuple):
            problems.append(found)
            result |= {"error_code": found[0], "error_message": found[1], "configs": []}
        else:
            keys = set(one.configuration_keys or ())
            result |= {
                "error_message": None,
                "configs": [
                    entry.described(
                        with_synonyms=request.include_synonyms,
                        with_documentation=request.include_documentation,
                    )
                    for entry in found
                    if not keys or entry.name in keys
                ],
            }
        results.append(result)
    return encode_response(header, {"results": results}), problems


# -- altering -------------------------------------------------------------------------------------


async def handle_alter_configs(context: RequestContext, request: Any) -> Answer:
    """Replace all configs of resources; one without a value, or not named, gets its default."""

    def resource_of(one: Any) -> AlterResource | _Refusal:
        changes = [
            ConfigChange("set", config.name, config.value)
            for config in one.configs
            if config.value is not None
        ]
        return AlterResource(_topic_of(one), changes, replaces=True)

    return await _alter(context, request, resource_of)


async def handle_incremental_alter_configs(context: RequestContext, request: Any) -> Answer:
    """Change single configs of resources: set, delete, or change the items of a list."""

    def resource_of(one: Any) -> AlterResource | _Refusal:
        changes = []
        for config in one.configs:
            number, value = config.config_operation, config.value
            if not 0 <= number < len(_OPERATIONS):
                return ErrorCode.INVALID_REQUEST, f"{config.name}: there is no operation {number}"
            operation = _OPERATIONS[number]
            if value is None and operation != "delete":
                return ErrorCode.INVALID_REQUEST, f"{config.name}: no value is given"
            changes.append(ConfigChange(operation, config.name, value or ""))
        return AlterResource(_topic_of(one), changes)

    return await _alter(context, request, resource_of)


async def _alter(
    context: RequestContext, request: Any, resource_of: Callable[[Any], AlterResource | _Refusal]
) -> Answer:
    """Carry out alterations, each whole or not at all; answer for each resource."""
    asked = request.resources
    repeated = Counter((one.resource_type, one.resource_name) for one in asked)
    outcomes: list[_Refusal] = [(ErrorCode.NONE, "")] * len(asked)
    altered = []
    async for place, one in context.in_turns(enumerate(asked)):
        refused = _refused(context, one, Operation.ALTER_CONFIGS)
        found = refused or _problem_of(context.broker, one, repeated) or resource_of(one)
        if isinstance(found, tuple):
            outcomes[place] = found
        else:
            altered.append((place, found))
    for first in range(0, len(altered), RESOURCES_PER_COMMAND):
        some = altered[first : first + RESOURCES_PER_COMMAND]
        command = AlterConfigs([resource for _, resource in some], request.validate_only)
        try:
            result = await context.broker.execute(command, ALTER_TIMEOUT_MS)
        except RequestError as failure:
            found_all = [(failure.code, str(failure))] * len(some)
        else:
            found_all = result.outcomes
        for (place, _), (code, text) in zip(some, found_all, strict=True):
            outcomes[place] = error_of(code), text
    async for error, text in context.in_turns(outcomes):
        if error is not ErrorCode.NONE:
            context.note_error(error, text)
    return {
        "responses": [
            {
                "error_code": error,
                "error_message": text or None,
                "resource_type": one.resource_type,
                "resource_name": one.resource_name,
            }
            for one, (error, text) in zip(asked, outcomes, strict=True)
        ]
    }


def _refused(context: RequestContext, resource: Any, operation: Operation) -> _Refusal | None:
    """Return why the client may not describe or alter the configs of a resource; None: it may."""
    if resource.resource_type == _TOPIC:
        return context.rights.refused_topic(operation, resource.resource_name)
    return context.rights.refused(Right(operation, ResourceType.CLUSTER, CLUSTER_NAME))


def _topic_of(resource: Any) -> str | None:
    return resource.resource_name if resource.resource_type == _TOPIC else None


def _broker_of(brokers: Mapping[int, BrokerAddress], name: str) -> BrokerAddress | None:
    return brokers.get(int(name)) if name.isdecimal() and len(name) <= _DIGITS_MAX else None


def _problem_of(
    broker: BrokerView, resource: Any, repeated: Counter[tuple[int, str]]
) -> _Refusal | None:
    """Return why a resource is not altered, as far as that is known here."""
    kind, name = resource.resource_type, resource.resource_name
    if repeated[kind, name] > 1:
        return ErrorCode.INVALID_REQUEST, f"the request names the resource {name!r} more than once"
    if kind not in (_TOPIC, _BROKER):
        text = f"resources of type {kind} have no configs here, only topics (2) and brokers (4)"
        return ErrorCode.INVALID_REQUEST, text
    if kind == _BROKER and name and _broker_of(broker.registered, name) is None:
        return ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}"
    if kind == _TOPIC and problem_of_name(name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
    if len(resource.configs) > CHANGES_MAX:
        return ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} changes of {name!r}"
    keys = Counter(config.name for config in resource.configs)
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        return ErrorCode.INVALID_REQUEST, f"config {twice[0]!r} is named more than once"
    strange = [key for key in keys if len(key) > CONFIG_NAME_MAX]
    if strange:
        return ErrorCode.INVALID_CONFIG, f"there is no config of {len(strange[0])} characters"
    if problem := problem_of_lengths(resource.configs):
        return ErrorCode.INVALID_CONFIG, problem
    return None
