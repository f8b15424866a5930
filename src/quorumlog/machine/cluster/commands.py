"""The commands of `__cluster`, and their results, as they are in its log.

Whatever depends on time, chance or the network is decided before a command is appended, and is part
of it: identities of topics, members of groups, the time. Each command has an id, so that one that
is sent again is applied once (`answers`).
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from quorumlog.auth.acls import Acl
from quorumlog.auth.quotas import EntityName, QuotaEntity
from quorumlog.auth.scram import Verifier
from quorumlog.model.bounds import (
    NUMBER_MAX,
    AddressText,
    IdentityBytes,
    Milliseconds,
    Name,
    Number,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.messages.consumers import PARTITIONS_MAX
from quorumlog.model.retention_classes import MIXED, UNLIMITED

ID_BYTES: Final = 16
NO_TOPIC: Final = bytes(ID_BYTES)
"""Instead of the id of a topic: none."""
DEFAULT: Final = -1
"""Instead of a number of partitions or replicas: the cluster's default."""
ITEMS_MAX: Final = 10_000
"""Topics, partitions or configs in one command."""
COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one command."""

Id: TypeAlias = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
TopicName: TypeAlias = Annotated[str, Meta(max_length=1_024)]
Text: TypeAlias = Annotated[str, Meta(max_length=32_768)]
Channels: TypeAlias = Annotated[list[int], Meta(max_length=ITEMS_MAX)]
ConfigPairs: TypeAlias = Annotated[dict[str, Text], Meta(max_length=256)]


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all commands; encoded as an array, so field order is the format."""


