"""A producer's block of which a crash left only the beginning.

Blocks with a session entry are pushed, written and acknowledged as a whole
(`node/whole_blocks.py`), so nobody was ever promised a part of one. It is removed when the log is
opened: else the entries that are there would be stored again with the rest.
"""

from quorumlog.model.block import block_from_index_records
from quorumlog.model.errors import CorruptionError
from quorumlog.model.session import sessions_in
from quorumlog.storage.base import Log

SCAN_BYTES = 1024 * 1024


def torn_block(log: Log, first_index: int) -> int | None:
    """Return where a block begins that does not end in the log; None: there is none such.

    Looked for from first_index on: what is before it was durable as a whole.
    """
    begin, end = -1, -1
    index = max(first_index, log.before_begin_index + 1)
    while index <= log.end_index:
        try:
            span = log.read(index, log.end_index, SCAN_BYTES)
        except CorruptionError as error:
            index = max(index, -1 if error.index is None else error.index) + 1
            continue
        for found, entry in sessions_in(block_from_index_records(span.data, span.records), index):
            begin, end = found, found + entry.count
        index = span.last_index + 1
    return begin if end > log.end_index else None
