"""Damaged entries: what exactly is wrong with one, and whether another replica's bytes are it.

A damaged entry is known by its index record, by its neighbours and by the chain of CRCs that leads
through it; bytes that fit all of them are that entry (RELIABILITY 2.3), whoever sent them.
"""

from dataclasses import dataclass

import numpy as np

from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_DTYPE,
    Block,
    chain_crcs,
    header_at,
    headers,
)
from quorumlog.storage.entries.checksums import wrong_crcs
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.entries.index_records import Records, differs, record_at, records_of
from quorumlog.storage.entries.scanner import Scanner
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.recovery.recovery import derived_records


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with an entry. `record`: the index record it must have; None: not known.

    `is_whole`: the entry itself is good, only its index record is not.
    """

    record: Records | None
    is_whole: bool


def diagnose(
    data: FileSequence,
    index: FileSequence,
    reader: DiskReader,
    entry: int,
    last: int,
    *,
    is_readable: bool = True,
) -> Diagnosis:
    """Find out what is wrong with an entry of a log that ends with entry `last`."""
    position, term = _where(index, reader, entry)
    if position is None:
        return Diagnosis(None, is_whole=False)
    on_disk = records_of(index, entry, entry)
    following = record_at(index, entry + 1) if entry < last else None
    is_plausible = _is_plausible(on_disk[0], data, entry, position, term, following)
    if is_readable and data.has(position):
        scanner = Scanner(data, position, index=entry - 1, term=term, chain_crc=None)
        run = next(iter(scanner), None)
        if run is not None and run.first_index == entry:
            found = derived_records(run)[:1]
            may_follow, chain_crc = reader.continues(entry, header_at(run.block.data, 0))
            # where no chain proves it, a header is no better than a record that fits its neighbours
            if chain_crc is not None or not is_plausible or not differs(on_disk, found)[0]:
                return Diagnosis(found, is_whole=may_follow)
    if is_plausible or (is_readable and reader.is_where_stated(entry)):
        return Diagnosis(on_disk, is_whole=False)
    return Diagnosis(_derived(data, entry, position, term, following), is_whole=False)


def _where(index: FileSequence, reader: DiskReader, entry: int) -> tuple[int | None, int]:
    """Return where an entry must lie, by the one before it, and the lowest term it may have."""
    if entry - 1 <= reader.log_start.before_begin_index:
        return reader.log_start.position, reader.log_start.before_begin_term
    before = record_at(index, entry - 1)
    if before is None or int(before["index"]) != entry - 1:
        return None, -1
    return int(before["pos"]) + int(before["size"]), int(before["term"])


def _is_plausible(
    record: np.void,
    data: FileSequence,
    entry: int,
    position: int,
    term: int,
    following: np.void | None,
) -> bool:
    """Whether an index record agrees with what lies around its entry."""
    pos, size = int(record["pos"]), int(record["size"])
    begins = pos in data.positions_after(position)
    if int(record["index"]) != entry or not begins or size < HEADER_SIZE:
        return False
    if int(record["term"]) < term or not data.has(pos):
        return False
    if following is None or int(following["index"]) != entry + 1:
        return pos + size <= data.start_of(pos) + data.file_size
    follows = int(following["pos"]) in (pos + size, data.start_of(pos) + data.file_size)
    return follows and int(record["term"]) <= int(following["term"])


def _derived(
    data: FileSequence, entry: int, position: int, term: int, following: np.void | None
) -> Records | None:
    """Return the record of an entry if its neighbours determine it, else None."""
    if following is None or int(following["index"]) != entry + 1:
        return None
    size = int(following["pos"]) - position
    same_file = data.start_of(position) == data.start_of(int(following["pos"]))
    if not same_file or size < HEADER_SIZE or int(following["term"]) != term:
        return None
    record = np.zeros(1, dtype=INDEX_RECORD_DTYPE)
    record[0] = (1, position, size, entry, term)
    return record


def mismatch(
    block: Block, records: Records, chain_before: int | None, end_chain_crc: int | None
) -> str:
    """Say why entries are not those that `records` name; empty if they are.

    `end_chain_crc` is the chain CRC that the last of them must have if they end the log (None: not
    known).
    """
    table = headers(block)
    for name in ("index", "term", "size"):
        places = table[name] != records[name]
        if places.any():
            row = int(np.argmax(places))
            stated, expected = int(table[name][row]), int(records[name][row])
            return f"{name} {stated} instead of {expected} in entry {int(records['index'][row])}"
    if (table["body_size"] != table["size"] - HEADER_SIZE).any():
        return "a body size does not fit"
    for ordinal, reason in wrong_crcs(block, chain_before):
        return f"{reason} in entry {int(records['index'][ordinal])}"
    if end_chain_crc is not None and int(table["chain_crc"][-1]) != end_chain_crc:
        return "the chain CRC at the end of the log does not fit"
    return ""


def continues(block: Block, following: Block) -> bool:
    """Whether the entry after a block continues its chain CRC, or has none."""
    stated = int(headers(following)[0]["chain_crc"])
    last = int(headers(block)[-1]["chain_crc"])
    return not stated or chain_crcs(following, last) == [stated]


def differs_from_index(index: FileSequence, record: Records) -> bool:
    """Whether an index record differs from the one it must be."""
    entry = int(record["index"][0])
    return bool(differs(records_of(index, entry, entry), record)[0])
