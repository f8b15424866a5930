"""Checks on the block that came with a push, before anything is done with it."""

from quorumlog.model.block import Block, is_contiguous, parse_block
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import Limits
from quorumlog.model.message import PushRequest


def read_push_block(message: PushRequest, attachment: memoryview, limits: Limits) -> Block | None:
    """Return the entries of an APPEND, or None when they are not what the message says.

    The frame's CRC has already shown that the bytes are those the leader sent.
    """
    count = message.last_index - message.first_index + 1
    if message.first_index != message.prev_index + 1 or count <= 0:
        return None
    try:
        block = parse_block(attachment, count=count, entry_bytes_max=limits.entry_bytes_max)
    except UnexpectedArgumentError:
        return None
    return block if is_contiguous(block, message.first_index, message.term_runs) else None
