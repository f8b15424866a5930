"""Pushes of entries: those that this replica sends as leader, and those that it receives.

A push ends where a producer's block ends, so that no replica acknowledges a part of a block.
"""

import logging
import sys
from typing import TypeAlias

import msgspec
import numpy as np

from quorumlog.log_events import log_event
from quorumlog.model.block import (
    Block,
    Buffer,
    config_entries_of,
    is_contiguous,
    is_noop,
    parse_block,
    position_of,
)
from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.errors import (
    CorruptionError,
    RequestError,
    StorageError,
    UnexpectedArgumentError,
    check,
)
from quorumlog.model.limits import Limits
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import PushRequest, PushResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.fetches import gather
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.peer_messages import PeerMessages
from quorumlog.raft.effects import MeasureLag, PushEntries, ReadEntries
from quorumlog.raft.events import EntriesRead, EntriesUnreadable, LagMeasured, Received
from quorumlog.sessions.entries import system_entries_in
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.log.interface import Log

logger = logging.getLogger(__name__)

ReceivedBlock: TypeAlias = tuple[Block, tuple[tuple[int, Membership], ...]]


class Pushes:
    """The part of a replica that reads entries for peers, and checks those that peers send.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        messages: PeerMessages,
        space: DiskSpace,
        machine: MachineState,
    ) -> None:
        self._context = context
        self._messages = messages
        self._space = space
        self._machine = machine
        self._appended_range = (-1, -1, -1)
        """Term, first and last index of what was appended last."""
        self._appended: list[Buffer] = []
        self._appended_chain = 0
        """The chain CRC before it."""

    def receive(self, message: PushRequest, attachment: memoryview) -> None:
        """Pass a leader's push to the core, with what has to be read from its bytes."""
        context, received = self._context, self._context.counters.received
        received.pushes += 1
        matches = self._messages.push_matches(message)
        if message.type is not PushType.APPEND:
            context.step(Received(message, matches))
            return
        received.size_bytes += len(attachment)
        found = read_push_block(message, attachment, context.limits)
        if found is None:
            context.counters.malformed_pushes += 1
            log_event(
                logger,
                logging.ERROR,
                "malformed push dropped",
                group=message.group,
                peer=message.local_id,
                first_index=message.first_index,
            )
            return
        # entries that elections need may use the reserve, so elections go on while the disk is full
        block, memberships = found
        received.entries += block.count
        full = (
            not self._space.takes(len(attachment), block.count)
            and not (memberships or is_noop(block))
            and not self._space.takes_releasing(block, self._machine.releases)
        )
        context.step(Received(message, matches, full, memberships), block=block)

    def measure_lag(self, effect: MeasureLag) -> None:
        """Tell the core how many bytes lie between what a peer has and the end of the log."""
        log, first = self._context.log, effect.match_index + 1
        try:
            begin = position_of(log.read(first, first, 1).records)
        except (RequestError, StorageError):
            return  # the core asks again
        end = int(log.positions_of(np.zeros(1, dtype=np.int64))[0])
        self._context.step(LagMeasured(effect.peer_id, end - begin))

    def read_entries(self, effect: ReadEntries) -> None:
        """Find entries for a push: from memory at once, else on a thread of the executor."""
        context, log = self._context, self._context.log

        def read() -> list[EntryRun]:
            return gather_whole(log, effect.first_index, effect.last_index, effect.bytes_max)

        def done(runs: list[EntryRun]) -> None:
            size = sum(len(run.data) for run in runs)
            last, hot = runs[-1].last_index, runs[0].from_memory
            event = EntriesRead(effect.peer_id, effect.request_id, last, size, hot)
            context.step(event, runs=runs)

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                context.damage_found(error)
            elif not isinstance(error, StorageError | RequestError):
                text = "reading entries for a push failed"
                log_event(logger, logging.ERROR, text, exc_info=error, group=context.config.group)
            context.step(EntriesUnreadable(effect.peer_id, effect.request_id, str(error)))

        if log.is_in_memory(effect.first_index):
            done(read())
        else:
            context.environment.executor.run(read, done, failed)

    def _with_appended(self, message: PushRequest) -> PushRequest | None:
        """Find the entries of a push that were just appended, and the chain CRC before them.

        Entries that are not durable yet are always in memory. All peers get the same ones, so they
        are looked for once.
        """
        found = (message.term, message.first_index, message.last_index)
        if found == self._appended_range:
            return msgspec.structs.replace(message, prev_chain_crc=self._appended_chain)
        with_chain = self._messages.with_chain(message)
        if with_chain is not None:
            _, first, last = found
            runs = gather(self._context.log, first, last, sys.maxsize)
            check(runs[-1].last_index == last, "what was just appended is in memory")
            self._appended = [run.data for run in runs]
            self._appended_chain = with_chain.prev_chain_crc
            self._appended_range = found
        return with_chain

    def send(self, effect: PushEntries, runs: list[EntryRun] | None) -> None:
        """Send entries that were read for a push; None: they were just appended."""
        if runs is None:
            message = self._with_appended(effect.message)
            attachments = self._appended
        else:
            message = self._messages.with_chain(effect.message)
            check(runs[0].first_index == effect.message.first_index, "the push matches its entries")
            attachments = [run.data for run in runs]
        if message is None:
            return
        context = self._context
        environment, counters = context.environment, context.counters
        if environment.network.send(message.remote_id, message, attachments, bulk=True):
            size = sum(map(len, attachments))
            counters.pushes_sent += 1
            counters.push_bytes_sent += size
            count = message.last_index - message.first_index + 1
            pushes = context.histograms.pushes.get(message.remote_id)
            if pushes is None:
                most = context.limits.push_window_requests
                pushes = context.histograms.new_peer(message.remote_id, most)
            pushes.sent.append((message.request_id, environment.now_us(), count, size))

    def answered(self, message: PushResponse, _: memoryview) -> None:
        """Pass a peer's answer to the core; observe how long an acknowledgement took."""
        context = self._context
        if message.code is not ResponseCode.SUCCESS:
            _log_refusal(message)
        elif message.type is PushType.APPEND:
            pushes = context.histograms.pushes.get(message.local_id)
            if pushes is not None:
                pushes.acknowledged(message.request_id, context.environment.now_us())
        context.step(Received(message))