class Result(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all results."""


# -- brokers ------------------------------------------------------------------------------------


class RegisterBroker(Command, frozen=True, array_like=True, tag=True):
    """A node is a broker: `address` is where nodes reach it, `host` and `port` where clients do.

    `cluster_id` becomes the id of the cluster if it has none yet.
    """

    node_id: Name
    address: AddressText
    host: Annotated[str, Meta(max_length=256)]
    port: Annotated[int, Meta(ge=0, le=65_535)]
    rack: Annotated[str, Meta(max_length=256)]
    cluster_id: Annotated[str, Meta(max_length=64)]


class Registered(Result, frozen=True, array_like=True, tag=True):
    """The number of the broker, which it keeps; -1 with a code that says why not."""

    broker_id: int
    cluster_id: str
    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""


# -- partition groups ---------------------------------------------------------------------------


class NewGroup(msgspec.Struct, frozen=True, array_like=True):
    """A partition group to be made: `members` are brokers, the preferred leader first.

    `peers` are these with their addresses, as a group's configuration has them. `retention_class`
    is that of the topics whose partitions it is for (`model.retention_classes`).
    """

    members: Annotated[list[int], Meta(min_length=1, max_length=50)]
    peers: Annotated[str, Meta(max_length=4_096)]
    settings: dict[str, str]
    retention_class: Annotated[int, Meta(ge=MIXED, le=UNLIMITED)] = MIXED


class AddGroups(Command, frozen=True, array_like=True, tag=True):
    """Make partition groups, if no more than `made` have ever been made."""

    made: Number
    groups: Annotated[list[NewGroup], Meta(max_length=64)]


class ReplaceGroup(Command, frozen=True, array_like=True, tag=True):
    """Give up a partition group that never had a leader; another one gets its partitions."""

    group: Name
    replacement: NewGroup


class GroupsLed(Command, frozen=True, array_like=True, tag=True):
    """These partition groups have a leader: a majority of their members has made them.

    The leader invites those that still lack them.
    """

    groups: Annotated[list[Name], Meta(max_length=64)]


class PartitionsOpened(Command, frozen=True, array_like=True, tag=True):
    """The log of a group says that there are partitions on these channels."""

    group: Name
    channels: Channels


class PartitionsLost(Command, frozen=True, array_like=True, tag=True):
    """A group does not know the partitions on these channels any more: they get others.

    Channels up to `highest` cannot be opened in its log.
    """

    group: Name
    channels: Channels
    highest: Annotated[int, Meta(ge=-1, le=(1 << 32) - 1)]


class Changed(Result, frozen=True, array_like=True, tag=True):
    """How many groups or partitions the command has changed."""

    count: int


# -- topics -------------------------------------------------------------------------------------


class NewTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic to be made."""

    name: TopicName
    topic_id: Id
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: ConfigPairs = {}


class CreateTopics(Command, frozen=True, array_like=True, tag=True):
    """Make topics; those that cannot be made do not hinder the others."""

    topics: Annotated[list[NewTopic], Meta(max_length=ITEMS_MAX)]
    validate_only: bool = False


class TopicToDelete(msgspec.Struct, frozen=True, array_like=True):
    """A topic by its id or, if that is `NO_TOPIC`, by its name."""

    name: TopicName = ""
    topic_id: Id = NO_TOPIC


class DeleteTopics(Command, frozen=True, array_like=True, tag=True):
    """Delete topics; those that do not exist do not hinder the others."""

    topics: Annotated[list[TopicToDelete], Meta(max_length=ITEMS_MAX)]


class MorePartitions(msgspec.Struct, frozen=True, array_like=True):
    """The number of partitions that a topic shall have."""

    name: TopicName
    count: int


class CreatePartitions(Command, frozen=True, array_like=True, tag=True):
    """Give topics more partitions."""

    topics: Annotated[list[MorePartitions], Meta(max_length=ITEMS_MAX)]
    validate_only: bool = False


class TopicOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one topic of a command; the numbers are those that it has now, or would."""

    name: str
    topic_id: bytes = NO_TOPIC
    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    partitions: int = -1
    replication_factor: int = -1


class TopicsChanged(Result, frozen=True, array_like=True, tag=True):
    """One outcome for each topic, in the order of the command."""

    topics: list[TopicOutcome]


# -- configs ------------------------------------------------------------------------------------

ConfigOperation: TypeAlias = Literal["set", "delete", "append", "subtract"]


class ConfigChange(msgspec.Struct, frozen=True, array_like=True):
    """Change one config; `append` and `subtract` are about the items of a list."""

    operation: ConfigOperation
    name: Annotated[str, Meta(max_length=256)]
    value: Text = ""


class AlterResource(msgspec.Struct, frozen=True, array_like=True):
    """Changes of the configs of a topic, or (`topic` None) of the defaults of the cluster.

    `replaces`: those that are not named are deleted.
    """

    topic: TopicName | None
    changes: Annotated[list[ConfigChange], Meta(max_length=256)]
    replaces: bool = False


class AlterConfigs(Command, frozen=True, array_like=True, tag=True):
    """Change configs; all those of a resource, or none."""

    resources: Annotated[list[AlterResource], Meta(max_length=ITEMS_MAX)]
    validate_only: bool = False


class ConfigsAltered(Result, frozen=True, array_like=True, tag=True):
    """One outcome (code, text) for each resource, in the order of the command."""

    outcomes: list[tuple[ResponseCode, str]]


# -- producers ----------------------------------------------------------------------------------


class AllocateProducerIds(Command, frozen=True, array_like=True, tag=True):
    """Set producer ids aside, which nobody gets again."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]


class ProducerIds(Result, frozen=True, array_like=True, tag=True):
    """The ids from `first` to `first` + `count` - 1."""

    first: int
    count: int


# -- consumer groups ----------------------------------------------------------------------------

MEMBERS_MAX: Final = 1_000
"""Members of a consumer group."""
OFFSET_METADATA_MAX: Final = 4_096
"""Characters that a consumer may leave with an offset, as in Kafka."""
NO_GENERATION: Final = -1
"""Instead of a generation: the group has none, or who commits is no member."""
ConsumerGroupName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_024)]
MemberText: TypeAlias = Annotated[str, Meta(max_length=1_024)]


