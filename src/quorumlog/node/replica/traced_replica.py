"""A replica some of whose appends are traced. Nodes that trace nothing have none of this."""

from typing import Any

from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block
from quorumlog.model.codes import PushType, ResponseCode, WriteLevel
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import InvariantViolation
from quorumlog.model.limits import Limits
from quorumlog.model.messages.peer import PushResponse
from quorumlog.node.environment import Environment
from quorumlog.node.replica.append_traces import AppendTraces
from quorumlog.node.replica.proposals import Answer, Checked
from quorumlog.node.replica.replica import Replica
from quorumlog.raft import effects as fx
from quorumlog.raft.core import RaftCore
from quorumlog.storage.log.store import OpenedGroup


class TracedReplica(Replica):
    """Notes what effects, messages and writes say of entries, for `AppendTraces`."""

    def __init__(
        self,
        config: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        environment: Environment,
        limits: Limits,
        machine: StateMachine | None = None,
    ) -> None:
        super().__init__(config, core, opened, environment, limits, machine)
        if environment.tracer is None:
            raise InvariantViolation("a replica is traced only if its node has a tracer")
        self._traces = AppendTraces(self.context, environment.tracer)
        self._wrap_handlers()

    def propose(
        self,
        block: Block,
        answer: Answer,
        entry: Checked | None = None,
        level: WriteLevel = WriteLevel.REPLICATION,
    ) -> None:
        """See `Replica.propose`."""
        super().propose(block, self._traces.begin(block, answer), entry, level)

    def writes_completed(self) -> None:
        """See `Replica.writes_completed`."""
        at_us = self.context.environment.now_us()
        super().writes_completed()
        self._traces.note("durable", self.core.durable_index, at_us=at_us)

    def _wrap_handlers(self) -> None:
        note, effects, received = self._traces.note, self._effects, self._received
        append, push = effects[fx.AppendProposal], effects[fx.PushEntries]
        commit, take = effects[fx.Committed], received[PushResponse]

        def appended(effect: fx.AppendProposal, item: Any) -> None:
            append(effect, item)
            note("staged", effect.last_index)

        def pushed(effect: fx.PushEntries, item: Any) -> None:
            push(effect, item)
            note("pushed", effect.message.last_index, effect.message.remote_id)

        def committed(effect: fx.Committed, item: Any) -> None:
            note("committed", effect.index)
            commit(effect, item)

        def acknowledged(message: PushResponse, attachment: memoryview) -> None:
            if message.type is PushType.APPEND and message.code is ResponseCode.SUCCESS:
                note("acknowledged", message.match_index, message.local_id)
            take(message, attachment)

        effects |= {
            fx.AppendProposal: appended,
            fx.PushEntries: pushed,
            fx.Committed: committed,
        }
        received[PushResponse] = acknowledged
