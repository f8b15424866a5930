"""State machines of simulated nodes, and how clients of theirs speak.

The key-value machine is the real one. It writes to real files, in memory where that can be: they
are no part of the simulated disk, but end with their process, and are thrown away after a loss of
power, as on a real machine.
"""

import os
import shutil
import tempfile
import weakref
from typing import Protocol

import msgspec

from quorumlog.machine import kv_commands as kv
from quorumlog.machine.base import StateMachine
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.model.config import GroupConfig
from quorumlog.node.machines import open_machine
from quorumlog.sim.register import TAKEN, Command

REGISTERS = "quorumlog.sim.register:RegisterMachine"
KEY_VALUES = "kv"
MAP_BYTES = 1 << 18
"""Of a database to begin with: little, so that it grows."""
_IN_MEMORY = "/dev/shm"  # noqa: S108  (a directory of our own is made in it)


class Machines:
    """Of one node: one after the other, each in a life of its process."""

    def __init__(self) -> None:
        self._directory = ""
        self._boot = 0
        self._open: _KeyValues | None = None

    def open(self, group: GroupConfig) -> StateMachine | None:
        """Open the machine of a replica that starts."""
        if group.state_machine != KEY_VALUES:
            return open_machine(group, "/nowhere")
        if not self._directory:
            parent = _IN_MEMORY if os.path.isdir(_IN_MEMORY) else None
            self._directory = tempfile.mkdtemp(prefix="quorumlog-simulated-", dir=parent)
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._open = _KeyValues(f"{self._directory}/machine", f"boot {self._boot}", MAP_BYTES)
        return self._open

    def ended(self, *, power: bool) -> None:
        """The process is no more; with `power` the whole machine was off."""
        if self._open is not None:
            self._open.crash()
            self._open = None
        self._boot += power

    def wiped(self) -> None:
        """The disk was emptied."""
        if self._directory:
            shutil.rmtree(f"{self._directory}/machine", ignore_errors=True)


class _KeyValues(KeyValueMachine):
    def crash(self) -> None:
        """End without a word: what was written is in the page cache, and nothing is flushed."""
        for frozen in self._frozen:
            frozen.close()
        self._database.environment.close()


class Dialect(Protocol):
    """What commands and questions about registers are for a machine."""

    def command(self, command: Command) -> bytes:
        """Return the body of its entry."""
        ...

    def took_place(self, result: bytes) -> bool:
        """Whether its comparison held."""
        ...

    def question(self, key: bytes) -> bytes:
        """Ask for a value."""
        ...

    def value(self, answer: bytes) -> bytes | None:
        """Return it; None: there is none."""
        ...


class OfRegisters:
    """See `Dialect`."""

    def command(self, command: Command) -> bytes:
        """See `Dialect`."""
        return msgspec.msgpack.encode(command)

    def took_place(self, result: bytes) -> bool:
        """See `Dialect`."""
        return result == TAKEN

    def question(self, key: bytes) -> bytes:
        """See `Dialect`."""
        return key

    def value(self, answer: bytes) -> bytes | None:
        """See `Dialect`."""
        return answer or None


class OfKeyValues:
    """See `Dialect`."""

    def command(self, command: Command) -> bytes:
        """See `Dialect`."""
        compare = kv.Compare(command.key, value=command.expected)
        compares = (compare,) if command.compares else ()
        return kv.encode_command(kv.Transaction(compares, (kv.Put(command.key, command.value),)))

    def took_place(self, result: bytes) -> bool:
        """See `Dialect`."""
        return kv.decode_outcome(result).succeeded

    def question(self, key: bytes) -> bytes:
        """See `Dialect`."""
        return kv.encode_query(kv.Get(key))

    def value(self, answer: bytes) -> bytes | None:
        """See `Dialect`."""
        found = kv.decode_answer(answer)
        return found.value if isinstance(found, kv.Value) else None


def dialect_of(state_machine: str) -> Dialect:
    """Return how to speak to a machine."""
    return OfKeyValues() if state_machine == KEY_VALUES else OfRegisters()
