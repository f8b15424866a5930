"""Simulated members of a consumer group, by the classic protocol.

They read nothing, but go on in their partitions as if they had, and commit how far they have come:
themselves, or with a transaction (KIP-447). Some stall for longer than their session lasts, and try
to go on as if they were members still.
"""

from types import SimpleNamespace
from typing import Any, Final

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.sim.broker_requests import BrokerClient, BrokerRequests
from quorumlog.sim.finding import Finding
from quorumlog.sim.invariants.coordination import progress_text
from quorumlog.sim.transactional_clients import Offsets, TransactionalProducer

INPUT: Final = "in"
INPUT_PARTITIONS: Final = 4
SESSION_MS, REBALANCE_MS = 1_500, 1_500
JOIN_PATIENCE_MS: Final = 6_000
LEAVES, DIES, STALLS = 0.005, 0.005, 0.01
"""Shares of a member's steps with which it leaves, ends without leaving, or stalls."""
STEPS_MS: Final = (5, 100)


class GroupHistory:
    """What members of a group were told, and what was acknowledged to them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: dict[int, int] = {}
        """By partition: the highest offset whose commit was acknowledged."""
        self.told: list[tuple[int, int, str]] = []
        """All commits that were acknowledged: partition, offset and metadata."""
        self._owners: dict[tuple[int, int], str] = {}

    def owns(self, generation: int, number: int, member: str) -> None:
        """A member is told that it has a partition. Raises `Finding` if another one has it."""
        owner = self._owners.setdefault((generation, number), member)
        if owner != member:
            text = f"{self.name}: {owner} and {member} have {number} in generation {generation}"
            raise Finding("one_owner", text)

    def fetched(self, number: int, floor: int, offset: int) -> None:
        """A member is told where to go on. Raises `Finding` if that is before what was committed.

        `floor`: what had been acknowledged when it asked.
        """
        if offset < floor:
            text = f"{self.name}: {offset} is told for {number}; {floor} was acknowledged before"
            raise Finding("committed_offsets", text)

    def committed(self, number: int, offset: int, metadata: str) -> None:
        """A commit was acknowledged."""
        self.told.append((number, offset, metadata))
        self.acknowledged[number] = max(offset, self.acknowledged.get(number, 0))


class GroupMember(BrokerClient):
    """A member. `producer` commits its offsets with transactions, None: it commits them itself.

    `owned`: the partitions that it has, with where it goes on. `instance_id`: of a static member.
    `leaves`: the share of its steps with which it leaves, and joins again as another member.
    """

    leaves = LEAVES

    def __init__(
        self,
        requests: BrokerRequests,
        name: str,
        history: GroupHistory,
        producer: TransactionalProducer | None,
        instance_id: str | None,
    ) -> None:
        super().__init__(requests, name)
        self.history = history
        self.owned: dict[int, int] = {}
        self.generation = -1
        self.has_ended = False
        self.producer = producer
        self._instance_id = instance_id
        self._member_id = ""
        self._bases: dict[int, int] = {}

    @property
    def _session(self) -> str:
        return f"{self._member_id}/{self.generation}"

    async def run(self) -> None:
        """Be a member, and come back whenever that ends, until the run ends."""
        while not self.has_ended:
            if await self._join():
                await self._work()
            self.owned, self.generation = {}, -1
            await self.requests.wait_ms(*STEPS_MS)

    # -- joining ----------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Join and learn what this member has; return whether it may go on."""
        answer = await self.coordinate(
            ApiKey.JOIN_GROUP,
            5,
            patience_ms=JOIN_PATIENCE_MS,
            group_id=self.history.name,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=[SimpleNamespace(name="range", metadata=self.name.encode())],
        )
        if answer is None:
            return False
        error = answer["error_code"]
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer["member_id"]
            return False
        if error != ErrorCode.NONE:
            self._failed(error)
            return False
        self._member_id, self.generation = answer["member_id"], answer["generation_id"]
        assignments = []
        if answer["leader"] == self._member_id:
            ids = sorted(one["member_id"] for one in answer["members"])
            shares = {
                one: bytes(range(at, INPUT_PARTITIONS, len(ids))) for at, one in enumerate(ids)
            }
            assignments = [
                SimpleNamespace(member_id=one, assignment=share) for one, share in shares.items()
            ]
        return await self._sync(assignments) and await self._fetch()

    async def _sync(self, assignments: list[Any]) -> bool:
        answer = await self.coordinate(
            ApiKey.SYNC_GROUP,
            3,
            patience_ms=JOIN_PATIENCE_MS,
            group_id=self.history.name,
            generation_id=self.generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            assignments=assignments,
        )
        if answer is None or answer["error_code"] != ErrorCode.NONE:
            self._failed(None if answer is None else answer["error_code"])
            return False
        assignment = answer["assignment"]
        self.owned = dict.fromkeys(assignment, 0)
        if self._is_confirmed(assignment):
            owner = self._instance_id or self._member_id
            for number in self.owned:
                self.history.owns(self.generation, number, owner)
        return True

    def _is_confirmed(self, assignment: bytes) -> bool:
        """Whether nobody else may be told of these partitions in this generation.

        Of a group that could not be saved, as disks were full, the next coordinator may make
        another generation of the same number (decision 0049).
        """
        cluster, group = self.requests.cluster, self.history.name
        saved = cluster.coordination.assignments.get((group, self.generation), {})
        return not cluster.has_filled or saved.get(self._member_id) == assignment

    async def _fetch(self) -> bool:
        """Find out where to go on; return False unless all of it is known."""
        if not self.owned:
            return True
        while True:
            floors = dict(self.history.acknowledged)
            partitions = sorted(self.owned)
            answer = await self.coordinate(
                ApiKey.OFFSET_FETCH,
                7,
                group_id=self.history.name,
                topics=[SimpleNamespace(name=INPUT, partition_indexes=partitions)],
                require_stable=True,
            )
            if answer is None or answer["error_code"] != ErrorCode.NONE:
                self._failed(None if answer is None else answer["error_code"])
                return False
            found = answer["topics"][0]["partitions"]
            if not any(one["error_code"] for one in found):
                break
            if not await self._heartbeat():
                return False
            await self.requests.wait_ms(50, 200)
        for one in found:
            number, offset = one["partition_index"], max(0, one["committed_offset"])
            self.history.fetched(number, floors.get(number, 0), offset)
            self.owned[number] = self._bases[number] = offset
        return True

    # -- work -------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Go on in partitions and commit, until this is no member any more."""
        while not self.has_ended:
            await self.requests.wait_ms(*STEPS_MS)
            chance = 1.0 if self.requests.is_calm else self.random.random()
            if chance < self.leaves:
                await self._leave()
                return
            if chance < self.leaves + DIES:
                self._member_id = ""
                return
            if chance < self.leaves + DIES + STALLS:
                await self.requests.wait_ms(SESSION_MS // 2, 2 * SESSION_MS)
            elif not await self._heartbeat():
                return
            if self.owned and not await self._commit():
                return

    async def _heartbeat(self) -> bool:
        answer = await self.coordinate(
            ApiKey.HEARTBEAT,
            3,
            group_id=self.history.name,
            generation_id=self.generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
        )
        error = None if answer is None else answer["error_code"]
        if error in (None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.look_elsewhere(error)  # the next coordinator knows this member, too
            return True
        if error != ErrorCode.NONE:
            self._failed(error)
        return bool(error == ErrorCode.NONE)

    async def _commit(self) -> bool:
        """Go on in a partition, and commit that; return whether this is a member still."""
        number = self.random.choice(sorted(self.owned))
        offset = self.owned[number] + self.random.randint(1, 5)
        committed = SimpleNamespace(
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=progress_text(self._bases[number], self._session),
        )
        if self.producer is not None:
            return await self._commit_in_transaction(number, committed)
        answer = await self.coordinate(
            ApiKey.OFFSET_COMMIT,
            7,
            group_id=self.history.name,
            generation_id_or_member_epoch=self.generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            topics=[SimpleNamespace(name=INPUT, partitions=[committed])],
        )
        error = None
        if answer is not None:
            ((_, ((_, error),)),) = answer
        self.owned[number] = offset
        if error == ErrorCode.NONE:
            self.history.committed(number, offset, committed.committed_metadata)
            return True
        self.look_elsewhere(error)
        is_unknown = error in (
            None,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
        if not is_unknown:
            self._failed(error)
        return is_unknown

    async def _commit_in_transaction(self, number: int, committed: Any) -> bool:
        """Commit with records; whatever fails, start where the group is then."""
        producer = self.producer
        if producer is None or (producer.who is None and not await producer.begin()):
            return True
        offsets = Offsets(
            self.history.name,
            INPUT,
            [committed],
            self.generation,
            self._member_id,
            self._instance_id,
        )
        if await producer.transact(offsets):
            self.owned[number] = committed.committed_offset
            metadata = committed.committed_metadata
            self.history.committed(number, committed.committed_offset, metadata)
            return True
        return False

    async def _leave(self) -> None:
        await self.coordinate(
            ApiKey.LEAVE_GROUP,
            3,
            group_id=self.history.name,
            members=[
                SimpleNamespace(member_id=self._member_id, group_instance_id=self._instance_id)
            ],
        )
        self._member_id = ""

    def _failed(self, error: int | None) -> None:
        self.look_elsewhere(error)
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = ""
