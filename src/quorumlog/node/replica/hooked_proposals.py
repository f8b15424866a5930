"""The append hook: what the program around a node does to entries once their place is known.

A broker that keeps messages in a log writes the physical position of each into its body (spec 20
section 4). The hook runs when the core is about to take the proposal: no event comes in between, so
the place that the hook is told is the one that the entry gets (decision 0038).
"""

from inspect import isawaitable, iscoroutine

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.log_events import describe_error
from quorumlog.model.block import (
    HEADER,
    HEADER_SIZE,
    Block,
    Buffer,
    Int64s,
    put_body_crc,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.hooks import AppendHook, AppendPlace
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.prepared_proposals import PreparedProposals
from quorumlog.node.replica.proposals import (
    Batch,
    Proposal,
    Refuse,
    Register,
    joined,
    parts_of,
)


class HookedProposals(PreparedProposals):
    """Runs an append hook on the entries of users in each batch that is proposed.

    An append for which the hook raises is refused; the others of its batch take the place of its
    entries.
    """

    def __init__(
        self, context: ReplicaContext, hook: AppendHook, register: Register, refuse: Refuse
    ) -> None:
        super().__init__(context, register, refuse)
        self._hook = hook

    def _prepared(self, batch: Batch) -> Batch | None:
        log, first_index = self._context.log, self._context.log.end_index + 1
        sizes = batch.block.sizes
        positions = log.positions_of(sizes)
        waiting, kept, placed = parts_of(batch), list[Proposal](), 0
        while waiting:
            member = waiting.popleft()
            end = placed + member.block.count
            refused = self._fill(member.block, first_index + placed, positions[placed:end])
            if not refused:
                kept.append(member)
                placed = end
                continue
            self._refuse(member.answer, ResponseCode.HOOK_REFUSED, refused)
            sizes = np.delete(sizes, slice(placed, end))
            if waiting:
                positions = log.positions_of(sizes)
        if len(kept) == len(batch.members):
            return batch
        return joined(kept) if kept else None

    def _fill(self, block: Block, first_index: int, positions: Int64s) -> str:
        """Run the hook on the entries of one append; return why it refuses them, or ""."""
        data, term = block.data, self._context.core.term
        places = zip(block.offsets.tolist(), positions.tolist(), strict=True)
        for ordinal, (offset, position) in enumerate(places):
            header = HEADER.unpack_from(data, offset)
            channel, start, stop = header[5], offset + HEADER_SIZE, offset + header[1]
            if channel == SYSTEM_CHANNEL:
                continue  # a producer's session
            place = AppendPlace(first_index + ordinal, term, position, channel)
            body, refused = self._run(place, data[start:stop])
            if refused:
                return (
                    f"the append hook of group {self._context.config.group} refused entry "
                    f"{ordinal} of the append: {refused}"
                )
            data[start:stop] = body
            put_body_crc(data, offset, crc32(body))
        return ""

    def _run(self, place: AppendPlace, body: Buffer) -> tuple[bytes, str]:
        """Run the hook on one body; return what it made of it, or why it refuses it.

        It is given a copy, and a copy is made of what it leaves: whatever it keeps, it cannot
        change the log later. Nothing that it raises may end the node: appends wait in this step.
        """
        length, given = len(body), bytearray(body)
        try:
            returned: object = self._hook(place, memoryview(given))
        except BaseException as error:
            return b"", describe_error(error)
        if isawaitable(returned):
            if iscoroutine(returned):
                returned.close()
            return b"", "it returned an awaitable, and nothing waits for it"
        made = bytes(given)
        if len(made) != length:
            return b"", f"it left {len(made)} bytes of a body of {length}"
        return made, ""
