"""Text files that DLedger has beside a log, kept true so that it can go on (spec 20 sections 3, 9).

`currterm` has term and vote; it is written with each of them, durably. `checkpoint` has the
committed index, a lower bound from which DLedger 0.2.7 and 0.3.2 start; it is written with each
checkpoint of ours and not fsynced, since an older one is as good.

Both are replaced by one write of one sector. The last line is a comment to DLedger, and a CRC of
the other lines to us. DLedger drops comments, so a file that says what DLedger's does, but without
that line, was written by DLedger. One that says nothing is what a crash left of a file of ours.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from isal.isal_zlib import crc32

from quorumlog.model.hard_state import HardState
from quorumlog.storage.files.os_files import FileSystem, not_a_file
from quorumlog.storage.files.reserve import Reserve

TERM_NAME: Final = "currterm"
CHECKPOINT_NAME: Final = "checkpoint"
ORIGINAL_NAMES: Final = (TERM_NAME, CHECKPOINT_NAME)
BYTES_MAX: Final = 4_096
SECTOR: Final = 512
_MARK: Final = "# kept by quorumlog"
_KEYS: Final = ("currTerm", "committedIndex")
"""One of these is in each file that DLedger has written."""
_LINE: Final = re.compile(r"(\w+)\s*=\s*(\S*)\s*")


@dataclass(frozen=True, slots=True)
class OriginalText:
    """What one of the files says. `is_ours`: DLedger did not write it."""

    values: Mapping[str, str]
    is_ours: bool

    def number(self, key: str) -> int:
        """Return a number that is not negative; -1: the file does not say it."""
        text = self.values.get(key, "")
        return int(text) if text.isdecimal() and len(text) < 20 else -1


class OriginalFile:
    """One of the files of one group."""

    def __init__(self, files: FileSystem, directory: str, name: str) -> None:
        self._files = files
        self._directory = directory
        self._reserve = Reserve(files, directory)
        self.path = f"{directory}/{name}"

    def require_no_obstacle(self) -> None:
        """Raise `NotAFileError` if something else lies in the place of the file."""
        if obstacle := self._files.obstacle(self.path):
            raise not_a_file(self.path, obstacle)

    def read(self) -> OriginalText | None:
        """Return what the file says; None: there is none.

        A file of ours whose CRC does not fit says nothing, nor does one of the size that ours have,
        and DLedger's never, without the line that ours have.
        """
        if self._files.obstacle(self.path) or not self._files.exists(self.path):
            return None
        file = self._files.open(self.path, writable=False)
        try:
            raw = file.read_at(BYTES_MAX, 0)
        finally:
            file.close()
        body, mark, crc = raw.decode("utf-8", errors="replace").partition(_MARK)
        fits = crc.strip() == f"{crc32(body.encode()):08x}" if mark else len(raw) != SECTOR
        if not fits:
            return OriginalText({}, is_ours=True)
        lines = (_LINE.fullmatch(line.strip()) for line in body.splitlines())
        values = {line[1]: line[2] for line in lines if line}
        return OriginalText(values, bool(mark) or not any(key in values for key in _KEYS))

    def write(self, values: Mapping[str, str], *, durable: bool) -> None:
        """Replace the file; only a durable one may use the reserve. Raises `NoSpaceError`."""
        if self._files.obstacle(self.path):
            return  # opening moves it away, and DLedger cannot start with it
        body = "".join(f"{key}={value}\n" for key, value in values.items())
        text = f"{body}{_MARK} {crc32(body.encode()):08x}"
        raw = text.encode().ljust(SECTOR - 1) + b"\n"
        if durable:
            self._reserve.use(lambda: self._write(raw, durable=True))
        else:
            self._write(raw, durable=False)

    def _write(self, raw: bytes, *, durable: bool) -> None:
        is_new = not self._files.exists(self.path)
        file = self._files.open(self.path, create=is_new)
        try:
            file.write_at([raw], 0)
            if file.size() != len(raw):
                file.resize(len(raw))
            if durable:
                file.sync()
        finally:
            file.close()
        if is_new and durable:
            self._files.sync_directory(self._directory)


def term_values(hard_state: HardState) -> dict[str, str]:
    """Return what `currterm` says of term and vote."""
    return {"currTerm": str(hard_state.term), "voteLeader": hard_state.vote or ""}


def checkpoint_values(end_index: int, committed_index: int) -> dict[str, str]:
    """Return what `checkpoint` says."""
    return {"endIndex": str(end_index), "committedIndex": str(committed_index)}


def committed_index_of(files: FileSystem, directory: str) -> int:
    """Return the committed index that DLedger 0.2.7 or 0.3.2 wrote last; -1 if none.

    It is a lower bound, written without a checksum: an unreadable file says nothing. What we wrote
    says nothing either: `quorumlog.checkpoint` says it with a checksum.
    """
    found = OriginalFile(files, directory, CHECKPOINT_NAME).read()
    return -1 if found is None or found.is_ours else found.number("committedIndex")


def has_original_run(files: FileSystem, directory: str) -> bool:
    """Whether DLedger has written one of its files since this program did."""
    found = (OriginalFile(files, directory, name).read() for name in ORIGINAL_NAMES)
    return any(text is not None and not text.is_ours for text in found)