class CoordinatorCommand(Command, frozen=True, array_like=True):
    """Base of what a coordinator of consumer groups decides.

    It is applied only if it is appended in this `term` of `__cluster`: whoever led it then has
    been the only coordinator, and another one may have decided otherwise since.
    """

    term: Number


class SavedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a consumer group: what it said of itself, and what it is assigned."""

    member_id: MemberText
    instance_id: MemberText | None
    client_id: MemberText
    client_host: MemberText
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes


class SaveGroup(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """A generation of a consumer group; without members it is empty."""

    group: ConsumerGroupName
    generation: Number
    protocol_type: MemberText
    protocol: MemberText
    leader: MemberText
    members: Annotated[list[SavedMember], Meta(max_length=MEMBERS_MAX)]


ConsumerPartitions: TypeAlias = Annotated[dict[Id, list[int]], Meta(max_length=ITEMS_MAX)]
"""Numbers of partitions by the ids of their topics, in order."""


class SavedConsumer(msgspec.Struct, frozen=True, array_like=True):
    """A member of a consumer group by the consumer protocol (KIP-848).

    What it said of itself, its epoch and the one before, and the partitions that it has: those that
    it may use, and those that it is asked to revoke. `pattern`: the regular expression that it is
    subscribed to; empty: none. `epoch` -2: it is static, and comes back. `session_ms`: after how
    long without a heartbeat it is removed, as it knows it; 0: an earlier version saved it.
    """

    member_id: MemberText
    instance_id: MemberText | None
    rack_id: MemberText | None
    client_id: MemberText
    client_host: MemberText
    rebalance_timeout_ms: int
    topics: Annotated[list[TopicName], Meta(max_length=ITEMS_MAX)]
    pattern: MemberText
    assignor: MemberText
    epoch: int
    previous_epoch: int
    assigned: ConsumerPartitions
    revoking: ConsumerPartitions
    session_ms: int = 0


class SaveConsumers(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Members of a group by the consumer protocol have changed, or are members no more.

    It is applied only if the record of the group still has the `version` by which it was
    judged; 0: there is none. `epoch`: of the group.
    """

    group: ConsumerGroupName
    version: Number
    epoch: Number
    changed: Annotated[list[SavedConsumer], Meta(max_length=MEMBERS_MAX)]
    removed: Annotated[list[MemberText], Meta(max_length=ITEMS_MAX)] = []


class OffsetToCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the consumers of a partition shall go on. `leader_epoch` -1: it is not known."""

    topic_id: Id
    partition: Annotated[int, Meta(ge=0)]
    offset: int
    leader_epoch: int = -1
    metadata: Annotated[str, Meta(max_length=OFFSET_METADATA_MAX)] = ""


class CommitOffsets(CoordinatorCommand, frozen=True, array_like=True, tag=True, gc=False):
    """A consumer group has come so far; for a member, unless a later generation has been saved.

    `member_id`, if it is not empty, is a member by the consumer protocol. `generation` is its epoch
    then, and has to be the one that was saved.
    """

    group: ConsumerGroupName
    generation: int
    offsets: Annotated[list[OffsetToCommit], Meta(max_length=ITEMS_MAX)]
    member_id: MemberText = ""


class CommitTogether(CoordinatorCommand, frozen=True, array_like=True, tag=True, gc=False):
    """Several commits of one coordinator, applied one after the other.

    Each counts by itself, and has the term of the whole.
    """

    commits: Annotated[list[CommitOffsets], Meta(max_length=ITEMS_MAX)]


class ReadLog(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """A consumer group reads a log, a plain group with this identity (empty: not known).

    The entries of the log are in `partitions` partitions: each in that of its channel modulo this
    number. `is_certain`: the coordinator's own replica has this identity, so that positions in a
    log of the same name with another identity are those of one that was deleted.
    """

    group: ConsumerGroupName
    log: Name
    identity: IdentityBytes
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    is_certain: bool = False


class DeleteOffsets(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Forget how far a group has come in some partitions (topic id, number)."""

    group: ConsumerGroupName
    partitions: Annotated[list[tuple[Id, int]], Meta(max_length=ITEMS_MAX)]


