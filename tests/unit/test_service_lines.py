"""Log lines are written on a thread of their own: nobody waits if nobody reads them."""

import json
import os
import subprocess
import sys

import pytest

from quorumlog.service import logs
from quorumlog.service.logs import LineWriter

PATIENCE_S = 60.0
"""For what happens on another thread; nothing is judged by it."""


class Pipe:
    def __init__(self):
        self.reader, writer = os.pipe()
        self.ends = {self.reader, writer}
        self.file = open(self.reader, "rb", closefd=False)  # noqa: SIM115  (closed by its owner)
        self.writer = LineWriter(writer)

    def lines_until(self, is_last):
        """Read lines up to the first one that is the last."""
        lines = [self.file.readline().decode().rstrip("\n")]
        while not is_last(lines[-1]):
            lines.append(self.file.readline().decode().rstrip("\n"))
        return lines

    def close(self, end):
        self.ends.remove(end)
        os.close(end)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    for end in made.ends:
        os.close(end)


def test_lines_are_written_in_order_and_flush_waits_for_them(pipe):
    for number in range(100):
        pipe.writer.put(f"line {number} ✓")
    assert pipe.writer.flush(PATIENCE_S)
    assert pipe.lines_until(lambda line: line.startswith("line 99 ")) == [
        f"line {number} ✓" for number in range(100)
    ]
    assert pipe.writer.dropped == 0


def test_a_full_pipe_holds_nobody_up_and_what_is_dropped_is_counted_and_said(pipe, monkeypatch):
    monkeypatch.setattr(logs, "LINES_BYTES_MAX", 300_000)  # more than a pipe takes
    for number in range(1_000):  # would never end if one of them waited
        pipe.writer.put(f"{number:0999}")
    assert pipe.writer._size <= 300_000
    assert not pipe.writer.flush(0)
    dropped = pipe.writer.dropped
    assert dropped > 0

    lines = pipe.lines_until(lambda line: "{" in line)
    *kept, last = lines
    assert [int(line) for line in kept] == list(range(1_000 - dropped))
    said = json.loads(last)
    assert (said["event"], said["count"]) == ("log lines dropped", dropped)
    assert {"time", "level", "logger"} <= set(said)

    assert pipe.writer.flush(PATIENCE_S)  # until then, what was read takes up room
    pipe.writer.put("there is room again")
    assert pipe.lines_until(lambda line: "again" in line) == ["there is room again"]
    assert pipe.writer.flush(PATIENCE_S)
    assert (pipe.writer.dropped, pipe.writer._size) == (dropped, 0)


def test_a_line_that_is_larger_than_everything_is_dropped_and_said_at_once(pipe, monkeypatch):
    monkeypatch.setattr(logs, "LINES_BYTES_MAX", 1_000)
    pipe.writer.put("x" * 1_000)
    (line,) = pipe.lines_until(lambda line: True)
    assert json.loads(line)["count"] == 1


def test_the_last_line_is_written_though_there_is_no_room_after_what_was_dropped(pipe, monkeypatch):
    monkeypatch.setattr(logs, "LINES_BYTES_MAX", 300_000)
    for number in range(1_000):
        pipe.writer.put(f"{number:0999}")
    dropped = pipe.writer.dropped
    pipe.writer.put_last("the last words")
    *kept, said, last = pipe.lines_until(lambda line: "last words" in line)
    assert len(kept) == 1_000 - dropped
    assert json.loads(said)["count"] == dropped
    assert last == "the last words"
    assert pipe.writer.dropped == dropped


def test_when_the_reader_is_gone_lines_are_counted_and_nothing_ends(pipe):
    pipe.close(pipe.reader)
    for _ in range(2):
        pipe.writer.put("nobody reads this")
        assert pipe.writer.flush(PATIENCE_S)
    assert pipe.writer.dropped == 2


ENDS = """
import logging, sys
from quorumlog.service.logs import last_words, set_up_logs
set_up_logs("INFO")
for number in range(10_000):
    logging.info("x" * 1_000)
last_words("the last words")
sys.exit(7)
"""


@pytest.mark.parametrize("is_read", [False, True])
def test_a_process_ends_whether_its_log_is_read_or_not(is_read):
    process = subprocess.Popen([sys.executable, "-c", ENDS], stderr=subprocess.PIPE)
    with process, process.stderr as log:
        if is_read:
            lines = log.read().splitlines()
            assert lines[-1] == b"the last words"
        assert process.wait(PATIENCE_S) == 7
