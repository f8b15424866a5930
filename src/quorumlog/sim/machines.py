"""State machines of simulated nodes, and adapters with which clients speak to them.

The key-value machine is the real one. It writes to real files, in memory where that can be: they
are no part of the simulated disk, but are thrown away unless the process closed them before it
ended, as on a real machine.
"""

import os
import shutil
import tempfile
import weakref
from random import Random
from typing import Protocol

import msgspec

from quorumlog.machine import kv_commands as kv
from quorumlog.machine.base import StateMachine
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_database import TABLES
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import check
from quorumlog.node.machines import open_machine
from quorumlog.sim.register import TAKEN, Command

REGISTERS = "quorumlog.sim.register:RegisterMachine"
KEY_VALUES = "kv"
MAP_BYTES = 1 << 18
"""The initial size of a database; it is small, so that the database has to grow."""
CUTS = 0.2
"""Share of damages to a file at rest that cut it."""
_IN_MEMORY = "/dev/shm"  # noqa: S108  (a directory of our own is made in it)


class Machines:
    """The state machines of one node: one for each life of its process."""

    def __init__(self) -> None:
        self._directory = ""
        self._open: _KeyValues | None = None

    def open(self, group: GroupConfig) -> StateMachine | None:
        """Open the machine of a replica that starts."""
        if group.state_machine != KEY_VALUES:
            return open_machine(group, "/nowhere")
        if not self._directory:
            parent = _IN_MEMORY if os.path.isdir(_IN_MEMORY) else None
            self._directory = tempfile.mkdtemp(prefix="quorumlog-simulated-", dir=parent)
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._open = _KeyValues(f"{self._directory}/machine", MAP_BYTES)
        return self._open

    def rebuild(self, machine: StateMachine, group: GroupConfig) -> StateMachine:
        """Put an empty one in the place of a damaged one."""
        if self._open is None:
            return type(machine).open("/nowhere")
        self._open.crash()
        self.wiped()
        made = self.open(group)
        check(made is not None, "the group has a machine")
        return made  # type: ignore[return-value]

    def ended(self, *, closes: bool = False) -> None:
        """The process has ended; it may have closed its machine first."""
        if self._open is not None and closes:
            self._open.close()
        elif self._open is not None:
            self._open.crash()
        self._open = None

    # -- damage -------------------------------------------------------------------------------

    def damage_at_rest(self, random: Random) -> None:
        """Flip a bit of one of the files, or cut it, while the process is down."""
        directory = f"{self._directory}/machine"
        names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        if not names:
            return
        path = f"{directory}/{random.choice(names)}"
        with open(path, "r+b") as file:
            size = os.path.getsize(path)
            if random.random() < CUTS:
                file.truncate(random.choice((0, size // 2)))
            elif size:
                position = random.randrange(size)
                file.seek(position)
                (byte,) = file.read(1)
                file.seek(position)
                file.write(bytes([byte ^ 1 << random.randrange(8)]))

    def flip_bit_in_memory(self, random: Random) -> None:
        """Flip a bit of a record of a running machine, as if its page were read again."""
        if self._open is not None:
            self._open.flip_bit(random)

    def wiped(self) -> None:
        """The disk was emptied."""
        if self._directory:
            shutil.rmtree(f"{self._directory}/machine", ignore_errors=True)


class _KeyValues(KeyValueMachine):
    def crash(self) -> None:
        """End without closing: what was written is in the page cache, and nothing is flushed."""
        for frozen in self._frozen:
            frozen.close()
        if self._open is not None:
            self._open.environment.close()

    def flip_bit(self, random: Random) -> None:
        """Flip a bit of a record."""
        if self._open is None:
            return
        environment = self._open.environment
        with environment.begin(write=True) as transaction:
            table = environment.open_db(random.choice(TABLES), transaction)
            records = list(transaction.cursor(table))
            if records:
                key, record = random.choice(records)
                flipped = bytearray(record)
                flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
                transaction.put(key, bytes(flipped), db=table)


class StateMachineAdapter(Protocol):
    """What commands and queries about registers are for a machine."""

    def command(self, command: Command) -> bytes:
        """Return the body of its entry."""
        ...

    def took_place(self, result: bytes) -> bool:
        """Whether the comparison of a compare-and-set held."""
        ...

    def query(self, key: bytes) -> bytes:
        """Return the query for a value."""
        ...

    def value(self, answer: bytes) -> bytes | None:
        """Return the value in an answer; None: there is none."""
        ...


class RegisterAdapter:
    """See `StateMachineAdapter`."""

    def command(self, command: Command) -> bytes:
        """See `StateMachineAdapter`."""
        return msgspec.msgpack.encode(command)

    def took_place(self, result: bytes) -> bool:
        """See `StateMachineAdapter`."""
        return result == TAKEN

    def query(self, key: bytes) -> bytes:
        """See `StateMachineAdapter`."""
        return key

    def value(self, answer: bytes) -> bytes | None:
        """See `StateMachineAdapter`."""
        return answer or None


class KeyValueAdapter:
    """See `StateMachineAdapter`."""

    def command(self, command: Command) -> bytes:
        """See `StateMachineAdapter`."""
        compare = kv.Compare(command.key, value=command.expected)
        compares = (compare,) if command.compares else ()
        return kv.encode_command(kv.Transaction(compares, (kv.Put(command.key, command.value),)))

    def took_place(self, result: bytes) -> bool:
        """See `StateMachineAdapter`."""
        return kv.decode_outcome(result).succeeded

    def query(self, key: bytes) -> bytes:
        """See `StateMachineAdapter`."""
        return kv.encode_query(kv.Get(key))

    def value(self, answer: bytes) -> bytes | None:
        """See `StateMachineAdapter`."""
        found = kv.decode_answer(answer)
        return found.value if isinstance(found, kv.Value) else None


def adapter_of(state_machine: str) -> StateMachineAdapter:
    """Return the adapter of a machine."""
    return KeyValueAdapter() if state_machine == KEY_VALUES else RegisterAdapter()
