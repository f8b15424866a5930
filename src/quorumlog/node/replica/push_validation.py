"""Checks on the block that came with a push, before anything is done with it."""

from typing import TypeAlias

from quorumlog.model.block import Block, config_entries_of, is_contiguous, parse_block
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import Limits
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import PushRequest

ReceivedBlock: TypeAlias = tuple[Block, tuple[tuple[int, Membership], ...]]


def read_push_block(
    message: PushRequest, attachment: memoryview, limits: Limits
) -> ReceivedBlock | None:
    """Return the entries of an APPEND and the memberships they name, with their indexes.

    None when they are not what the message says.

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
