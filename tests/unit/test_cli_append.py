"""`append`: taking bodies from standard input, and what a failure says of them."""

import os

import pytest

from quorumlog.cli import append
from quorumlog.cli.append import lines_in_batches, read_lines
from quorumlog.cli.errors import CommandError
from quorumlog.cli.main import main
from quorumlog.client import AppendedBatch
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import AllAckTimeoutError, LeaderPendingFullError, QuorumAckTimeoutError
from quorumlog.model.limits import DEFAULT_LIMITS


def reading(tmp_path, content):
    path = tmp_path / "stdin"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [line for piece in read_lines(descriptor) for line in piece]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("content", "bodies"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"a\r\n\x00\xff\n", [b"a\r", b"\x00\xff"]),
    ],
)
def test_every_line_is_one_body_as_it_is(tmp_path, content, bodies):
    assert reading(tmp_path, content) == bodies


def test_a_line_longer_than_one_read_stays_whole(tmp_path):
    lines = [b"x" * (3 << 20), b"y"]
    assert reading(tmp_path, b"\n".join(lines)) == lines


def test_a_line_above_the_limit_is_refused_by_its_number(tmp_path):
    with pytest.raises(CommandError, match="line 2 not appended"):
        reading(tmp_path, b"short\n" + b"x" * (DEFAULT_LIMITS.entry_bytes_max + 1))


def test_batches_keep_order_and_the_limits_of_one_append():
    lines = [b""] * 150_000 + [b"x" * 3_000_000, b"y" * 3_000_000, b"z"]
    batches = list(lines_in_batches([lines]))
    assert [line for batch in batches for line in batch] == lines
    for batch in batches:
        assert 0 < len(batch) <= DEFAULT_LIMITS.block_entries_max
        size = sum(HEADER_SIZE + len(line) for line in batch)
        assert size <= DEFAULT_LIMITS.block_bytes_max


class Log:
    """Stands for a cluster: takes every batch, except one that holds the body `fail`."""

    def __init__(self, error):
        self.error = error
        self.bodies = []

    def client(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def append_batch(self, bodies, *, channel, level):
        if b"fail" in bodies:
            raise self.error
        first = len(self.bodies)
        self.bodies += bodies
        positions = [100 * (first + ordinal) for ordinal in range(len(bodies))]
        return AppendedBatch(first, first + len(bodies) - 1, 1, positions)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["a", "fail", "c"], QuorumAckTimeoutError("no majority"), "body 2: the append may have"),
        (["a", "fail", "c"], LeaderPendingFullError("too much"), "body 2 not appended: too much"),
        (["a", "fail", "c"], AllAckTimeoutError("n2 is late"), "body 2 appended, but n2 is late"),
        (["--batch", "fail", "c"], QuorumAckTimeoutError("no"), "batch of 2: the append may have"),
    ],
)
def test_a_failed_append_says_which_body_and_whether_it_may_have_happened(
    arguments, error, said, monkeypatch, capsys
):
    log = Log(error)
    monkeypatch.setattr(append, "find_target", lambda *_: log)
    assert main(["append", *arguments]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert b"c" not in log.bodies
    assert out.splitlines() == ["index 0   term 1   pos 0"] * len(log.bodies)
