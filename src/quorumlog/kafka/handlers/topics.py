"""CreateTopics, DeleteTopics, CreatePartitions, and topics that are created when clients ask."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from quorumlog.auth.acls import Operation, ResourceType
from quorumlog.kafka.config_entries import problem_of_lengths, topic_entries
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.kafka.led_partitions import Refusal
from quorumlog.machine.cluster.commands import (
    DEFAULT,
    AnyCommand,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicOutcome,
    TopicsChanged,
    TopicToDelete,
)
from quorumlog.machine.cluster.topics import problem_of_name
from quorumlog.model.audit_events import ADMINISTRATION_REFUSED, AuditedEvent
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError
from quorumlog.model.topic_configs import AUTO_CREATE, cluster_default
from quorumlog.model.wording import counted

TIMEOUT_MS_MIN: Final = 1_000
"""Least time to carry out a request, also for clients that state less."""
MISSING_TIMEOUT_MS: Final = 10_000
"""Most time to create topics that a client names, and until they have leaders."""
IDS_MS: Final = 8_000
"""Most time to find out whose ids of topics are that this broker does not know."""
MISSING_MAX: Final = 100
"""Topics that one Metadata or Produce creates; the client asks for the others again."""
TOPICS_PER_COMMAND: Final = 250
"""Topics of a request that become one command, which must stay small."""
CONFIGS_TOLD_MAX: Final = 100
"""Topics of a request whose answer tells their configs."""
CONFIGS_MAX: Final = 256
"""Configs that one topic may be created with."""
_FIRST_WITH_STATES: Final = 6
_UNASSIGNABLE: Final = (
    "replicas cannot be assigned: a partition is where its partition group is; leave them out"
)
_LESS: Final = (
    "ask for no more (default.replication.factor counts when the first topic is created, and for "
    "the groups of brokers that join later)"
)
_NO_SUCH_ID: Final = Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of this id")
_UNKNOWN_YET: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT,
    "this broker does not know a topic of this id, and could not ask the leader of __cluster; "
    "nothing was deleted, try again",
)
_NAMED_TWICE: Final = "the request names this topic more than once"
Item = TypeVar("Item")


class _Outcomes:
    """What becomes of the topics of a request; they are told apart by their places in it."""

    def __init__(
        self, context: RequestContext, timeout_ms: int, *, may_exist: bool = False
    ) -> None:
        self._context = context
        timeout_ms = context.within_ms(max(timeout_ms, TIMEOUT_MS_MIN))
        self._ends_at = context.services.now() + timeout_ms / 1_000
        self._refused: dict[int, tuple[ErrorCode, str]] = {}
        self.named_by_id: set[int] = set()
        """Places of topics that the request names by their ids."""
        self.done: dict[int, TopicOutcome] = {}
        self.existing: list[str] = []
        """Topics that were there already, if that is no error."""
        self._may_exist = may_exist

    def refuse(self, place: int, error: ErrorCode, text: str) -> None:
        """Answer a topic with an error."""
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and place in self.named_by_id:
            error = ErrorCode.UNKNOWN_TOPIC_ID
        self._context.note_error(error, text)
        self._refused[place] = error, text

    def of(self, place: int) -> tuple[ErrorCode, str | None]:
        """Return the error of a topic and its text."""
        return self._refused.get(place, (ErrorCode.NONE, None))

    async def execute(
        self, items: Sequence[tuple[int, Item]], command_of: Callable[[list[Item]], AnyCommand]
    ) -> None:
        """Carry out commands for topics."""
        for first in range(0, len(items), TOPICS_PER_COMMAND):
            some = items[first : first + TOPICS_PER_COMMAND]
            try:
                command = command_of([item for _, item in some])
                result = await self._context.broker.execute(command, self._left_ms())
            except RequestError as error:
                for place, _ in some:
                    self.refuse(place, error_of(error.code), str(error))
            else:
                self._take([place for place, _ in some], result)

    def _take(self, places: Sequence[int], result: TopicsChanged) -> None:
        for place, outcome in zip(places, result.topics, strict=True):
            if outcome.code is ResponseCode.SUCCESS:
                self.done[place] = outcome
            elif self._may_exist and outcome.code is ResponseCode.TOPIC_EXISTS:
                self.existing.append(outcome.name)
            else:
                self.refuse(place, error_of(outcome.code), outcome.text)

    async def wait_open(self) -> None:
        """Wait until all partitions of the topics have leaders."""
        broker, existing = self._context.broker, self.existing
        await broker.until(lambda: broker.topics.keys() >= set(existing), self._left_ms())
        ids = [one.topic_id for one in self.done.values()]
        ids += [broker.topics[name].topic_id for name in existing if name in broker.topics]
        if ids and not await broker.wait_open(ids, self._left_ms()):
            text = "done, but not all partitions have a leader yet"
            for place, one in self.done.items():
                if not broker.is_open(one.topic_id):
                    why = broker.why_not_open(one.topic_id)
                    texts = f"{text}: {why}" if why else text
                    self.refuse(place, ErrorCode.REQUEST_TIMED_OUT, texts)

    def _left_ms(self) -> int:
        return max(1, round((self._ends_at - self._context.services.now()) * 1_000))


def _repeated(names: Sequence[object]) -> set[object]:
    return {name for name, count in Counter(names).items() if count > 1}


def _once(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[tuple[int, Item]]:
    """Yield items with their places, the first of those with the same key.

    librdkafka gives up an answer that has a name twice.
    """
    seen = set[Hashable]()
    for place, item in enumerate(items):
        if key(item) not in seen:
            seen.add(key(item))
            yield place, item


# -- creating -------------------------------------------------------------------------------------


async def handle_create_topics(context: RequestContext, request: Any) -> Answer:
    """Create topics; the answer comes when all their partitions have leaders."""
    outcomes = _Outcomes(context, request.timeout_ms)
    repeated = _repeated([one.name for one in request.topics])
    created = []
    async for place, one in context.in_turns(enumerate(request.topics)):
        problem = _problem_of(context, one, repeated)
        if problem is not None:
            outcomes.refuse(place, *problem)
            continue
        configs = {config.name: config.value for config in one.configs}
        new = NewTopic(one.name, uuid4().bytes, one.num_partitions, one.replication_factor, configs)
        created.append((place, new))
    is_check = request.validate_only
    await outcomes.execute(created, lambda some: CreateTopics(some, is_check))
    if not is_check:
        await outcomes.wait_open()
    configs_of = {place: new.configs for place, new in created}
    return {
        "topics": [
            _created(context, one.name, outcomes, place, configs_of.get(place), is_check=is_check)
            async for place, one in context.in_turns(_once(request.topics, lambda one: one.name))
        ]
    }


def _problem_of(
    context: RequestContext, asked: Any, repeated: set[object]
) -> tuple[ErrorCode, str] | None:
    """Return why a topic of a request is not created, as far as that is known here."""
    if asked.name in repeated:
        return ErrorCode.INVALID_REQUEST, _NAMED_TWICE
    if not context.rights.may_create(asked.name):
        return context.rights.refusal(Operation.CREATE, ResourceType.TOPIC, asked.name)
    if problem := problem_of_name(asked.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    if asked.assignments:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, _UNASSIGNABLE
    broker = context.broker
    if broker.replicas_at_least < asked.replication_factor <= len(broker.registered):
        least = counted(broker.replicas_at_least, "replica")
        text = f"replication factor {asked.replication_factor}: partition groups have {least}"
        return ErrorCode.INVALID_REPLICATION_FACTOR, f"{text}; {_LESS}"
    if len(asked.configs) > CONFIGS_MAX:
        return ErrorCode.INVALID_CONFIG, f"a topic has at most {CONFIGS_MAX} configs"
    without = [config.name for config in asked.configs if config.value is None]
    if without:
        return ErrorCode.INVALID_CONFIG, f"config {without[0]!r} has no value"
    if problem := problem_of_lengths(asked.configs):
        return ErrorCode.INVALID_CONFIG, problem
    return None


def _created(
    context: RequestContext,
    name: str,
    outcomes: _Outcomes,
    place: int,
    configs: dict[str, str] | None,
    *,
    is_check: bool,
) -> dict[str, Any]:
    error, text = outcomes.of(place)
    answer = {"name": name, "error_code": error, "error_message": text}
    done = outcomes.done.get(place)
    if done is None or error is not ErrorCode.NONE or configs is None:
        return {**answer, "configs": None}
    told = place < CONFIGS_TOLD_MAX
    if not context.rights.sees_topic(Operation.DESCRIBE_CONFIGS, name):
        told = False
        answer["topic_config_error_code"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    entries = topic_entries(configs, context.broker.defaults) if told else ()
    return {
        **answer,
        "topic_id": None if is_check else done.topic_id,
        "num_partitions": done.partitions,
        "replication_factor": context.broker.replicas_at_least
        if done.replication_factor == DEFAULT
        else done.replication_factor,
        "configs": [entry.created() for entry in entries] if told else None,
    }


def creates_missing(context: RequestContext) -> bool:
    """Whether topics that clients name are created here: both this node and the cluster say so."""
    allowed = context.config.auto_create_topics
    return allowed and cluster_default(AUTO_CREATE, context.broker.defaults) == "true"


async def create_missing(context: RequestContext, names: Sequence[str]) -> None:
    """Create topics that clients ask for, if that is allowed here, and wait for their leaders.

    Those that the client may not create are left out, and all of them while that could not be
    recorded: clients ask again.
    """
    broker = context.broker
    if not creates_missing(context):
        return
    missing = [
        name
        for name in dict.fromkeys(names)
        if name not in broker.topics
        and not problem_of_name(name)
        and context.rights.may_create(name)
    ]
    if not missing:
        return
    if not context.services.audit.has_room:  # nothing is administered unseen
        context.note_error(ErrorCode.REQUEST_TIMED_OUT, ADMINISTRATION_REFUSED, topic=missing[0])
        return
    # another client, or this one by another broker, may create the same at the same time
    outcomes = _Outcomes(context, MISSING_TIMEOUT_MS, may_exist=True)
    new = [NewTopic(name, uuid4().bytes) for name in islice(missing, MISSING_MAX)]
    await outcomes.execute(list(enumerate(new)), CreateTopics)
    for created in outcomes.done.values():
        context.record(AuditedEvent.ADMINISTRATION, "Create", f"topic:{created.name}")
    await outcomes.wait_open()


# -- deleting -------------------------------------------------------------------------------------


async def handle_delete_topics(context: RequestContext, request: Any) -> Answer:
    """Delete topics, by names or by ids."""
    if context.header.version >= _FIRST_WITH_STATES:
        asked = [(one.name, one.topic_id) for one in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    outcomes = _Outcomes(context, request.timeout_ms)
    repeated = _repeated([name or topic_id for name, topic_id in asked])
    unknown = await _unknown_ids(context, [one for _, one in asked if one is not None])
    deleted = []
    async for place, (name, topic_id) in context.in_turns(enumerate(asked)):
        if (name is None) == (topic_id is None):
            text = "a topic to be deleted is named by its name or by its id"
            outcomes.refuse(place, ErrorCode.INVALID_REQUEST, text)
        elif (name or topic_id) in repeated:
            outcomes.refuse(place, ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
        elif (refused := _refused_deletion(context, name, topic_id, unknown)) is not None:
            outcomes.refuse(place, *refused)
        elif name is not None:
            known = context.broker.topics.get(name)
            if known is not None:  # if the command comes again, it spares a topic made since
                deleted.append((place, TopicToDelete(name, known.topic_id)))
            elif not problem_of_name(name):
                deleted.append((place, TopicToDelete(name)))
            else:
                text = f"there is no topic {name!r}"
                outcomes.refuse(place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        else:
            outcomes.named_by_id.add(place)
            deleted.append((place, TopicToDelete(topic_id=topic_id.bytes)))
    await outcomes.execute(deleted, DeleteTopics)
    return {
        "responses": [
            _deleted(name, topic_id, outcomes, place)
            async for place, (name, topic_id) in context.in_turns(_once(asked, lambda one: one))
        ]
    }


async def _unknown_ids(context: RequestContext, ids: Sequence[UUID]) -> Refusal:
    """Return how ids are refused of which it is not known here whose they are.

    Where rights count they are judged by the names of their topics, which may have just been made:
    so it is found out whether there is anything new.
    """
    known = context.broker.topics_by_id
    if context.rights.permit is None or all(one.bytes in known for one in ids):
        return _NO_SUCH_ID
    return _NO_SUCH_ID if await context.broker.barrier(IDS_MS) else _UNKNOWN_YET


def _refused_deletion(
    context: RequestContext, name: str | None, topic_id: UUID | None, unknown: Refusal
) -> Refusal | None:
    """Return why the client may not delete a topic; None: it may.

    Who may not describe a topic is not told that its id is one. Where rights count, an id that is
    not known here is refused as `unknown` says: nobody could say whose topic would be deleted.
    """
    if name is None and topic_id is not None:
        known = context.broker.topics_by_id.get(topic_id.bytes)
        if known is None:
            return None if context.rights.permit is None else unknown
        name = known.name
        if not context.rights.sees_topic(Operation.DESCRIBE, name):
            context.rights.may_topic(Operation.DELETE, name)  # reports it
            return _NO_SUCH_ID
    return None if name is None else context.rights.refused_topic(Operation.DELETE, name)


def _deleted(
    name: str | None, topic_id: UUID | None, outcomes: _Outcomes, place: int
) -> dict[str, Any]:
    error, text = outcomes.of(place)
    done = outcomes.done.get(place)
    if done is not None:
        name, topic_id = done.name, UUID(bytes=done.topic_id)
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": text}


# -- more partitions ------------------------------------------------------------------------------


async def handle_create_partitions(context: RequestContext, request: Any) -> Answer:
    """Give topics more partitions; the answer comes when these have leaders."""
    outcomes = _Outcomes(context, request.timeout_ms)
    repeated = _repeated([one.name for one in request.topics])
    grown = []
    async for place, one in context.in_turns(enumerate(request.topics)):
        if one.name in repeated:
            outcomes.refuse(place, ErrorCode.INVALID_REQUEST, _NAMED_TWICE)
        elif (refused := context.rights.refused_topic(Operation.ALTER, one.name)) is not None:
            outcomes.refuse(place, *refused)
        elif one.name not in context.broker.topics and (problem := problem_of_name(one.name)):
            outcomes.refuse(place, ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        elif one.assignments:
            outcomes.refuse(place, ErrorCode.INVALID_REPLICA_ASSIGNMENT, _UNASSIGNABLE)
        else:
            grown.append((place, MorePartitions(one.name, one.count)))
    is_check = request.validate_only
    await outcomes.execute(grown, lambda some: CreatePartitions(some, is_check))
    if not is_check:
        await outcomes.wait_open()
    answers = []
    async for place, one in context.in_turns(_once(request.topics, lambda one: one.name)):
        error, text = outcomes.of(place)
        answers.append({"name": one.name, "error_code": error, "error_message": text})
    return {"results": answers}
