"""An append hook beside everything else that happens to entries: producers that pipeline blocks,
sessions, fail-over, a state machine, and files that are verified."""

import asyncio
import struct

from embedding import configs, leader_id, program
from quorumlog import Client, Producer
from quorumlog.machine import StateMachine
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.verify import verify_store

STAMP = struct.Struct(">qqi")
FREE = bytes(STAMP.size)


def fill(place, body):
    """Write index and position into the first bytes, and count how often that is done."""
    (count,) = struct.unpack_from(">i", body, 16)
    STAMP.pack_into(body, 0, place.index, place.position, count + 1)


def checked(entries):
    """Return the bodies without what the hook has written, which is right and written once."""
    for entry in entries:
        assert STAMP.unpack_from(entry.body) == (entry.index, entry.pos, 1)
    return [entry.body[STAMP.size :] for entry in entries]


async def test_blocks_of_a_producer_are_filled_and_stored_once_through_a_change_of_leader(tmp_path):
    made = configs(tmp_path)
    bodies = [b"%d " % number * (number % 50) for number in range(3_000)]
    async with program(tmp_path, made, append_hook=lambda _: fill) as embedded:
        leader = await embedded.leader()
        others = dict(embedded.groups)
        async with Producer(embedded.servers, "g") as producer:
            for number, body in enumerate(bodies):
                await producer.send(FREE + body)
                if number == 1_000:
                    await leader.transfer()
                if number == 2_000:
                    stopped = leader_id(await embedded.leader())
                    await embedded.nodes[stopped].stop()
                    del others[stopped]
        for group in others.values():
            await group.bounds(linearizable=True)
            assert checked([entry async for entry in group.read(follow=False)]) == bodies
    for config in made.values():
        report = verify_store(OsFileSystem(), f"{config.store_base_dir}/g")
        assert report.findings == []
        assert report.unchecked_entries == 0


class Positions(StateMachine):
    """Remembers the position that each command states."""

    def __init__(self):
        self.positions = []

    def apply(self, entries):
        for entry in entries:
            self.positions.append(STAMP.unpack_from(entry.body)[:2])
            assert self.positions[-1] == (entry.index, entry.pos)
        return [b"%d" % entry.pos for entry in entries]

    def query(self, query):
        return b"%d" % len(self.positions)

    def save_snapshot(self, writer):
        writer.write(b"")

    def load_snapshot(self, reader):
        reader.read()


async def test_a_machine_object_applies_what_the_hook_has_filled_in(tmp_path):
    machines = {}

    def machine(node_id):
        return machines.setdefault(node_id, Positions())

    async with program(tmp_path, append_hook=lambda _: fill, machine=machine) as embedded:
        leader, follower = await embedded.leader(), await embedded.follower()
        first = await leader.execute(FREE)
        async with Client(embedded.servers, "g") as client:
            second = await client.execute(FREE + b"from a client")
        assert [int(one.result) for one in (first, second)] == [
            (await leader.get(one.index)).pos for one in (first, second)
        ]
        found = await asyncio.gather(leader.query(b""), follower.query(b""))
        assert [one.answer for one in found] == [b"2", b"2"]
        assert (await leader.query(b"", linearizable=False)).answer == b"2"
        assert machines[leader_id(leader)].positions == machines[leader_id(follower)].positions
        assert leader.status().state_machine.endswith(":Positions")
