"""Reading a journal after a crash: what it holds of each group, in order."""

import logging
from dataclasses import dataclass, field

from quorumlog.model.errors import CorruptionError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.journal.records import (
    BLOCK_BYTES,
    Item,
    SegmentHeader,
    parsed_header,
    records_in,
)
from quorumlog.storage.journal.segments import SegmentList, load_list
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN, ONLY_MEMBER

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class JournalContent:
    """What one journal holds: of each incarnation (sequence, item, bytes), as written."""

    number: int = 0
    parts: dict[int, list[tuple[int, Item, memoryview]]] = field(default_factory=dict)


def read_journal(files: FileSystem, directory: str, number: int) -> JournalContent:
    """Return what the journal with this number holds; nothing if it is not there.

    What is torn at the end was never reported. A record that is damaged further up is left out: a
    later one proves that entries which are missing then were durable, so opening their group
    quarantines them. Raises `StorageError` when the disk cannot read it, or a segment is lost.
    """
    made = load_list(files, directory)
    if made is None or made.journal != number:
        return JournalContent()
    used = []
    for path in made.paths(directory):
        if records := list(records_in(*_segment(files, path, made))):
            used.append((path, records))
    content = JournalContent(number)
    expected = 0
    for path, records in sorted(used, key=lambda one: one[1][0][1].sequence):
        for offset, record in records:
            if expected and record.sequence != expected:
                logger.error(
                    "%s: records %s to %s before byte %s are damaged; groups whose own files lack "
                    "the entries in them quarantine those",
                    path,
                    expected,
                    record.sequence - 1,
                    offset,
                )
            expected = record.sequence + 1
            for item, data in record.parts:
                content.parts.setdefault(item.incarnation, []).append((record.sequence, item, data))
    return content


def _segment(files: FileSystem, path: str, made: SegmentList) -> tuple[SegmentHeader, memoryview]:
    """Return header and bytes of a segment. Raises `CorruptionError` if it is not whole."""
    raw = b""
    if files.exists(path) and not files.obstacle(path):
        file = files.open(path, writable=False)
        try:
            raw = file.read_at(made.segment_bytes, 0)  # a map would not survive bad sectors
        finally:
            file.close()
    header = parsed_header(raw[:BLOCK_BYTES])
    if header is None or header.journal != made.journal or len(raw) < made.segment_bytes:
        raise CorruptionError(
            f"{path} is lost, or another file lies there: of groups that used the journal nobody "
            f"knows which entries they are missing. Restore it, or empty their directories. "
            f"{EMPTYING_IS_SAFE_WHEN}. {ONLY_MEMBER}",
            path,
            0,
        )
    return header, memoryview(raw)
