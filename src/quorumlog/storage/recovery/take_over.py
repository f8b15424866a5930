"""Going on where DLedger left a log that it had from us (decision 0034).

DLedger appends entries without CRCs, may have removed entries after a committed one or whole files
at the front, and knows nothing of our files. So before such a log is opened, what these say is
reduced to what still holds, and the new entries are *sealed*: their headers get the CRCs that we
would have given them. All replicas compute the same ones, and from then on damage is found.
"""

import logging

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, Block, chain_crcs, header_at
from quorumlog.storage.entries.checksums import FOREIGN, WRONG_BODY, WRONG_CHAIN
from quorumlog.storage.entries.index_records import record_at
from quorumlog.storage.entries.run_scanner import BLANK_SIZE_MIN, entry_header
from quorumlog.storage.entries.scanner import ScannedRun, Scanner, looks_torn
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogMetadata, LogPoint

logger = logging.getLogger(__name__)

_CHAIN_CRC, _BODY_CRC, _U32 = 36, 40, 4
"""Where the CRCs are in a header, and their size."""


class TakeOver:
    """One log that DLedger may have written to since `metadata` was saved.

    `has_original_run`: it certainly ran. Otherwise only entries that follow ours are believed to be
    its own; everything else that is not as it was counts as damage.
    """

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        metadata: LogMetadata,
        *,
        has_original_run: bool,
    ) -> None:
        self._data = data
        self._index = index
        self._metadata = metadata
        self._has_run = has_original_run
        self._sealed: list[tuple[int, int]] = []

    def run(self) -> LogMetadata:
        """Seal what DLedger appended; return what still holds of the metadata."""
        metadata = self._metadata
        checkpoint, log_start = metadata.checkpoint, metadata.log_start
        if checkpoint is None or log_start is None or not len(self._data):
            return metadata
        if checkpoint.is_end and not self._has_run:
            return metadata
        known: LogPoint | None = checkpoint.point
        is_shorter = self._data.starts[0] > self._data.start_of(log_start.position)
        # DLedger has removed files at the front, or appended to a log of which a crash of ours left
        # more or less than our checkpoint says
        if self._has_run and (is_shorter or checkpoint.is_end):
            metadata, known = LogMetadata(), None
        elif not self._holds(checkpoint.point, log_start.before_begin_index):
            if not self._has_run:
                return metadata
            metadata, known = LogMetadata(log_start=log_start), log_start.point
        self._seal_from(known)
        if self._sealed:
            logger.warning(
                "%s: entries %s to %s were appended by DLedger; they have CRCs from now on",
                self._data.directory,
                self._sealed[0][0],
                self._sealed[-1][1],
            )
        if not self._sealed and not self._has_run:
            return metadata
        # how far a later group commit reached says nothing of what DLedger wrote in its place
        durable = metadata.checkpoint.point if metadata.checkpoint is not None else None
        return LogMetadata(metadata.checkpoint, durable, metadata.log_start)

    def _holds(self, point: LogPoint, before_begin_index: int) -> bool:
        """Whether the entry that a checkpoint names as the last one is still there."""
        if point.index <= before_begin_index:
            return True
        record = record_at(self._index, point.index)
        if record is None or int(record["pos"]) + int(record["size"]) != point.position:
            return False
        position = int(record["pos"])
        if not self._data.has(position):
            return False
        start, view = self._data.map_at(position)
        header = header_at(view, position - start)
        found = (header.index, header.term, header.chain_crc)
        return found == (point.index, point.term, max(0, point.chain_crc))

    # -- sealing --------------------------------------------------------------------------------

    def _seal_from(self, known: LogPoint | None) -> None:
        """Walk the log from a point on (None: all of it), and seal what DLedger appended."""
        if known is None:
            scanner = Scanner(self._data, self._data.starts[0])
        else:
            chain = None if known.chain_crc == UNKNOWN_CRC else known.chain_crc
            scanner = self._scanner_after(known.position, known.index, known.term, chain)
        while True:
            for _ in scanner:
                pass
            stop, chain, index, term = scanner.stop, scanner.chain_crc, scanner.index, scanner.term
            if stop is None or index is None or not chain:
                return
            if stop.reason == FOREIGN:
                # after a chain CRC of 0 entries without CRCs are taken, and no others
                foreign = self._scanner_after(stop.position, index, term, 0)
                found = self._sealed_run(foreign, chain)
            elif stop.reason in (WRONG_CHAIN, WRONG_BODY):
                found = self._sealed_half(stop.position, index + 1, chain)
            else:
                return
            if found is None:
                return
            scanner = self._scanner_after(found.position, found.index, found.term, found.chain_crc)

    def _scanner_after(
        self, position: int, index: int, term: int, chain_crc: int | None
    ) -> Scanner:
        return Scanner(self._data, position, index=index, term=term, chain_crc=chain_crc)

    def _sealed_run(self, foreign: Scanner, chain_crc: int) -> LogPoint | None:
        """Seal what a scanner finds; return where that ends. None: there was nothing to seal."""
        end, before = None, None
        for run in foreign:
            if before is not None:
                end = self._seal(before.block, before.position, chain_crc)
                chain_crc = end.chain_crc
            before = run
        whole = None if before is None else self._without_torn(before)
        if before is None or whole is None:
            return end
        return self._seal(whole, before.position, chain_crc)

    def _without_torn(self, run: ScannedRun) -> Block | None:
        """Return the last entries without the very last one, if a crash may have torn that."""
        if self._is_followed(run):
            return run.block
        offset, size = int(run.block.offsets[-1]), int(run.block.sizes[-1])
        start, view = self._data.map_at(run.position)
        is_torn = looks_torn(view, run.position - start + offset, size)
        if is_torn or (size == HEADER_SIZE and not self._has_run):
            return run.block.slice(0, run.block.count - 1) if run.block.count > 1 else None
        return run.block

    def _is_followed(self, run: ScannedRun) -> bool:
        """Whether the next entry is there: sealed already, when a crash ended the last opening."""
        record = record_at(self._index, run.last_index + 1)
        if record is None:
            return False
        position = int(record["pos"])
        if position not in self._data.positions_after(run.end) or not self._data.has(position):
            return False
        start, view = self._data.map_at(position)
        limit = min(len(view), self._data.file_size - BLANK_SIZE_MIN)
        header = entry_header(view, position - start, limit)
        return header is not None and header.index == run.last_index + 1

    def _sealed_half(self, position: int, index: int, chain_crc: int) -> LogPoint | None:
        """Seal an entry of whose CRCs a crash let only some bytes reach the disk.

        None: it is damaged.
        """
        start, view = self._data.map_at(position)
        begin = position - start
        header = entry_header(view, begin, min(len(view), self._data.file_size - BLANK_SIZE_MIN))
        if header is None or header.index != index:
            return None
        offsets = np.zeros(1, dtype=np.int64)
        block = Block(view[begin : begin + header.size], offsets, offsets + header.size)
        right = _with_crcs(block, chain_crc)[0][_CHAIN_CRC : _BODY_CRC + _U32]
        there = bytes(block.data[_CHAIN_CRC : _BODY_CRC + _U32])
        if any(one not in (0, expected) for one, expected in zip(there, right, strict=True)):
            return None
        return self._seal(block, position, chain_crc)

    def _seal(self, block: Block, position: int, chain_crc: int) -> LogPoint:
        """Give the entries at a position CRCs, durably; return where they end."""
        data, last_chain_crc = _with_crcs(block, chain_crc)
        self._data.file_at(position).write_through(bytes(data), position)
        last = header_at(data, int(block.offsets[-1]))
        self._sealed.append((last.index - block.count + 1, last.index))
        return LogPoint(last.index, position + len(data), last_chain_crc, last.term)


def _with_crcs(block: Block, chain_crc: int) -> tuple[bytearray, int]:
    """Return entries with the CRCs that they have after `chain_crc`, and their last chain CRC."""
    data, starts = bytearray(block.data), block.offsets.tolist()
    for start, size in zip(starts, block.sizes.tolist(), strict=True):
        at = start + _BODY_CRC
        crc = crc32(block.data[start + HEADER_SIZE : start + size])
        data[at : at + _U32] = crc.to_bytes(_U32, "big")
    chains = chain_crcs(Block(memoryview(data), block.offsets, block.sizes), chain_crc)
    for start, chain in zip(starts, chains, strict=True):
        at = start + _CHAIN_CRC
        data[at : at + _U32] = chain.to_bytes(_U32, "big")
    return data, chains[-1]
