"""One side of an install: an `SnapshotTransfer`, and of the replica around it what it needs."""

import itertools
import random
from types import SimpleNamespace

import msgspec

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.membership import founding
from quorumlog.model.messages.peer import SnapshotChunk
from quorumlog.node.replica.snapshot_transfer import SnapshotTransfer
from quorumlog.raft.effects import FetchSnapshot, OfferSnapshot
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots

DIRECTORY = "/node/g"
PIECE = 100
DATA = b"".join(b"%d;" % n for n in range(250))
"""Of a snapshot: not a whole number of pieces."""
TIME_OUT_MS = 1_000
CONFIG = founding({"n0": "h:1", "n1": "h:2"}).encode()


class Side:
    """A `SnapshotTransfer` and the replica around it; the test runs jobs and carries messages."""

    def __init__(self, name, *, has_machine=True, quota=1 << 30):
        self.name, self.now_ms, self.has_machine = name, 10_000, has_machine
        self.files = SimulatedFileSystem(random.Random(1))
        self.files.make_directory(DIRECTORY)
        self.nonces = itertools.count(1)
        self.config = GroupConfig(
            group="g",
            peers="n0-h:1;n1-h:2;n2-h:3",
            peer_push_quota=quota,
            max_push_time_out_ms=TIME_OUT_MS,
        )
        self.core = SimpleNamespace(
            self_id=name,
            incarnation=7,
            term=4,
            membership_index=2,
            role=Role.LEADER,
            leader_id="n0",
            membership=founding({"n0": "h:1", "n1": "h:2"}),
        )
        self.repairer = SimpleNamespace(look_again_later=lambda: None)
        self.learned = []
        self.sessions = SimpleNamespace(
            encode=lambda: b"table", learned=self.learned.append, as_of=1 << 62, is_lost=False
        )
        self.snapshotter = SimpleNamespace(newest=None, newest_index=-1)
        self.applier = SimpleNamespace(
            saves=self.snapshotter, is_loading=False, applied_index=1 << 62
        )
        self.applier.is_eligible = True
        self.applier.machine = has_machine or None
        self.suspects = []
        self.applier.scrub = SimpleNamespace(suspect=self.suspects.append)
        self.log = SimpleNamespace(
            before_begin_index=30,
            before_begin_term=3,
            chain_crc_at={30: 55}.get,
            config_entries=lambda: [(2, CONFIG), (30, CONFIG), (31, b"later")],
        )
        self.start()

    def start(self):
        """Begin as a process does."""
        self.told, self.alarms, self.sent, self.jobs, self.fitness = [], [], [], [], []
        self.snapshots = Snapshots(self.files, DIRECTORY, self.alarms.append)
        environment = SimpleNamespace(
            now_ms=lambda: self.now_ms,
            nonce=lambda: next(self.nonces),
            network=SimpleNamespace(send=self.send),
            executor=SimpleNamespace(run=lambda *job: self.jobs.append(job)),
        )
        snapshots = self.snapshots if self.has_machine else None
        self.snapshot_transfer = SnapshotTransfer(self, snapshots, environment, PIECE)

    def send(self, peer, message, attachments=(), *, bulk=False):
        self.sent.append((message, b"".join(attachments)))
        return True

    def tell(self, event, table=b""):
        self.told.append(event)

    def update_eligibility(self):
        self.fitness.append(not self.snapshot_transfer.is_installing)

    def raise_alarm(self, text):
        self.alarms.append(text)

    def wake(self):
        pass

    def work(self):
        """Carry out what was given to threads."""
        while self.jobs:
            work, done, failed = self.jobs.pop(0)
            try:
                result = work()
            except Exception as error:
                failed(error)
            else:
                done(result)

    def passes(self, milliseconds):
        self.now_ms += milliseconds
        self.snapshot_transfer.tick(self.now_ms)

    def has(self, index, data=DATA):
        """Have a snapshot; return the offer of it."""
        saving = self.snapshots.begin()
        saving.write(data)
        meta = SnapshotMeta(
            last_included_index=index, last_included_term=3, chain_crc=9, config=(2, CONFIG)
        )
        self.snapshotter.newest = saving.publish(meta)
        self.snapshot_transfer.offer(OfferSnapshot("n1", index))
        return self.sent.pop()[0] if self.sent else None

    def is_offered(self, offer):
        self.offer = offer
        self.snapshot_transfer.fetch(FetchSnapshot(offer))
        self.work()

    def offset_asked(self):
        """Where the piece begins that was asked for last; None: none was."""
        return self.sent[-1][0].offset if self.sent else None

    def answers(self, data, **fields):
        """Answer what was asked last."""
        piece = piece_of(self.sent[-1][0], **fields)
        self.snapshot_transfer.received(piece, memoryview(data))
        self.work()
        return piece

    def next_piece(self, data=DATA):
        request = self.sent[-1][0]
        self.answers(data[request.offset : request.offset + request.bytes_max])

    def fetches_all(self, data=DATA):
        while self.snapshot_transfer.is_installing:
            before = len(self.sent)
            self.next_piece(data)
            if self.alarms and len(self.sent) == before and self.snapshot_transfer.is_installing:
                self.now_ms += TIME_OUT_MS  # it came damaged
                self.is_offered(self.offer)
            assert len(self.sent) > before or not self.snapshot_transfer.is_installing, "it goes on"

    def data_at(self, index):
        found = []
        meta = self.snapshots.meta_of(index)
        self.snapshots.check(meta)
        self.snapshots.use(meta, lambda reader: found.append(reader.read()))
        return found[0]


def piece_of(request, **fields):
    """The answer to a request."""
    piece = SnapshotChunk(
        group="g",
        local_id="n0",
        remote_id="n1",
        term=4,
        request_id=request.request_id,
        code=ResponseCode.SUCCESS,
        offset=request.offset,
    )
    return msgspec.structs.replace(piece, **fields)
