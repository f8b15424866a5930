"""Coordinators keep their word: owners, committed offsets, and transactions with one outcome.

The commands that are committed in `__cluster` are applied here once more, by whoever has them
first, and each step is judged by rules that are simpler than those of the state machine.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    CommitOffsets,
    CommitTogether,
    CoordinatorCommand,
    DecideTransaction,
    DeleteOffsets,
    DeleteTopics,
    EndSinkBatch,
    Envelope,
    ForgetGroups,
    GroupsChanged,
    InitTransaction,
    MarkersWritten,
    OffsetsCommitted,
    SaveGroup,
    decode_envelope,
    decode_result,
)
from quorumlog.machine.cluster.consumer_groups import CommittedOffset, ConsumerGroupRecord
from quorumlog.machine.cluster.consumer_groups import Partition as Place
from quorumlog.machine.cluster.machine import DIGEST_BYTES, execute
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.machine.cluster.transactions import TransactionRecord
from quorumlog.model.block import decode_entries
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import StorageError
from quorumlog.records.batch import BatchHeader
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES
from quorumlog.sim.partition_history import PartitionHistory
from quorumlog.sim.views import ClusterView, NodeView

_OF_VERSIONS: Final = (AddToTransaction, AddTransactionOffsets, DecideTransaction, InitTransaction)
"""Commands that count only for the record of a transactional id that their coordinator saw."""
_REMOVING: Final = (DeleteOffsets, ForgetGroups, DeleteTopics)
"""Commands after which committed offsets may be gone."""


def _commits(command: Any) -> bool:
    """Whether offsets may be committed by a command: those of transactions once it is decided."""
    if isinstance(command, DecideTransaction | EndSinkBatch):
        return command.commits
    return isinstance(command, CommitOffsets | CommitTogether)


def progress_text(base: int, session: str) -> str:
    """Return the metadata of an offset: where who commits it began, and who that is."""
    return f"{base} {session}"


class Coordination(Invariant):
    """Follows the log of `__cluster`. `histories`: of the logs of partition groups, by name."""

    name = "coordination"

    def __init__(self) -> None:
        self.histories: dict[str, PartitionHistory] = {}
        self.state = ClusterState()
        self.index = -1
        self.outcomes: dict[tuple[str, int], bool] = {}
        """By transactional id and number of its transaction: whether it was committed."""
        self.progress: set[tuple[str, int, int, str]] = set()
        """All that was ever committed: group, number of the partition, offset and metadata."""
        self.assignments: dict[tuple[str, int], dict[str, bytes]] = {}
        """By group and generation, as it was saved last: what each member was assigned."""
        self._told: dict[str, bool] = {}
        """By transactional id, if its producer was told how its transaction has ended and the log
        does not say it yet: whether it was committed."""
        self._added: dict[tuple[str, str, Place], int] = {}
        """By transactional id, group and partition: the entry that added the offset there last."""
        self._since: dict[tuple[str, Place], int] = {}
        """By group and partition: the entry that the committed offset is of."""
        self._channels: dict[tuple[str, int], Place] = {}
        self._digests: dict[int, bytes] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        self._read_on(node)
        state = node.running.applier.state
        now = node.life, state.applied_index
        if self._seen.get(node.node_id) == now or state.machine is None:
            return
        self._seen[node.node_id] = now
        expected = self._digests.get(state.applied_index)
        self.require(
            expected in (None, state.machine.digest()),
            f"{node.node_id} has another state after the entry {state.applied_index} than its log",
        )

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`: nothing is under way any more."""
        for node in cluster.members():
            self._read_on(node)
            self.require(self.index >= node.core.committed_index, f"{self.index} is not the end")
        open_ids = [one for one, record in self._records.items() if record.is_open]
        self.require(not open_ids, f"transactions of {open_ids} hang")
        told = list(self._told)
        self.require(not told, f"transactions of {told} have not ended, as was told")
        groups = self.state.consumer_groups
        reserved = groups.reserved_count, groups.reserved_bytes
        self.require(reserved == (0, 0), f"room is kept for offsets of nobody: {reserved}")

    @property
    def _records(self) -> Mapping[str, TransactionRecord]:
        return self.state.transactions.records

    # -- the committed log ------------------------------------------------------------------------

    def _read_on(self, node: NodeView) -> None:
        log = node.log
        while log.before_begin_index <= self.index < node.core.committed_index:
            try:
                run = log.read(self.index + 1, node.core.committed_index, READ_BYTES)
            except StorageError:
                return  # another node can, or this one later
            for entry in decode_entries(run.block()):
                if entry.is_data:
                    self._take(decode_envelope(entry.body), entry.term, entry.index)
            self.index = run.last_index

    def _take(self, envelope: Envelope, term: int, index: int) -> None:
        groups, records = dict(self.state.consumer_groups.records), dict(self._records)
        is_new = self.state.answers.find(envelope.command_id) is None
        result = decode_result(execute(self.state, envelope, term))
        command = envelope.command
        is_done = isinstance(result, OffsetsCommitted) or (
            isinstance(result, GroupsChanged) and result.code is ResponseCode.SUCCESS
        )
        where = f"the entry {index}, {type(command).__name__},"
        if not is_new:
            same = groups == self.state.consumer_groups.records and records == self._records
            self.require(same, f"{where} comes again, and changes something")
            is_done = False
        if isinstance(command, CoordinatorCommand) and is_done:
            text = f"{where} of a coordinator of term {command.term} counts in term {term}"
            self.require(command.term == term, text)
        if isinstance(command, _OF_VERSIONS) and is_done:
            record = records.get(command.transactional_id)
            version = 0 if record is None else record.version
            text = f"{where} counts for version {command.version} of what is at {version}"
            self.require(command.version == version, text)
        if isinstance(command, CommitOffsets | AddTransactionOffsets) and is_done:
            self._check_commit(command, groups.get(command.group), where)
        elif isinstance(command, CommitTogether) and isinstance(result, OffsetsCommitted):
            for one, found in zip(command.commits, result.results, strict=True):
                if is_done and found.code is ResponseCode.SUCCESS:
                    self._check_commit(one, groups.get(one.group), where)
        elif isinstance(command, SaveGroup) and is_done:
            self._check_save(command, groups.get(command.group), where)
        codes = result.codes if is_done and isinstance(result, GroupsChanged) else ()
        self._note_offsets(command, codes, index)
        self._check_offsets(groups, command, where)
        self._check_transactions(records, command, where)
        self._check_channels(where)
        digest = blake2b(self.state.encode(), digest_size=DIGEST_BYTES).digest()
        self._digests[index] = digest

    # -- consumer groups --------------------------------------------------------------------------

    def _check_commit(
        self,
        command: CommitOffsets | AddTransactionOffsets,
        group: ConsumerGroupRecord | None,
        where: str,
    ) -> None:
        """A member commits only in the generation that was saved last, or in its own epoch."""
        if group is None or command.generation < 0:
            return
        if command.member_id:
            member = (group.consumers or {}).get(command.member_id)
            epoch = None if member is None else member.epoch
            text = f"{where} of {command.member_id} in epoch {command.generation}; it has {epoch}"
            self.require(epoch == command.generation, text)
        else:
            text = f"{where} of generation {command.generation} after {group.generation}"
            self.require(command.generation >= group.generation, text)

    def _check_save(
        self, command: SaveGroup, group: ConsumerGroupRecord | None, where: str
    ) -> None:
        """Generations of a group only rise."""
        before = command.generation if group is None else group.generation
        text = f"{where} saves generation {command.generation} after {before}"
        self.require(command.generation >= before, text)
        assigned = {one.member_id: one.assignment for one in command.members}
        self.assignments[command.group, command.generation] = assigned

    def _note_offsets(self, command: Any, codes: Iterable[ResponseCode], index: int) -> None:
        if not isinstance(command, CommitOffsets | AddTransactionOffsets):
            return
        for one, code in zip(command.offsets, codes, strict=False):
            if code is not ResponseCode.SUCCESS:
                continue
            group, place = command.group, (one.topic_id, one.partition)
            if isinstance(command, CommitOffsets):
                self._since[group, place] = index
            else:
                self._added[command.transactional_id, group, place] = index

    def _check_order(self, command: DecideTransaction, group: str, place: Place) -> None:
        """What a transaction commits was added after what was committed, or added, before."""
        added = self._added[command.transactional_id, group, place]
        since = self._since.get((group, place), -1)
        text = (
            f"{command.transactional_id} commits an offset of {group} for {place[1]} of the entry "
            f"{added}, after that of the entry {since}"
        )
        self.require(added > since, text)
        self._since[group, place] = added

    def _check_offsets(
        self, before: Mapping[str, ConsumerGroupRecord], command: Any, where: str
    ) -> None:
        for name, record in self.state.consumer_groups.records.items():
            known = before.get(name)
            old = {} if known is None else known.offsets
            if record.offsets is old:
                continue
            for place, offset in record.offsets.items():
                if offset != old.get(place):
                    self.require(_commits(command), f"{where} changes offsets of {name}")
                    self.progress.add((name, place[1], offset.offset, offset.metadata))
                    self._check_step(f"{where} of {name} for {place[1]}", old.get(place), offset)
                    if isinstance(command, DecideTransaction):
                        self._check_order(command, name, place)
            gone = old.keys() - record.offsets.keys()
            self.require(
                not gone or isinstance(command, _REMOVING), f"{where} removes offsets of {name}"
            )
        lost = before.keys() - self.state.consumer_groups.records.keys()
        self.require(not lost or isinstance(command, _REMOVING), f"{where} removes {lost}")

    def _check_step(
        self, where: str, before: CommittedOffset | None, after: CommittedOffset
    ) -> None:
        """Who commits first for a partition began where the one before it has ended."""
        base, _, session = after.metadata.partition(" ")
        last = "" if before is None else before.metadata.partition(" ")[2]
        offset = 0 if before is None else before.offset
        if session == last:
            text = f"{where}: {session} goes from {offset} back to {after.offset}"
            self.require(after.offset >= offset, text)
        else:
            text = f"{where}: {session} began at {base}, but {last or 'nobody'} ended at {offset}"
            self.require(int(base or -1) == offset, text)

    # -- transactions -----------------------------------------------------------------------------

    def _check_transactions(
        self, before: Mapping[str, TransactionRecord], command: Any, where: str
    ) -> None:
        if isinstance(command, MarkersWritten):
            self._check_markers(before, command, where)
        for name, record in self._records.items():
            old = before.get(name)
            if record is old:
                continue
            who, known = (record.producer_id, record.epoch), old or record
            self.require(
                who >= (known.producer_id, known.epoch), f"{where} gives {name} back to {who}"
            )
            self.require(record.number >= known.number, f"{where}: a transaction of {name} again")
            self._check_told(record, command, where)
            if record.state in ("Ongoing", "Empty"):
                continue
            is_same = known.number == record.number
            decided = self.outcomes.setdefault((name, record.number), record.commits)
            self.require(
                decided == record.commits and (is_same or old is None),
                f"{where} ends transaction {record.number} of {name} in two ways",
            )

    def told_end(self, name: str, who: tuple[int, int], *, commits: bool) -> None:
        """A producer (id and epoch) is told how its transaction has ended: so it has in the log.

        The log may be read up to there only later, as a node that has just stopped is not looked
        at. Then that must be what comes next of this transactional id.
        """
        record = self._records.get(name)
        if record is None or (record.producer_id, record.epoch) != who:
            return  # another producer has the id now
        if record.state == "Ongoing":
            self._told[name] = commits
        else:
            text = f"commits={commits} is told, and the transaction of {name} is {record.state}"
            self.require(record.state != "Empty" and record.commits == commits, text)

    def _check_told(self, record: TransactionRecord, command: Any, where: str) -> None:
        name = record.transactional_id
        if name not in self._told or not isinstance(command, _OF_VERSIONS):
            return
        commits = self._told.pop(name)
        is_so = isinstance(command, DecideTransaction) and record.commits == commits
        text = f"{where} leaves that of {name} {record.state}; commits={commits} was told before"
        self.require(is_so, text)

    def _check_markers(
        self, before: Mapping[str, TransactionRecord], command: MarkersWritten, where: str
    ) -> None:
        """Partitions that are said to have markers have ended the transaction, and it stays so."""
        for at, (name, number, places) in enumerate(command.written):
            record = before.get(name)
            if record is None or record.number != number or not record.is_prepared:
                continue
            if command.producer_ids[at : at + 1] not in ([], [record.producer_id]):
                continue
            for topic_id, partition in places:
                topic = self.state.topics_by_id.get(topic_id)
                if topic is None or (topic_id, partition) not in record.partitions:
                    continue
                found = topic.partitions[partition]
                history = self.histories.get(found.group)
                past = None if history is None else history.past.get(found.channel)
                is_ongoing = past is not None and record.producer_id in past.ongoing
                text = f"{where}: transaction {number} of {name} goes on in {partition}"
                self.require(not is_ongoing, text)

    def marker(self, group: str, channel: int, header: BatchHeader, commits: bool) -> None:
        """A partition has a marker, with effect: its transaction was decided so before."""
        record = self.state.transactions.view().of_producer(header.producer_id)
        where = f"a marker of producer {header.producer_id} in {group}, channel {channel},"
        if record is None:
            self.require(False, f"{where} belongs to no transactional id")
            return
        self.require(
            record.is_prepared and record.commits == commits,
            f"{where} {'commits' if commits else 'aborts'} what is {record.state}",
        )

    # -- topics -----------------------------------------------------------------------------------

    def _check_channels(self, where: str) -> None:
        """A channel of a group belongs to one partition, now and for ever."""
        for group, channels in self.state.assignments.items():
            for channel, one in channels.items():
                place = one.topic_id, one.number
                known = self._channels.setdefault((group, channel), place)
                self.require(
                    known == place, f"{where} gives channel {channel} of {group} out again"
                )
