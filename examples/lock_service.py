"""A lock service with fencing tokens: a state machine of a user's own, and its client.

    python examples/lock_service.py

Starts three nodes in a temporary directory whose configuration says
`stateMachine = "lock_service:LockService"`, and shows two clients that compete.

A lock is held until it is released. There are no leases: whether one has run out is a question to a
clock, and every replica has another one. Time would have to come in as a command, such as "it is
12:00 now" from a client that all trust; here, an operator breaks the lock of a holder that is gone.
Whoever lost a lock may not know it. So each holder has a token, the index of the entry that gave
the lock to it: tokens rise from holder to holder, and what the lock protects refuses older ones.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import msgspec

from quorumlog import Client, Entry
from quorumlog.errors import UnexpectedArgumentError
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.machine import SnapshotReader, SnapshotWriter, StateMachine

# -- what is said -----------------------------------------------------------------------------


class _Message(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """Base of all commands, which are JSON objects."""


class Acquire(_Message, frozen=True, tag="acquire"):
    """Give the lock to the owner, unless another one holds it."""

    name: str
    owner: str


class Release(_Message, frozen=True, tag="release"):
    """The owner has done what it got the lock with that token for."""

    name: str
    owner: str
    token: int


class BreakLock(_Message, frozen=True, tag="break_lock"):
    """An operator takes the lock from whoever holds it."""

    name: str


Command: TypeAlias = Acquire | Release | BreakLock


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, and the token that proves it."""

    owner: str
    token: int


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a command: whether it did what it says, and who holds (or held) the lock."""

    done: bool
    holder: Holder | None = None
    error: str = ""


# -- the machine ------------------------------------------------------------------------------


class LockService(StateMachine):
    """Locks by their names. Nothing but the entries decides who holds one."""

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        self._commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Carry out commands; the result of each is a `Result` as JSON."""
        return [msgspec.json.encode(self._apply(entry)) for entry in entries]

    def _apply(self, entry: Entry) -> Result:
        try:
            command = self._commands.decode(entry.body)
        except (ValueError, RecursionError) as error:
            # anybody can append anything: an exception here would end the machine on all replicas
            return Result(done=False, error=f"no command: {error}")
        holder = self._holders.get(command.name)
        if isinstance(command, Acquire):
            if holder is None:
                holder = self._holders[command.name] = Holder(command.owner, entry.index)
            # asking again, not knowing what became of it, gives the same token
            return Result(done=holder.owner == command.owner, holder=holder)
        if isinstance(command, Release) and holder != Holder(command.owner, command.token):
            return Result(done=False, holder=holder)
        self._holders.pop(command.name, None)
        return Result(done=holder is not None, holder=holder)

    def query(self, query: bytes) -> bytes:
        """Return who holds the lock of a name (UTF-8) as JSON: a `Holder` or null."""
        return msgspec.json.encode(self._holders.get(query.decode()))

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write all locks that are held as one JSON object."""
        writer.write(self._encoded())

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """Take them back."""
        self._holders = msgspec.json.decode(reader.read(), type=dict[str, Holder])

    def digest(self) -> bytes:
        """Return a hash of what a snapshot would be."""
        return blake2b(self._encoded(), digest_size=16).digest()

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self._holders, order="sorted")


# -- its client -------------------------------------------------------------------------------


class Locks:
    """The lock service of a client's group."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def acquire(self, name: str, owner: str) -> tuple[bool, Holder]:
        """Try to get a lock; return whether that succeeded, and who holds it now."""
        result = await self._execute(Acquire(name, owner))
        if result.holder is None:
            raise UnexpectedArgumentError(f"the answer names no holder of {name!r}")
        return result.done, result.holder

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Give a lock back; False if it is not held with this token (any more)."""
        return (await self._execute(Release(name, owner, token))).done

    async def break_lock(self, name: str) -> Holder | None:
        """Take a lock from whoever holds it; return who did."""
        return (await self._execute(BreakLock(name))).holder

    async def holder(self, name: str) -> Holder | None:
        """Return who holds a lock, after everything acknowledged before."""
        answered = await self._client.query(name.encode())
        return msgspec.json.decode(answered.answer, type=Holder | None)

    async def _execute(self, command: Command) -> Result:
        executed = await self._client.execute(msgspec.json.encode(command))
        result = msgspec.json.decode(executed.result, type=Result)
        if result.error:
            raise UnexpectedArgumentError(result.error)
        return result


@dataclass
class Document:
    """What the lock protects: it remembers the newest token, and refuses older ones."""

    lines: list[str] = field(default_factory=list)
    newest_token: int = -1

    def write(self, token: int, line: str) -> bool:
        """Add a line; False if a later holder has written already."""
        if token < self.newest_token:
            return False
        self.newest_token = token
        self.lines.append(line)
        return True


# -- the show ---------------------------------------------------------------------------------


async def compete(cluster: LocalCluster) -> None:
    """Two clients want the same lock; one of them loses it without noticing."""
    document = Document()
    async with Client(cluster.servers) as one, Client(cluster.servers) as other:
        ann, bob = Locks(one), Locks(other)
        _, anns = await ann.acquire("document", "ann")
        print(f"ann acquires the lock with token {anns.token}")
        print(f"ann writes: {'done' if document.write(anns.token, 'by ann') else 'refused'}")
        got, holder = await bob.acquire("document", "bob")
        print(f"bob tries: {'acquired' if got else f'held by {holder.owner}'}")

        print("ann falls silent; an operator breaks the lock")
        await bob.break_lock("document")
        _, bobs = await bob.acquire("document", "bob")
        is_newer = bobs.token > anns.token
        print(f"bob acquires the lock with a {'newer' if is_newer else 'WRONG'} token")
        print(f"bob writes: {'done' if document.write(bobs.token, 'by bob') else 'refused'}")

        print("ann wakes up and does not know")
        print(f"ann writes: {'done' if document.write(anns.token, 'late') else 'refused'}")
        released = await ann.release("document", "ann", anns.token)
        print(f"ann releases: {'done' if released else 'not hers any more'}")

        cluster.kill(cluster.leader("default"))
        now = await ann.holder("document")
        print(f"the leader is killed; the lock is held by {now.owner if now else 'nobody'}")
        released = await bob.release("document", "bob", bobs.token)
        print(f"bob releases: {'done' if released else 'refused'}")
    print(f"the document: {document.lines}")


def main() -> None:
    """Run three nodes with the machine for as long as the show takes."""
    here = str(Path(__file__).resolve().parent)
    # the node processes import this file, too
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [here, os.environ.get("PYTHONPATH", "")])
    )
    with guarded_directory("quorumlog-locks-") as guard:
        cluster = LocalCluster.create(
            guard.directory / "locks", state_machine="lock_service:LockService"
        )
        try:
            cluster.up()
            asyncio.run(compete(cluster))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
