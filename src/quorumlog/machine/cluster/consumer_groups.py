"""How far consumer groups have come, and who their members are: commands of their coordinator."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import msgspec

from quorumlog.machine.cluster.commands import (
    ID_BYTES,
    MEMBERS_MAX,
    NO_GENERATION,
    AddTransactionOffsets,
    CommitOffsets,
    DeleteOffsets,
    ForgetGroups,
    GroupsChanged,
    ReadLog,
    SaveConsumers,
    SavedConsumer,
    SavedMember,
    SaveGroup,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.wording import counted

GROUPS_MAX: Final = 10_000
"""Consumer groups of a cluster."""
OFFSETS_MAX: Final = 100_000
"""Committed offsets of all consumer groups."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""What all consumer groups take (`ConsumerGroupRecord.size_bytes`), in memory and in a snapshot."""
MEMBER_BYTES: Final = 100
"""Of a member, beside its texts."""
LOG_PREFIX: Final = "log:"
"""Names of logs among those of topics begin so: no topic has a colon in its name."""
GROUP_BYTES: Final = 200
"""Of a group, beside its texts and its members."""
_OFFSET_BYTES: Final = 100
"""Beside the bytes of texts."""
_TOPIC_BYTES: Final = 20
_NUMBER_BYTES: Final = 3
"""Of a topic that a member has partitions of, and of each of them."""


class CommittedOffset(NamedTuple):
    """Where the consumers of a partition go on; `at_ms`: when it was committed, in Unix time.

    `number`: of an offset in an ongoing transaction. The one that was added later has the higher
    one. 0: it is committed, or an earlier version added it.
    """

    offset: int
    leader_epoch: int
    metadata: str
    at_ms: int
    number: int = 0


Partition: TypeAlias = tuple[bytes, int]
"""The id of a topic and the number of the partition."""


class LogToRead(msgspec.Struct, frozen=True, array_like=True):
    """A log that a consumer group reads, and its partitions; see `ReadLog`.

    To the coordinator, and to Kafka's clients, it is a topic with this `topic` as its name.
    """

    log: str
    identity: bytes
    partitions: int

    @property
    def topic(self) -> str:
        """Its name among those of topics."""
        return LOG_PREFIX + self.log

    @property
    def topic_id(self) -> bytes:
        """Its id among those of topics."""
        return blake2b(self.log.encode(), key=self.identity, digest_size=ID_BYTES).digest()

    def may_be(self, other: "LogToRead") -> bool:
        """Whether both are the same log, as far as is known: an empty identity is not known."""
        is_alike = (self.log, self.partitions) == (other.log, other.partitions)
        return is_alike and (
            self.identity == other.identity or not (self.identity and other.identity)
        )

    def is_other(self, log: "LogToRead") -> bool:
        """Whether both have the same name and are two logs: one was founded after the other."""
        is_known = bool(self.identity and log.identity)
        return is_known and self.log == log.log and self.identity != log.identity

    @property
    def text(self) -> str:
        """What it is, for people."""
        split = f" in {counted(self.partitions, 'partition')}"
        return f"the log {self.log!r}{split}"

    def refusal(self, group: str, used: "LogToRead | None") -> str:
        """Return why a consumer group cannot read it: it consumes something else."""
        text = f"consumes {'topics' if used is None else used.text}, not {self.text}"
        if used is not None and used.is_other(self):
            text = (
                f"consumes another log {self.log!r}, with another identity, as one was deleted "
                "and founded again"
            )
        return (
            f"consumer group {group!r} {text}: use another group, or stop its members and delete "
            f"it with its positions (quorumlog consumer-group delete {group})"
        )


class ConsumerGroupRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A consumer group as it was saved last, and as a snapshot has it.

    `changed_ms`: when that was, in Unix time. `version` rises whenever members are saved, and
    whenever the group is to read another log.
    `consumers`: members by the consumer protocol (KIP-848), by their ids; None: the group is one of
    the classic protocol. `generation` is the epoch of a group of the consumer protocol. It does not
    go back when a group without members changes from one protocol to the other. `log`: what the
    group reads; None: it consumes topics.
    """

    name: str
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[SavedMember, ...] = ()
    offsets: Mapping[Partition, CommittedOffset] = {}
    changed_ms: int = 0
    version: int = 0
    consumers: Mapping[str, SavedConsumer] | None = None
    log: LogToRead | None = None

    @property
    def member_count(self) -> int:
        """How many members it has, by whatever protocol."""
        return len(self.members) + len(self.consumers or ())

    @property
    def positions(self) -> dict[int, CommittedOffset]:
        """How far the group has come in each partition of the log that it reads."""
        if self.log is None:
            return {}
        topic_id = self.log.topic_id
        return {
            number: one
            for (of, number), one in self.offsets.items()
            if of == topic_id and number < self.log.partitions and one.offset >= 0
        }

    def has_partition(self, topics: Mapping[bytes, object], place: Partition) -> bool:
        """Whether it may commit in a partition: one of its log, or of a topic that there is."""
        if self.log is None:
            return place[0] in topics
        return place[0] == self.log.topic_id and place[1] < self.log.partitions

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes."""
        return self.member_bytes + _size_of_offsets(self.offsets.values())

    @property
    def member_bytes(self) -> int:
        """About how many bytes it takes without its offsets."""
        log = "" if self.log is None else self.log.log
        texts = (self.name, self.protocol_type, self.protocol, self.leader, log)
        members = sum(map(size_of_member, self.members))
        consumers = sum(map(size_of_consumer, (self.consumers or {}).values()))
        return GROUP_BYTES + size_of_texts(*texts) + members + consumers


def size_of_texts(*texts: str | None) -> int:
    """Return how many bytes texts have."""
    return sum(len(one.encode()) for one in texts if one)


def size_of_member(member: SavedMember) -> int:
    """Return about how many bytes a member by the classic protocol takes."""
    texts = size_of_texts(
        member.member_id, member.instance_id, member.client_id, member.client_host
    )
    return MEMBER_BYTES + texts + len(member.metadata) + len(member.assignment)


def size_of_consumer(member: SavedConsumer) -> int:
    """Return about how many bytes a member by the consumer protocol takes."""
    said = size_of_said(member.topics, member.pattern, member.assignor)
    texts = size_of_texts(
        member.member_id, member.instance_id, member.rack_id, member.client_id, member.client_host
    )
    numbers = [*member.assigned.values(), *member.revoking.values()]
    has = _TOPIC_BYTES * len(numbers) + _NUMBER_BYTES * sum(map(len, numbers))
    return MEMBER_BYTES + said + texts + has


def size_of_said(topics: Collection[str], *texts: str) -> int:
    """Return about how many bytes a member says for its subscription."""
    return size_of_texts(*topics, *texts) + 2 * len(topics)


def _size_of_offsets(offsets: Iterable[CommittedOffset]) -> int:
    return sum(map(_size_of_offset, offsets))


def _size_of_offset(offset: CommittedOffset) -> int:
    return _OFFSET_BYTES + len(offset.metadata.encode())


