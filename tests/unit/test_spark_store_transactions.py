"""What became of transactions, derived from the files of a store alone."""

import pytest

from quorumlog.model.block import parse_block
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.entries import (
    EndTransaction,
    InitTransactions,
    TransactionPart,
    encode_session_block,
)
from store_access import ENTRY_MAX, Opened
from store_scans import finish, indexes_of, rows_of

QUERY, OTHER = b"q" * 16, b"o" * 16


class Store:
    """A store as a replica with producers writes it; `save` is a checkpoint, with its table."""

    def __init__(self, directory):
        self.opened = Opened(directory, data_file=4_096, index_file=1_024)
        self.log = self.opened.log
        self.tables = Tables(self.log, -1, None)
        self.log.keep_tables(self.tables.to_save)

    def append(self, data, count=1):
        block = parse_block(memoryview(bytearray(data)), count=count, entry_bytes_max=ENTRY_MAX)
        first = self.log.end_index + 1
        plan, _ = self.log.append(block, 1)
        self.opened.submit(plan)
        self.tables.appended(block, first)

    def begin(self, found_id=QUERY, run=b"1" * 16):
        self.append(InitTransactions(found_id, run, 1_000).encode())

    def write(self, producer_id, batch_id, text, found_id=QUERY, epoch=1):
        part = TransactionPart(found_id, epoch, batch_id, 0)
        bodies = [f"{text}{number}".encode().ljust(300, b".") for number in range(4)]
        self.append(encode_session_block(producer_id, 0, bodies, part=part), 5)

    def end(self, batch_id, producer_id, found_id=QUERY, epoch=1):
        attempt = self.tables.at_end.producers[found_id].attempts[producer_id]
        accepted = (attempt.accepted_as(producer_id),)
        self.append(EndTransaction(found_id, epoch, batch_id, accepted).encode())

    def save(self):
        self.log.note_committed(self.log.end_index)
        self.tables.committed(self.log.end_index)
        self.opened.checkpoint()

    def scenes(self, step):
        """Some of everything; `step` is called behind each of it."""
        for action in (
            self.begin,
            lambda: self.write(11, 0, "lost"),
            lambda: self.write(12, 0, "kept"),
            lambda: self.opened.append([b"plain"]),
            lambda: self.end(0, 12),
            lambda: self.begin(OTHER),
            lambda: self.write(13, 5, "other", OTHER),
            lambda: self.end(5, 13, OTHER),
            lambda: self.write(14, 1, "open"),
            lambda: self.opened.append([b"behind"]),
        ):
            action()
            step()


EXPECTED = [*(f"kept{n}" for n in range(4)), "plain", *(f"other{n}" for n in range(4))]


def texts(directory, **options):
    rows = rows_of(directory, ("body",), **options)
    return [row["body"].rstrip(b".").decode() for row in rows]


@pytest.mark.parametrize("saved_after", range(11))
def test_only_what_was_accepted_is_read_wherever_the_last_checkpoint_was(tmp_path, saved_after):
    store, steps = Store(tmp_path / "g"), iter(range(11))
    store.scenes(lambda: store.save() if next(steps) == saved_after else None)
    store.opened.close()
    assert texts(tmp_path / "g", committedOnly="false") == EXPECTED
    assert texts(tmp_path / "g", committedOnly="false", maxBytesPerPartition="1k") == EXPECTED
    everything = texts(tmp_path / "g", committedOnly="false", isolationLevel="read_uncommitted")
    assert len(everything) == len(EXPECTED) + 9


def test_what_is_open_at_the_committed_end_is_not_read_yet(tmp_path):
    store = Store(tmp_path / "g")
    store.scenes(lambda: None)
    store.tables.committed(9)
    finish(store.opened, 9)  # in the middle of what is accepted later
    assert texts(tmp_path / "g") == []
    assert indexes_of(tmp_path / "g", includeAll="true") == [0]
    assert len(indexes_of(tmp_path / "g", isolationLevel="read_uncommitted")) == 7


def test_a_fenced_run_does_not_block_readers(tmp_path):
    store = Store(tmp_path / "g")
    store.scenes(lambda: None)
    store.begin(run=b"2" * 16)
    store.save()
    store.opened.close()
    assert texts(tmp_path / "g") == [*EXPECTED, "behind"]