def _log_refusal(message: PushResponse) -> None:
    """Log why a peer did not take a push, as when the logs differ; off at most log levels."""
    log_event(
        logger,
        logging.DEBUG,
        "push refused",
        group=message.group,
        peer=message.local_id,
        type=message.type.name,
        code=message.code.name,
        end_index=message.end_index,
        conflicting_term=message.x_term,
        conflicts_from=message.x_index,
    )


def read_push_block(
    message: PushRequest, attachment: memoryview, limits: Limits
) -> ReceivedBlock | None:
    """Return the entries of an APPEND and the memberships they name, with their indexes.

    Returns None if they are not what the message says.

    The frame's CRC has already shown that the bytes are those the leader sent.
    """
    count = message.last_index - message.first_index + 1
    if message.first_index != message.prev_index + 1 or count <= 0:
        return None
    try:
        block = parse_block(attachment, count=count, entry_bytes_max=limits.entry_bytes_max)
        if not is_contiguous(block, message.first_index, message.term_runs):
            return None
        named = [(index, Membership.decode(body)) for index, body in config_entries_of(block)]
    except UnexpectedArgumentError:
        return None
    return block, tuple(named)


def gather_whole(log: Log, first_index: int, last_index: int, bytes_max: int) -> list[EntryRun]:
    """Return consecutive runs from first_index on, at most bytes_max (but at least one block).

    The end of a block is searched for only if bytes_max ends the push: `last_index` is the end of a
    block already, as the end of every log is.
    """
    runs = gather(log, first_index, last_index, bytes_max)
    end = runs[-1].last_index
    block = None if end == last_index else _last_session(runs)
    if block is None or block[1] <= end:
        return runs
    block_first, block_last = block
    if block_first > first_index:
        return gather(log, first_index, block_first - 1, bytes_max)
    while runs[-1].last_index < min(block_last, last_index):
        index = runs[-1].last_index + 1
        runs += gather(log, index, min(block_last, last_index), bytes_max)
    return runs


def _last_session(runs: list[EntryRun]) -> tuple[int, int] | None:
    """Return first and last index of the last block whose session entry lies in these runs."""
    for run in reversed(runs):
        found = system_entries_in(run.block(), run.first_index)
        if found:
            index, entry = found[-1]
            return index, index + entry.count
    return None
