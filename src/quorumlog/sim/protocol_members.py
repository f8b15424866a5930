"""Simulated members of a consumer group by the consumer protocol (KIP-848).

The coordinator assigns, and members give up and take partitions one by one. As members by the
classic protocol they go on in their partitions and commit how far they have come.
"""

from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.sim.broker_requests import AGAIN, BrokerClient, BrokerRequests
from quorumlog.sim.group_members import DIES, INPUT, LEAVES, STALLS, STEPS_MS, GroupHistory
from quorumlog.sim.invariants.coordination import progress_text

SESSION_MS: Final = 2_500
INTERVAL_MS: Final = 300
REBALANCE_MS: Final = 2_000
_JOINING, _LEAVING = 0, -1
_STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNSTABLE_OFFSET_COMMIT})


class ProtocolMember(BrokerClient):
    """A member. `owned`: the partitions that it has, with where it goes on.

    `generation`: its epoch.
    """

    def __init__(self, requests: BrokerRequests, name: str, history: GroupHistory) -> None:
        super().__init__(requests, name)
        self.history = history
        self.owned: dict[int, int] = {}
        self.generation = _JOINING
        self.has_ended = False
        self._lives = 0
        self._takes = 0
        self._member_id = ""
        self._sessions: dict[int, tuple[int, str]] = {}
        """By partition: where this member began in it, and what stands for its turn there."""
        self._topic_id = bytes(16)

    async def run(self) -> None:
        """Be a member, and come back as another one whenever that ends, until the run ends."""
        while not self.has_ended:
            self._lives += 1
            self._member_id = f"{self.name}-{self._lives}"
            self._fenced()
            await self._work()

    def _fenced(self) -> None:
        """It is no member any more, and has nothing."""
        self.owned, self._sessions, self.generation = {}, {}, _JOINING

    async def _work(self) -> None:
        while not self.has_ended:
            await self.requests.wait_ms(*STEPS_MS)
            chance = 1.0 if self.requests.is_calm else self.random.random()
            if chance < LEAVES + DIES:
                if chance < LEAVES:
                    await self._heartbeat(_LEAVING)
                return
            if chance < LEAVES + DIES + STALLS:
                await self.requests.wait_ms(SESSION_MS // 2, 2 * SESSION_MS)
            else:
                await self._look()
            if self.owned:
                await self._commit()

    # -- what it has ------------------------------------------------------------------------------

    async def _heartbeat(self, epoch: int) -> Any:
        owned = [
            SimpleNamespace(topic_id=UUID(bytes=self._topic_id), partitions=sorted(self.owned))
        ]
        return await self.coordinate(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id=self.history.name,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[INPUT],
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=owned if self.owned else [],
        )

    async def _look(self) -> None:
        """Say what this member has, and take what it is assigned."""
        answer = await self._heartbeat(self.generation)
        error = None if answer is None else answer.get("error_code", ErrorCode.NONE)
        if error != ErrorCode.NONE:
            self.look_elsewhere(error)
            if error not in AGAIN:
                self._fenced()
            return
        self.generation = answer["member_epoch"]
        if answer["assignment"] is None:
            return
        shares = answer["assignment"]["topic_partitions"]
        assigned = {number for share in shares for number in share["partitions"]}
        for share in shares:
            self._topic_id = share["topic_id"]
        for number in self.owned.keys() - assigned:
            del self.owned[number], self._sessions[number]
        new = sorted(assigned - self.owned.keys())
        if new:
            await self._fetch(new)

    async def _fetch(self, numbers: list[int]) -> None:
        """Find out where to go on in partitions; they are this member's once that is known."""
        floors = dict(self.history.acknowledged)
        asked = SimpleNamespace(
            group_id=self.history.name,
            member_id=self._member_id,
            member_epoch=self.generation,
            topics=[SimpleNamespace(name=INPUT, partition_indexes=numbers)],
        )
        answer = await self.coordinate(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=True)
        found = None if answer is None else answer["groups"][0]
        if found is None or found["error_code"] != ErrorCode.NONE:
            self.look_elsewhere(None if found is None else found["error_code"])
            self._fenced()  # so that it is told again what it has
            return
        for one in found["topics"][0]["partitions"]:
            number, offset = one["partition_index"], max(0, one["committed_offset"])
            self.history.fetched(number, floors.get(number, 0), offset)
            self._takes += 1
            self.owned[number] = offset
            self._sessions[number] = offset, f"{self._member_id}#{self._takes}"

    # -- work -------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        """Go on in a partition, and commit that."""
        number = self.random.choice(sorted(self.owned))
        offset = self.owned[number] + self.random.randint(1, 5)
        committed = SimpleNamespace(
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=progress_text(*self._sessions[number]),
        )
        self.owned[number] = offset
        answer = await self.coordinate(
            ApiKey.OFFSET_COMMIT,
            9,
            group_id=self.history.name,
            generation_id_or_member_epoch=self.generation,
            member_id=self._member_id,
            group_instance_id=None,
            topics=[SimpleNamespace(name=INPUT, partitions=[committed])],
        )
        error = None
        if answer is not None:
            ((_, ((_, error),)),) = answer
        if error == ErrorCode.NONE:
            self.history.committed(number, offset, committed.committed_metadata)
            return
        self.look_elsewhere(error)
        if error not in AGAIN and error not in _STALE:
            self._fenced()