class ForgetGroups(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Forget consumer groups that have no members, with their offsets.

    `unchanged_since_ms`: only if nothing has been saved of them since; None: whenever that was.
    """

    groups: Annotated[list[ConsumerGroupName], Meta(max_length=ITEMS_MAX)]
    unchanged_since_ms: Milliseconds | None = None


class GroupsChanged(Result, frozen=True, array_like=True, tag=True, gc=False):
    """What became of a command of a coordinator; `codes`, if any: of each of its items."""

    code: ResponseCode
    text: str = ""
    codes: list[ResponseCode] = []


class OffsetsCommitted(Result, frozen=True, array_like=True, tag=True, gc=False):
    """What became of each commit of a `CommitTogether`."""

    results: list[GroupsChanged]


# -- transactions ------------------------------------------------------------------------------

TransactionalId: TypeAlias = Annotated[str, Meta(max_length=1_024)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
TopicPartition: TypeAlias = tuple[Id, Annotated[int, Meta(ge=0)]]
"""The id of a topic and the number of a partition."""


class TransactionCommand(CoordinatorCommand, frozen=True, array_like=True):
    """Base of what a coordinator of transactions decides.

    It is applied only if the record of the id still has the `version` by which it was judged;
    0: there is none.
    """

    transactional_id: TransactionalId
    version: Number


class InitTransaction(TransactionCommand, frozen=True, array_like=True, tag=True):
    """The id belongs to the producer with this id and epoch, and to no other one any more.

    `is_same`: it is the producer that had the id before, as it has said who it is. Only that one is
    told again if the answer gets lost.
    """

    producer_id: Number
    epoch: Epoch
    timeout_ms: Annotated[int, Meta(ge=1)]
    is_same: bool


class AddToTransaction(TransactionCommand, frozen=True, array_like=True, tag=True):
    """The transaction may have records in these partitions; it begins if none is ongoing.

    `groups`: consumer groups whose offsets it may commit.
    """

    partitions: Annotated[list[TopicPartition], Meta(max_length=ITEMS_MAX)]
    groups: Annotated[list[ConsumerGroupName], Meta(max_length=100)] = []


class AddTransactionOffsets(TransactionCommand, frozen=True, array_like=True, tag=True):
    """If the transaction is committed, a consumer group has come so far.

    `generation` and `member_id` are those of `CommitOffsets`, and judged likewise.
    """

    group: ConsumerGroupName
    offsets: Annotated[list[OffsetToCommit], Meta(max_length=ITEMS_MAX)]
    generation: int = NO_GENERATION
    member_id: MemberText = ""


class DecideTransaction(TransactionCommand, frozen=True, array_like=True, tag=True):
    """The ongoing transaction is committed, or aborted.

    `epoch`: of its markers; if it is above that of the producer, this one is fenced. `is_same`: it
    has asked for that itself, as it starts again.
    """

    commits: bool
    epoch: Epoch
    is_same: bool = False


class ForgetTransactions(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Forget ids of which nothing has changed since a time, unless they have a transaction."""

    transactional_ids: Annotated[list[TransactionalId], Meta(max_length=ITEMS_MAX)]
    unchanged_since_ms: Milliseconds


class MarkersWritten(Command, frozen=True, array_like=True, tag=True):
    """Partitions have the markers of transactions: id, number of its transaction, partitions.

    A leader of a partition group says so; the number keeps it from being taken for a later one.
    `producer_ids`: the producer of each, in the same order: numbers begin again if an id is
    forgotten and made anew. Entries of earlier versions name none.
    """

    written: Annotated[
        list[
            tuple[
                TransactionalId,
                Number,
                Annotated[list[TopicPartition], Meta(max_length=ITEMS_MAX)],
            ]
        ],
        Meta(max_length=ITEMS_MAX),
    ]
    producer_ids: Annotated[list[Number], Meta(max_length=ITEMS_MAX)] = []


# -- sinks --------------------------------------------------------------------------------------

UNKNOWN_ROWS: Final = -1
"""Instead of the number of rows of a batch: who ended it did not tell it."""
SinkName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_024)]
RunId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
AttemptName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^:]*$")]


