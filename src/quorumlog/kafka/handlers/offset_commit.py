"""OffsetCommit: consumers say how far they have come, and are answered once that is committed.

It is carried out without a task of its own: of all requests of consumer groups it is the one that
busy clients send most.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from quorumlog.auth.acls import Operation
from quorumlog.kafka.context import ELEMENTS_PER_TURN, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.handlers.group_offsets import (
    OFFSET_ERRORS,
    Place,
    changed,
    judge_offset,
    note_outcomes,
    parts_of,
)
from quorumlog.kafka.handlers.groups import judged_group_error
from quorumlog.kafka.offset_commit import offset_commit_answer, read_offset_commit
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.machine.cluster.commands import (
    NO_GENERATION,
    CommitOffsets,
    GroupsChanged,
    OffsetToCommit,
)
from quorumlog.model.codes import ResponseCode

_FIRST_WITH_EPOCHS: Final = 9
"""Clients know the errors of the consumer protocol."""
Outcomes: TypeAlias = Sequence[tuple[str, Sequence[tuple[int, ErrorCode]]]]
"""Topics as they were asked for: for each partition its number and what became of its offset."""


def start_offset_commit(request: PendingRequest) -> None:
    """Have the offsets of a request committed; it is answered once they are.

    Raises `RemoteProtocolError` if it is none.
    """
    request.read(read_offset_commit, partial(_start, request))


def _start(request: PendingRequest, asked: Any) -> None:
    context, header = request.context, request.header

    def done(outcomes: Outcomes) -> None:
        if request.is_released:
            return  # the connection has ended
        write = partial(offset_commit_answer, header, outcomes)
        if not commit.is_long:
            request.answered([write()])
            return

        def written(answer: bytes) -> None:
            request.answered([answer])

        context.services.executor.run(write, written, request.failed, context.owner)

    commit = OffsetCommit(context, asked, done, request.failed)
    request.cancel = commit.start()


class OffsetCommit:
    """One request on its way into `__cluster`.

    `asked` has the fields of `offset_commit.OffsetCommitRequest`. Either `done` is called once with
    what became of all offsets, or `failed` with an exception that handling them has raised.
    """

    __slots__ = (
        "_asked",
        "_context",
        "_done",
        "_error",
        "_failed",
        "_has_epochs",
        "_left",
        "_log",
        "_outcomes",
        "_term",
        "_wanted",
        "is_long",
    )

    def __init__(
        self,
        context: RequestContext,
        asked: Any,
        done: Callable[[Outcomes], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._context = context
        self._asked = asked
        self._done = done
        self._failed = failed
        elements = len(asked.topics) + sum([len(topic.partitions) for topic in asked.topics])
        self.is_long = elements > ELEMENTS_PER_TURN
        """Whether it has more elements than are handled in one turn."""
        self._outcomes: dict[Place, ErrorCode] = {}
        self._wanted: list[tuple[Place, OffsetToCommit]] = []
        self._left = 0
        """Commands that are not answered."""
        self._has_epochs = False
        self._error = judged_group_error(context, asked.group_id, Operation.READ)
        # in which it is judged; there may be another one later
        self._term = context.services.coordinator.term
        record = context.broker.consumer_groups.get(asked.group_id)
        self._log = None if record is None else record.log
        if self._error is ErrorCode.NONE:
            self._error = self._judge_member()

    def start(self) -> Callable[[], object] | None:
        """Begin; `done` may be called at once. Return what ends it, if it takes several turns."""
        if self.is_long:
            return asyncio.get_running_loop().create_task(self._start_in_turns()).cancel
        for topic, one in self._offsets():
            self._judge(topic, one)
        self._commit()
        return None

    async def _start_in_turns(self) -> None:
        try:
            async for topic, one in self._context.in_turns(self._offsets()):
                self._judge(topic, one)
            self._commit()
        except Exception as error:
            self._failed(error)

    def _offsets(self) -> Iterator[tuple[str, Any]]:
        """Yield each offset with the name of its topic."""
        for topic in self._asked.topics:
            name = topic.name
            for one in topic.partitions:
                yield name, one

    def _judge_member(self) -> ErrorCode:
        """Return why this client may not commit; NONE: it may."""
        asked, coordinator = self._asked, self._context.services.coordinator
        epoch = asked.generation_id_or_member_epoch
        if epoch < 0 and not coordinator.has_members(asked.group_id):
            return ErrorCode.NONE
        group = coordinator.find(asked.group_id)
        if group is None:
            return ErrorCode.NONE if epoch < 0 else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ProtocolGroup):
            self._has_epochs = epoch >= 0
            is_old = self._context.header.version < _FIRST_WITH_EPOCHS
            if is_old and epoch >= 0 and not group.is_unused:
                # such a client would take STALE_MEMBER_EPOCH for a failure
                return ErrorCode.UNSUPPORTED_VERSION
        instance_id = asked.group_instance_id
        return group.may_commit(asked.member_id, instance_id, epoch, coordinator.now_ms())

    def _judge(self, topic: str, asked: Any) -> None:
        """Note the offset of a partition that is to be committed, or why it cannot be."""
        place = topic, asked.partition_index
        judged: OffsetToCommit | ErrorCode = self._error
        if judged is ErrorCode.NONE:
            judged = judge_offset(self._context, self._log, topic, asked)
        if isinstance(judged, ErrorCode):
            self._outcomes[place] = judged
        else:
            self._outcomes[place] = ErrorCode.NONE
            self._wanted.append((place, judged))

    def _commit(self) -> None:
        """Commit the offsets that passed the checks."""
        asked, commits = self._asked, self._context.services.commits
        generation = max(NO_GENERATION, asked.generation_id_or_member_epoch)
        member_id = asked.member_id if self._has_epochs else ""
        parts = list(parts_of(self._wanted))
        self._left = len(parts)
        if not parts:
            self._finish()
        for part in parts:
            offsets = [one for _, one in part]
            command = CommitOffsets(self._term, asked.group_id, generation, offsets, member_id)
            commits.commit(command, partial(self._committed, part))

    def _committed(
        self,
        part: Sequence[tuple[Place, OffsetToCommit]],
        code: ResponseCode,
        text: str,
        result: GroupsChanged | None,
    ) -> None:
        """See `offset_commits.Committed`: one command was applied, or will not be."""
        try:
            found = changed(result)
            if isinstance(found, GroupsChanged):
                for (place, _), outcome in zip(part, found.codes, strict=True):
                    self._outcomes[place] = OFFSET_ERRORS[outcome]
            else:
                if self._has_epochs and found is ErrorCode.ILLEGAL_GENERATION:
                    found = ErrorCode.STALE_MEMBER_EPOCH
                self._outcomes.update((place, found) for place, _ in part)
            self._left -= 1
            if not self._left:
                self._finish()
        except Exception as error:  # those whose offsets were in the same command are answered
            self._failed(error)

    def _finish(self) -> None:
        outcomes = self._outcomes
        note_outcomes(self._context, self._asked.group_id, outcomes)
        self._done(
            [
                (
                    topic.name,
                    [
                        (one.partition_index, outcomes[topic.name, one.partition_index])
                        for one in topic.partitions
                    ],
                )
                for topic in self._asked.topics
            ]
        )