@dataclass(slots=True)
class ConsumerGroups:
    """All consumer groups. Records are replaced, never changed."""

    records: dict[str, ConsumerGroupRecord] = field(default_factory=dict)
    offset_count: int = 0
    size_bytes: int = 0
    reserved_count: int = 0
    reserved_bytes: int = 0
    """Of offsets that ongoing transactions will commit: there must be room for them."""

    # -- commands -----------------------------------------------------------------------------

    def save_group(self, command: SaveGroup, at_ms: int) -> GroupsChanged:
        """Save a generation of a group, unless a later one was saved: a command may be delayed."""
        before = self.records.get(command.group)
        if before is None and len(self.records) >= GROUPS_MAX:
            return _full(f"a cluster has at most {GROUPS_MAX} consumer groups")
        if before is not None and before.generation > command.generation:
            return _outdated(before)
        if before is not None and before.log is not None:
            return _outdated(before)  # none of the classic protocol reads a log
        after = ConsumerGroupRecord(
            command.group,
            command.generation,
            command.protocol_type,
            command.protocol,
            command.leader,
            tuple(command.members),
            {} if before is None else before.offsets,
            at_ms if before is None else max(before.changed_ms, at_ms),
            1 if before is None else before.version + 1,
        )
        growth = after.member_bytes - (0 if before is None else before.member_bytes)
        if command.members and growth > 0 and self.taken_bytes + growth > BYTES_MAX:
            return _full(f"consumer groups of a cluster have at most {BYTES_MAX} bytes")
        self.size_bytes += growth
        self.records[command.group] = after
        return GroupsChanged(ResponseCode.SUCCESS)

    def save_consumers(self, command: SaveConsumers, at_ms: int) -> GroupsChanged:
        """Save what has changed of a group by the consumer protocol, as its coordinator knew it."""
        known = self.records.get(command.group)
        if known is None and len(self.records) >= GROUPS_MAX:
            return _full(f"a cluster has at most {GROUPS_MAX} consumer groups")
        before = ConsumerGroupRecord(command.group) if known is None else known
        if before.version != command.version or before.generation > command.epoch:
            return _outdated(before)
        consumers = dict(before.consumers or {})
        gone = [consumers.pop(one) for one in command.removed if one in consumers]
        replaced = [
            consumers[one.member_id] for one in command.changed if one.member_id in consumers
        ]
        consumers.update((one.member_id, one) for one in command.changed)
        growth = sum(map(size_of_consumer, command.changed))
        growth -= sum(map(size_of_consumer, [*gone, *replaced]))
        growth -= sum(map(size_of_member, before.members))
        growth -= size_of_texts(before.protocol_type, before.protocol, before.leader)
        growth += before.member_bytes if known is None else 0
        is_too_large = growth > 0 and self.taken_bytes + growth > BYTES_MAX
        if command.changed and (is_too_large or len(consumers) > MEMBERS_MAX):
            return _full(f"consumer groups of a cluster have at most {BYTES_MAX} bytes")
        self.size_bytes += growth
        self.records[command.group] = msgspec.structs.replace(
            before,
            generation=command.epoch,
            protocol_type="",
            protocol="",
            leader="",
            members=(),
            changed_ms=max(before.changed_ms, at_ms),
            version=before.version + 1,
            consumers=consumers,
        )
        return GroupsChanged(ResponseCode.SUCCESS)

    def read_log(self, command: ReadLog, at_ms: int, *, has_pending: bool) -> GroupsChanged:
        """Have a group read a log, unless it is used for something else already.

        Positions stay if it is the same log as before, of which one identity was not known. They go
        if the log was founded again, which the coordinator has to know for sure. `has_pending`: an
        ongoing transaction may commit offsets of topics for the group.
        """
        known = self.records.get(command.group)
        if known is None and len(self.records) >= GROUPS_MAX:
            return _full(f"a cluster has at most {GROUPS_MAX} consumer groups")
        before = ConsumerGroupRecord(command.group) if known is None else known
        log = LogToRead(command.log, command.identity, command.partitions)
        is_same = before.log is not None and before.log.may_be(log)
        if before.log == log or (is_same and not log.identity):
            return GroupsChanged(ResponseCode.SUCCESS)
        is_refounded = before.log is not None and before.log.is_other(log) and command.is_certain
        is_kept = bool(before.offsets) and not (is_same or is_refounded)
        if before.member_count or is_kept or has_pending:
            text = log.refusal(before.name, before.log)
            return GroupsChanged(ResponseCode.CHANGE_IN_PROGRESS, text)
        after = msgspec.structs.replace(before, log=log, version=before.version + 1)
        growth = after.member_bytes - (0 if known is None else before.member_bytes)
        if growth > 0 and self.taken_bytes + growth > BYTES_MAX:
            return _full(f"consumer groups of a cluster have at most {BYTES_MAX} bytes")
        offsets = before.offsets if is_same else {}
        moved = {(log.topic_id, number): one for (_, number), one in offsets.items()}
        growth += _size_of_offsets(moved.values()) - _size_of_offsets(before.offsets.values())
        self._put(after, moved, at_ms, growth)
        return GroupsChanged(ResponseCode.SUCCESS)

    def commit(
        self, command: CommitOffsets, topics: Mapping[bytes, object], at_ms: int
    ) -> GroupsChanged:
        """Note how far a group has come, in those partitions whose topics there are.

        In a log, what a member commits is not below what is committed.
        """
        before = self.records.get(command.group)
        if before is None:
            if len(self.records) >= GROUPS_MAX:
                return _full(f"a cluster has at most {GROUPS_MAX} consumer groups")
            before = ConsumerGroupRecord(command.group)
        if self.is_late(command):
            return _outdated(before)
        offsets, codes = dict(before.offsets), []
        growth = 0 if command.group in self.records else before.member_bytes
        for one in command.offsets:
            place = one.topic_id, one.partition
            known = offsets.get(place)
            is_kept = before.log and known and command.generation != NO_GENERATION
            at = max(one.offset, known.offset) if is_kept and known else one.offset
            offset = CommittedOffset(at, one.leader_epoch, one.metadata, at_ms)
            more = _size_of_offset(offset) - (0 if known is None else _size_of_offset(known))
            if not before.has_partition(topics, place):
                codes.append(ResponseCode.UNKNOWN_TOPIC)
            elif (known is None and self._room(before, offsets) <= 0) or (
                more > 0 and self.taken_bytes + growth + more > BYTES_MAX
            ):
                codes.append(ResponseCode.CLUSTER_FULL)
            else:
                offsets[place] = offset
                growth += more
                codes.append(ResponseCode.SUCCESS)
        if ResponseCode.SUCCESS in codes:  # a commit of nothing makes no group
            self._put(before, offsets, at_ms, growth)
        return GroupsChanged(ResponseCode.SUCCESS, codes=codes)

    def is_late(self, command: CommitOffsets | AddTransactionOffsets) -> bool:
        """Whether the member that commits offsets has been succeeded, if it says which one it is.

        It has another epoch by now, or the group a later generation.
        """
        if command.generation == NO_GENERATION:
            return False
        saved = self.records.get(command.group)
        if not command.member_id:
            return saved is not None and saved.generation > command.generation
        member = None if saved is None else (saved.consumers or {}).get(command.member_id)
        return member is None or member.epoch != command.generation

    def _room(
        self, before: ConsumerGroupRecord, offsets: Mapping[Partition, CommittedOffset]
    ) -> int:
        """Return how many offsets more there may be, once a group has these."""
        taken = self.offset_count + self.reserved_count
        return OFFSETS_MAX - taken + len(before.offsets) - len(offsets)

    @property
    def taken_bytes(self) -> int:
        """What all groups take, with the room that is kept for offsets of transactions."""
        return self.size_bytes + self.reserved_bytes

    # -- transactions -------------------------------------------------------------------------

    def have_room_for(self, names: Iterable[str]) -> bool:
        """Whether there may be groups of these names, which transactions commit offsets of."""
        more = sum(name not in self.records for name in names)
        return not more or len(self.records) + more <= GROUPS_MAX

    def has_partition(self, name: str, topics: Mapping[bytes, object], place: Partition) -> bool:
        """Whether a transaction may commit for a group in a partition: of a topic that there is."""
        record = self.records.get(name)
        return place[0] in topics and (record is None or record.log is None)

    def reserve(
        self,
        name: str,
        place: Partition,
        offset: CommittedOffset,
        instead_of: CommittedOffset | None,
    ) -> bool:
        """Keep room for an offset of a group that a transaction may commit; False: there is none.

        One of a partition that has a committed offset finds room in any case but for its size.
        """
        before = () if instead_of is None else (instead_of,)
        more = _size_of_offsets([offset]) - _size_of_offsets(before)
        has_place = before or (name in self.records and place in self.records[name].offsets)
        is_full = not has_place and self.offset_count + self.reserved_count >= OFFSETS_MAX
        if is_full or (more > 0 and self.taken_bytes + more > BYTES_MAX):
            return False
        self.keep_room(offset, instead_of)
        return True

    def keep_room(self, offset: CommittedOffset, instead_of: CommittedOffset | None = None) -> None:
        """Count an offset for which there is room, or was when it was reserved."""
        before = () if instead_of is None else (instead_of,)
        self.reserved_count += not before
        self.reserved_bytes += _size_of_offsets([offset]) - _size_of_offsets(before)

    def release(self, offsets: Collection[CommittedOffset]) -> None:
        """Keep no room any more for offsets that were reserved."""
        self.reserved_count -= len(offsets)
        self.reserved_bytes -= _size_of_offsets(offsets)

    def put_offsets(
        self, name: str, offsets: Mapping[Partition, CommittedOffset], at_ms: int
    ) -> None:
        """Commit offsets of topics for which there is room: a group has come so far.

        In the log of a group that reads one they mean nothing.
        """
        before = self.records.get(name, ConsumerGroupRecord(name))
        if before.log is not None:
            return
        growth = 0 if name in self.records else before.member_bytes
        replaced = [before.offsets[place] for place in offsets if place in before.offsets]
        growth += _size_of_offsets(offsets.values()) - _size_of_offsets(replaced)
        committed = {place: one._replace(number=0) for place, one in offsets.items()}
        self._put(before, {**before.offsets, **committed}, at_ms, growth)

    def delete_offsets(self, command: DeleteOffsets, at_ms: int) -> GroupsChanged:
        """Forget how far a group has come in some partitions."""
        before = self.records.get(command.group)
        if before is None:
            return GroupsChanged(ResponseCode.UNKNOWN_GROUP, f"no group {command.group!r}")
        offsets = dict(before.offsets)
        removed = [offsets.pop(place) for place in command.partitions if place in offsets]
        self._put(before, offsets, at_ms, -_size_of_offsets(removed))
        return GroupsChanged(ResponseCode.SUCCESS)

    def forget(self, command: ForgetGroups) -> GroupsChanged:
        """Forget groups that have no members."""
        codes = [self._forget(name, command.unchanged_since_ms) for name in command.groups]
        return GroupsChanged(ResponseCode.SUCCESS, codes=codes)

    def _forget(self, name: str, unchanged_since_ms: int | None) -> ResponseCode:
        found = self.records.get(name)
        if found is None:
            return ResponseCode.UNKNOWN_GROUP
        is_recent = unchanged_since_ms is not None and found.changed_ms > unchanged_since_ms
        if found.member_count or is_recent:
            return ResponseCode.CHANGE_IN_PROGRESS
        self.offset_count -= len(found.offsets)
        self.size_bytes -= found.size_bytes
        del self.records[name]
        return ResponseCode.SUCCESS

    def forget_topic(self, topic_id: bytes) -> None:
        """A topic is deleted: so is how far groups have come in it."""
        for record in list(self.records.values()):
            removed = [one for place, one in record.offsets.items() if place[0] == topic_id]
            if removed:
                kept = {place: one for place, one in record.offsets.items() if place[0] != topic_id}
                self._put(record, kept, record.changed_ms, -_size_of_offsets(removed))

    def _put(
        self,
        before: ConsumerGroupRecord,
        offsets: Mapping[Partition, CommittedOffset],
        at_ms: int,
        growth: int,
    ) -> None:
        self.size_bytes += growth
        self.offset_count += len(offsets) - len(before.offsets)
        changed_ms = max(before.changed_ms, at_ms)
        after = msgspec.structs.replace(before, offsets=offsets, changed_ms=changed_ms)
        self.records[before.name] = after

    # -- as a whole ---------------------------------------------------------------------------

    @classmethod
    def restored(cls, records: Iterable[ConsumerGroupRecord]) -> "ConsumerGroups":
        """Return the groups of a snapshot."""
        found = {one.name: one for one in records}
        offset_count = sum(len(one.offsets) for one in found.values())
        return cls(found, offset_count, sum(one.size_bytes for one in found.values()))


def _outdated(saved: ConsumerGroupRecord) -> GroupsChanged:
    text = f"generation {saved.generation} of {saved.name} was saved meanwhile"
    return GroupsChanged(ResponseCode.INCONSISTENT_TERM, text)


def _full(text: str) -> GroupsChanged:
    return GroupsChanged(ResponseCode.CLUSTER_FULL, text)