class BeginSinkRun(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Another run of a sink begins: attempts of earlier ones can do nothing any more.

    It is applied only if the record of the sink still has the `version` by which it was judged;
    0: there is none.
    """

    sink: SinkName
    version: Number
    run_id: RunId


class EndSinkBatch(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """A batch of a sink is committed, or aborted, if `run_id` is its present run.

    A batch that was committed before has ended for every run.

    `attempts`: name, producer id and epoch of those whose transactions are committed. `is_last`:
    nothing more is written by this sink, and the transactional ids of its attempts are forgotten.
    `rows`: how many the batch has, by which it is known again; `UNKNOWN_ROWS` if it is not told.
    """

    sink: SinkName
    run_id: RunId
    batch_id: Number
    commits: bool
    attempts: Annotated[list[tuple[AttemptName, Number, Epoch]], Meta(max_length=ITEMS_MAX)]
    is_last: bool = False
    rows: Annotated[int, Meta(ge=UNKNOWN_ROWS, le=NUMBER_MAX)] = UNKNOWN_ROWS


class ForgetSinks(CoordinatorCommand, frozen=True, array_like=True, tag=True):
    """Forget sinks of which, and of whose attempts, nothing has changed since a time."""

    sinks: Annotated[list[SinkName], Meta(max_length=ITEMS_MAX)]
    unchanged_since_ms: Milliseconds


class SinkBatchEnded(Result, frozen=True, array_like=True, tag=True):
    """What became of a batch of a sink: the last one that was committed, how many transactions the
    command has committed and aborted, and how many rows that batch has, or `UNKNOWN_ROWS`.
    """

    code: ResponseCode
    text: str = ""
    last_batch: int = -1
    committed: int = 0
    aborted: int = 0
    last_rows: int = UNKNOWN_ROWS


# -- users, ACLs, quotas ------------------------------------------------------------------------


MechanismName: TypeAlias = Annotated[str, Meta(max_length=64)]


class SecurityCommand(Command, frozen=True, array_like=True):
    """Base of changes of who may do what. `actor` is the principal that asked for it, `address`
    where it asked from: for the audit log, nothing depends on them.
    """

    actor: Annotated[str, Meta(max_length=256)]
    address: AddressText


class UserChange(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a user's passwords, by mechanism: all of it is changed, or nothing.

    None: there shall be no password for the mechanism. `exists`: only if there is such a user, or,
    if it is False, only if there is none; None: in any case. `replaces`: there is none for other
    mechanisms than these any more; without any, there is no such user.
    """

    name: Name
    verifiers: Annotated[dict[MechanismName, Verifier | None], Meta(max_length=8)]
    exists: bool | None = None
    replaces: bool = False


class AlterUsers(SecurityCommand, frozen=True, array_like=True, tag=True):
    """Change users; a change that cannot be made does not hinder the others.

    `decoy_secret`: random bytes, of which users who do not exist have their salts; the first that
    come with a change are kept.
    """

    changes: Annotated[list[UserChange], Meta(max_length=ITEMS_MAX)]
    decoy_secret: Annotated[bytes, Meta(max_length=64)] = b""


class AlterAcls(SecurityCommand, frozen=True, array_like=True, tag=True):
    """Add and remove ACLs. One that is there already is added all the same, one that is not there
    is removed all the same.
    """

    added: Annotated[list[Acl], Meta(max_length=ITEMS_MAX)]
    removed: Annotated[list[Acl], Meta(max_length=ITEMS_MAX)]


class QuotaChange(msgspec.Struct, frozen=True, array_like=True):
    """A quota of an entity; None: it has none any more."""

    entity: QuotaEntity
    key: EntityName
    value: float | None


class AlterQuotas(SecurityCommand, frozen=True, array_like=True, tag=True):
    """Change quotas; a change that cannot be made does not hinder the others."""

    changes: Annotated[list[QuotaChange], Meta(max_length=ITEMS_MAX)]


class SecurityAltered(Result, frozen=True, array_like=True, tag=True):
    """One outcome (code, text) for each change, in the order of the command: of ACLs, those that
    are added come first.
    """

    outcomes: list[tuple[ResponseCode, str]]


# -- encoding -----------------------------------------------------------------------------------


class Refused(Result, frozen=True, array_like=True, tag=True):
    """The entry is no command that this version knows, or is not wanted; nothing has changed."""

    text: str


class Forgotten(Result, frozen=True, array_like=True, tag=True):
    """The command was applied before; its result was too large to be kept."""


AnyCommand: TypeAlias = (
    RegisterBroker
    | AddGroups
    | ReplaceGroup
    | GroupsLed
    | PartitionsOpened
    | PartitionsLost
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AllocateProducerIds
    | SaveGroup
    | SaveConsumers
    | CommitOffsets
    | CommitTogether
    | ReadLog
    | DeleteOffsets
    | ForgetGroups
    | InitTransaction
    | AddToTransaction
    | AddTransactionOffsets
    | DecideTransaction
    | ForgetTransactions
    | MarkersWritten
    | BeginSinkRun
    | EndSinkBatch
    | ForgetSinks
    | AlterUsers
    | AlterAcls
    | AlterQuotas
)
AnyResult: TypeAlias = (
    Registered
    | Changed
    | TopicsChanged
    | ConfigsAltered
    | ProducerIds
    | GroupsChanged
    | OffsetsCommitted
    | SinkBatchEnded
    | SecurityAltered
    | Refused
)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A command with what no two have in common, and the Unix time in milliseconds.

    `at_ms` is by the clock of whoever gives the command; see `command_time` for coordinators.
    `command_id`: see `answers.command_id`. `lowest`: the number of the first command of its session
    that is without an answer; None, from earlier versions: it is not told.
    """

    command_id: Id
    at_ms: Milliseconds
    command: AnyCommand
    lowest: Number | None = None


_HIDDEN: Final = b"***"
_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)
_RESULTS: Final[msgspec.msgpack.Decoder[AnyResult | Forgotten]] = msgspec.msgpack.Decoder(
    AnyResult | Forgotten
)


def encode(value: Envelope | AnyResult | Forgotten) -> bytes:
    """Return a command or a result as bytes."""
    return msgspec.msgpack.encode(value)


def decode_envelope(data: Any) -> Envelope:
    """Read a command. Raises `UnexpectedArgumentError`."""
    try:
        return _ENVELOPES.decode(data)
    except msgspec.MsgspecError as error:
        raise UnexpectedArgumentError(f"no command of {len(data)} bytes: {error}") from error


def masked(body: bytes) -> bytes:
    """Return the body of an entry as people may see it: without what passwords are checked by.

    All but changes of users is returned as it is, also what is no command.
    """
    try:
        envelope = _ENVELOPES.decode(body)
    except msgspec.MsgspecError:
        return body
    command = envelope.command
    if not isinstance(command, AlterUsers):
        return body
    changes = [
        msgspec.structs.replace(
            one,
            verifiers={
                how: None if verifier is None else Verifier(_HIDDEN, _HIDDEN, _HIDDEN, 0)
                for how, verifier in one.verifiers.items()
            },
        )
        for one in command.changes
    ]
    hidden = msgspec.structs.replace(command, changes=changes, decoy_secret=_HIDDEN)
    return encode(msgspec.structs.replace(envelope, command=hidden))


def decode_result(data: Any) -> AnyResult | Forgotten:
    """Read a result. Raises `UnexpectedArgumentError`."""
    try:
        return _RESULTS.decode(data)
    except msgspec.MsgspecError as error:
        raise UnexpectedArgumentError(f"no result of a command: {error}") from error
