"""One side of a snapshot transfer: sender and receiver, and of the replica what they need."""

import random
from types import SimpleNamespace

import msgspec

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.membership import founding
from quorumlog.model.messages.peer import SnapshotChunk
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.snapshot_receiver import SnapshotReceiver
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.snapshot_sender import SnapshotSender
from quorumlog.raft.effects import FetchSnapshot, OfferSnapshot
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots
from replica_context import Surroundings

DIRECTORY = "/node/g"
CHUNK_BYTES = 100
DATA = b"".join(b"%d;" % n for n in range(250))
"""Of a snapshot: not a whole number of chunks."""
TIME_OUT_MS = 1_000
CONFIG = founding({"n0": "h:1", "n1": "h:2"}).encode()


class Side(Surroundings):
    """Both ends of snapshot transfers of one replica; the test runs jobs and carries messages."""

    def __init__(self, name, *, has_machine=True, quota=1 << 30):
        self.name = name
        self.files = SimulatedFileSystem(random.Random(1))
        self.files.make_directory(DIRECTORY)
        config = GroupConfig(
            group="g",
            peers="n0-h:1;n1-h:2;n2-h:3",
            peer_push_quota=quota,
            max_push_time_out_ms=TIME_OUT_MS,
        )
        self.core = SimpleNamespace(
            self_id=name,
            incarnation=7,
            term=4,
            committed_index=1 << 62,
            membership_index=2,
            role=Role.LEADER,
            leader_id="n0",
            membership=founding({"n0": "h:1", "n1": "h:2"}),
        )
        self.log = SimpleNamespace(
            before_begin_index=30,
            before_begin_term=3,
            chain_crc_at={30: 55}.get,
            config_entries=lambda: [(2, CONFIG), (30, CONFIG), (31, b"later")],
        )
        limits = SimpleNamespace(push_bytes_max=CHUNK_BYTES)
        super().__init__(config, core=self.core, log=self.log, limits=limits)
        self.now_ms = 10_000
        self.learned, self.suspects, self.removed, self.saving = [], [], [], []
        self.tables = SimpleNamespace(
            encode=lambda: b"table", learned=self.learned.append, as_of=1 << 62, is_trusted=True
        )
        self.machine = MachineState(self.core, "a machine" if has_machine else None)
        self.machine.applied = 1 << 62
        self.applier = SimpleNamespace(
            state=self.machine,
            is_loading=False,
            is_eligible=True,
            scrub=SimpleNamespace(suspect=self.suspects.append),
            snapshotter=SimpleNamespace(ask=self.saving.append, is_requested=False),
        )
        self.start()

    def start(self):
        """Begin as a process does."""
        context = self.context
        context.timers = PartTimers(context.environment.now_ms, context.environment.wake_at)
        self.fitness, self.machine.is_installing = [], False
        for noted in (self.steps, self.alarms, self.sent, self.jobs):
            noted.clear()
        self.snapshots = Snapshots(self.files, DIRECTORY, self.alarms.append)
        self.served, self.requests = ServedSnapshots(context), SnapshotRequests(context)
        snapshots = self.snapshots if self.machine.machine is not None else None
        self.sender = SnapshotSender(context, snapshots, self.tables, self.served, self.applier)
        self.receiver = SnapshotReceiver(
            context,
            snapshots,
            self.tables,
            self.requests,
            self.applier,
            SimpleNamespace(remove_until=self.removed.append),
        )

    def update_eligibility(self):
        self.fitness.append(not self.machine.is_installing)

    def passes(self, milliseconds):
        self.now_ms += milliseconds
        self.tick()

    def has(self, index, data=DATA):
        """Have a snapshot; return the offer of it."""
        saving = self.snapshots.begin()
        saving.write(data)
        meta = SnapshotMeta(
            last_included_index=index, last_included_term=3, chain_crc=9, config=(2, CONFIG)
        )
        self.machine.newest = saving.publish(meta)
        self.sender.offer(OfferSnapshot("n1", index))
        return self.sent.pop()[0] if self.sent else None

    def is_offered(self, offer):
        self.offer = offer
        self.receiver.fetch(FetchSnapshot(offer))
        self.work()

    def offset_asked(self):
        """Where the chunk begins that was asked for last; None: none was."""
        return self.sent[-1][0].offset if self.sent else None

    def answers(self, data, **fields):
        """Answer what was asked last."""
        chunk = chunk_of(self.sent[-1][0], **fields)
        self.receiver.chunk_received(chunk, memoryview(data))
        self.work()
        return chunk

    def next_chunk(self, data=DATA):
        request = self.sent[-1][0]
        self.answers(data[request.offset : request.offset + request.bytes_max])

    def fetches_all(self, data=DATA):
        while self.machine.is_installing:
            before = len(self.sent)
            self.next_chunk(data)
            if self.alarms and len(self.sent) == before and self.machine.is_installing:
                self.now_ms += TIME_OUT_MS  # it came damaged
                self.is_offered(self.offer)
            assert len(self.sent) > before or not self.machine.is_installing, "it goes on"

    def data_at(self, index):
        found = []
        meta = self.snapshots.meta_of(index)
        self.snapshots.check(meta)
        self.snapshots.use(meta, lambda reader: found.append(reader.read()))
        return found[0]


def chunk_of(request, **fields):
    """The answer to a request."""
    chunk = SnapshotChunk(
        group="g",
        local_id="n0",
        remote_id="n1",
        term=4,
        request_id=request.request_id,
        code=ResponseCode.SUCCESS,
        offset=request.offset,
    )
    return msgspec.structs.replace(chunk, **fields)
