"""The state machine of simulated groups: registers, and a hash over everything ever applied.

It keeps nothing on disk: a replica that starts is given a snapshot and the log after it. Bodies
that are no command of it are only hashed.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from quorumlog.machine.base import SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.model.entry import Entry


class Command(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Put `value`; with `compares` only if `expected` (None: nothing) is there."""

    key: bytes
    value: bytes
    compares: bool = False
    expected: bytes | None = None


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    registers: dict[bytes, bytes]
    history: bytes


_COMMANDS: Final = msgspec.msgpack.Decoder(Command)
_STATES: Final = msgspec.msgpack.Decoder(_Saved)


TAKEN, REFUSED, HASHED = b"1", b"0", b"-"
"""Results: a command took place, its comparison failed, it was none."""


class RegisterMachine(StateMachine):
    """Key → value; a query is a key, its answer the value, or nothing."""

    def __init__(self) -> None:
        self._registers: dict[bytes, bytes] = {}
        self._history = bytes(16)

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """See `StateMachine`."""
        return [self._apply(entry) for entry in entries]

    def _apply(self, entry: Entry) -> bytes:
        history = self._history + entry.index.to_bytes(8, "big") + entry.body
        self._history = hashlib.blake2b(history, digest_size=16).digest()
        try:
            command = _COMMANDS.decode(entry.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return HASHED
        if command.compares and self._registers.get(command.key) != command.expected:
            return REFUSED
        self._registers[command.key] = command.value
        return TAKEN

    def query(self, query: bytes) -> bytes:
        """See `StateMachine`."""
        return self._registers.get(query, b"")

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """See `StateMachine`."""
        raw = msgspec.msgpack.encode(_Saved(self._registers, self._history))
        for start in range(0, len(raw), 1_000):
            writer.write(raw[start : start + 1_000])

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """See `StateMachine`."""
        saved = _STATES.decode(reader.read())
        self._registers, self._history = dict(saved.registers), saved.history

    def digest(self) -> bytes:
        """See `StateMachine`: says which entries were applied, in which order."""
        return self._history
