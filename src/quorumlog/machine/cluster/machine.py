"""The state machine of `__cluster`: applies commands, and shows the state to the node around it."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from quorumlog.machine.base import SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.machine.cluster import brokers, topics
from quorumlog.machine.cluster.answers import NO_RESULT
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AddToTransaction,
    AddTransactionOffsets,
    AllocateProducerIds,
    AlterAcls,
    AlterConfigs,
    AlterQuotas,
    AlterUsers,
    AnyResult,
    BeginSinkRun,
    Changed,
    CommitOffsets,
    CommitTogether,
    CoordinatorCommand,
    CreatePartitions,
    CreateTopics,
    DecideTransaction,
    DeleteOffsets,
    DeleteTopics,
    EndSinkBatch,
    Envelope,
    ForgetGroups,
    ForgetSinks,
    ForgetTransactions,
    Forgotten,
    GroupsChanged,
    GroupsLed,
    InitTransaction,
    MarkersWritten,
    OffsetsCommitted,
    PartitionsLost,
    PartitionsOpened,
    ProducerIds,
    ReadLog,
    Refused,
    RegisterBroker,
    ReplaceGroup,
    SaveConsumers,
    SaveGroup,
    SecurityAltered,
    SecurityCommand,
    SinkBatchEnded,
    decode_envelope,
    encode,
)
from quorumlog.machine.cluster.security import takes_away
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterState
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import Entry
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError

DIGEST_BYTES: Final = 16


def _allocate(state: ClusterState, command: AllocateProducerIds, at_ms: int) -> ProducerIds:
    first = state.next_producer_id
    state.next_producer_id += command.count
    return ProducerIds(first, command.count)


def _save_group(state: ClusterState, command: SaveGroup, at_ms: int) -> GroupsChanged:
    return state.consumer_groups.save_group(command, at_ms)


def _save_consumers(state: ClusterState, command: SaveConsumers, at_ms: int) -> GroupsChanged:
    return state.consumer_groups.save_consumers(command, at_ms)


def _read_log(state: ClusterState, command: ReadLog, at_ms: int) -> GroupsChanged:
    has_pending = state.transactions.has_offsets(command.group)
    return state.consumer_groups.read_log(command, at_ms, has_pending=has_pending)


def _commit(state: ClusterState, command: CommitOffsets, at_ms: int) -> GroupsChanged:
    found = state.consumer_groups.commit(command, state.topics_by_id, at_ms)
    state.transactions.superseded(command, found.codes, state.consumer_groups)
    return found


def _commit_together(state: ClusterState, command: CommitTogether, at_ms: int) -> OffsetsCommitted:
    return OffsetsCommitted([_commit(state, one, at_ms) for one in command.commits])


def _delete_offsets(state: ClusterState, command: DeleteOffsets, at_ms: int) -> GroupsChanged:
    return state.consumer_groups.delete_offsets(command, at_ms)


def _forget_groups(state: ClusterState, command: ForgetGroups, at_ms: int) -> GroupsChanged:
    return state.consumer_groups.forget(command)


def _init_transaction(state: ClusterState, command: InitTransaction, at_ms: int) -> GroupsChanged:
    return state.transactions.init(command, at_ms)


def _add_to_transaction(
    state: ClusterState, command: AddToTransaction, at_ms: int
) -> GroupsChanged:
    topics, groups = state.topics_by_id, state.consumer_groups
    return state.transactions.add(command, topics, groups, at_ms)


def _add_transaction_offsets(
    state: ClusterState, command: AddTransactionOffsets, at_ms: int
) -> GroupsChanged:
    topics, groups = state.topics_by_id, state.consumer_groups
    return state.transactions.add_offsets(command, topics, groups, at_ms)


def _decide(state: ClusterState, command: DecideTransaction, at_ms: int) -> GroupsChanged:
    return state.transactions.decide(command, state.consumer_groups, at_ms)


def _forget_transactions(
    state: ClusterState, command: ForgetTransactions, at_ms: int
) -> GroupsChanged:
    return state.transactions.forget(command)


def _markers_written(state: ClusterState, command: MarkersWritten, at_ms: int) -> Changed:
    return Changed(state.transactions.markers_written(command))


def _begin_sink_run(state: ClusterState, command: BeginSinkRun, at_ms: int) -> GroupsChanged:
    return state.sinks.begin_run(command, state.transactions, state.consumer_groups, at_ms)


def _end_sink_batch(state: ClusterState, command: EndSinkBatch, at_ms: int) -> SinkBatchEnded:
    return state.sinks.end_batch(command, state.transactions, state.consumer_groups, at_ms)


def _forget_sinks(state: ClusterState, command: ForgetSinks, at_ms: int) -> GroupsChanged:
    return state.sinks.forget(command, state.transactions)


def _alter_users(state: ClusterState, command: AlterUsers, at_ms: int) -> SecurityAltered:
    return state.security.alter_users(command)


def _alter_acls(state: ClusterState, command: AlterAcls, at_ms: int) -> SecurityAltered:
    return state.security.alter_acls(command)


def _alter_quotas(state: ClusterState, command: AlterQuotas, at_ms: int) -> SecurityAltered:
    return state.security.alter_quotas(command)


_EXECUTE: Final[dict[type[Any], Callable[[ClusterState, Any, int], AnyResult]]] = {
    RegisterBroker: brokers.register_broker,
    AddGroups: brokers.add_groups,
    ReplaceGroup: brokers.replace_group,
    GroupsLed: brokers.groups_led,
    PartitionsOpened: brokers.partitions_opened,
    PartitionsLost: brokers.partitions_lost,
    CreateTopics: topics.create_topics,
    DeleteTopics: topics.delete_topics,
    CreatePartitions: topics.create_partitions,
    AlterConfigs: topics.alter_configs,
    AllocateProducerIds: _allocate,
    SaveGroup: _save_group,
    SaveConsumers: _save_consumers,
    ReadLog: _read_log,
    CommitOffsets: _commit,
    CommitTogether: _commit_together,
    DeleteOffsets: _delete_offsets,
    ForgetGroups: _forget_groups,
    InitTransaction: _init_transaction,
    AddToTransaction: _add_to_transaction,
    AddTransactionOffsets: _add_transaction_offsets,
    DecideTransaction: _decide,
    ForgetTransactions: _forget_transactions,
    MarkersWritten: _markers_written,
    BeginSinkRun: _begin_sink_run,
    EndSinkBatch: _end_sink_batch,
    ForgetSinks: _forget_sinks,
    AlterUsers: _alter_users,
    AlterAcls: _alter_acls,
    AlterQuotas: _alter_quotas,
}


_UNCOUNTED: Final = (CoordinatorCommand, MarkersWritten, SecurityCommand)
"""Commands that change nothing that the version of the view counts."""
_RELEASING: Final = (DeleteTopics, AlterConfigs, DeleteOffsets, ForgetGroups)


def execute(state: ClusterState, envelope: Envelope, term: int = 0) -> bytes:
    """Carry out a command; return its result, encoded. One that comes again changes nothing.

    `term`: in which it was appended.
    """
    identity, lowest = envelope.command_id, envelope.lowest
    known = state.answers.find(identity)
    if known is not None:
        return encode(Forgotten()) if known == NO_RESULT else known
    refusal = state.answers.refusal(identity, lowest)
    if refusal:
        return encode(Refused(refusal))
    command = envelope.command
    state.changes += not isinstance(command, _UNCOUNTED)
    if isinstance(command, CoordinatorCommand) and command.term != term:
        text = f"decided in term {command.term}, appended in {term}"
        result: AnyResult = GroupsChanged(ResponseCode.NOT_LEADER, text)
    else:
        at_ms = envelope.at_ms
        if isinstance(command, CoordinatorCommand):
            at_ms = state.time.stamp(at_ms, term)
        result = _EXECUTE[type(command)](state, command, at_ms)
    encoded = encode(result)
    state.answers.remember(identity, lowest, encoded)
    return encoded


class ClusterMachine(StateMachine):
    """The state in memory. `view` may be read on any thread: it is replaced, never changed."""

    linger_ms = 2
    """Producers wait until the leaders of their partitions know of a transaction, or of its end."""

    def __init__(self) -> None:
        self._state = ClusterState()
        self.view = EMPTY_VIEW

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """See `StateMachine`."""
        changes = self._state.changes
        results = [self._apply(entry) for entry in entries]
        if self._state.changes == changes:
            self.view = self._state.view_of_commits(self.view)
        else:
            self.view = self._state.view(self.view)
        return results

    def _apply(self, entry: Entry) -> bytes:
        try:
            envelope = decode_envelope(entry.body)
        except UnexpectedArgumentError as error:
            return encode(Refused(str(error)))
        return execute(self._state, envelope, entry.term)

    def releases(self, body: memoryview) -> bool:
        """See `StateMachine`: deletions, and configs such as shorter retention, make room.

        So does a consumer group that has fewer members: one without any may be deleted. Rights must
        be taken away however full the disk is.
        """
        try:
            command = decode_envelope(body).command
        except UnexpectedArgumentError:
            return False
        is_emptied = isinstance(command, SaveGroup) and not command.members
        shrinks = isinstance(command, SaveConsumers) and not command.changed
        return is_emptied or shrinks or isinstance(command, _RELEASING) or takes_away(command)

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """See `StateMachine`."""
        writer.write(self._state.encode())

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """See `StateMachine`."""
        try:
            self._state = ClusterState.decode(reader.read())
        except msgspec.MsgspecError as error:
            text = f"a snapshot of __cluster cannot be read: {error}"
            raise CorruptionError(text, "snapshot", 0) from error
        self.view = self._state.view(self.view)

    def digest(self) -> bytes:
        """See `StateMachine`."""
        return blake2b(self._state.encode(), digest_size=DIGEST_BYTES).digest()
