"""A crash at every single call to the file system, over everything a log does; then every flip.

The disk is simulated: what was not fsynced, file by file and name by name, survives only by chance.
"""

import random
from contextlib import suppress
from itertools import islice

import pytest

from quorumlog.model.block import block_from_index_records
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.hard_state import HardState
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.storage.metadata.dual_slot_file import SLOT_SIZE
from store_access import Opened, entries_of, stored_block

SIZES = {"data_file": 1_000, "index_file": 32 * 6}
DIRECTORY = "/node/g"
FLIP_PARTS = 4
SLOT_FILES = ("quorumlog.checkpoint", "quorumlog.state", "quorumlog.state.copy")
SLOT_USED = 128
"""More bytes than are used of a slot of these files."""
FILLING_STEP = 61


class EventHistory:
    """Steps over a log, and what must be true of it whenever the machine stops.

    `states` are those that the log may be in: the one last reported durable, then the one after the
    step that was not. A state is (before_begin_index, bodies, term, vote).
    """

    def __init__(self, files, steps):
        self.files = files
        self.steps = steps
        self.states = [(-1, [], 0, None)]
        self.appended = 0

    def run(self):
        self.open()
        for name, *arguments in self.steps:
            after = getattr(self, name)(*arguments)
            if after is not None:
                self.states.append(after)
                self.opened.run()
                self.states = [after]
        self.opened.close()

    def open(self):
        self.opened = Opened(DIRECTORY, files=self.files, cache=1, **SIZES)

    def reopen(self):
        self.opened.close()
        self.open()

    def checkpoint(self):
        self.opened.checkpoint()

    def prepare(self):
        for file in self.opened.log.upcoming():
            file.prepare()

    def append(self, count):
        before, bodies, *state = self.states[-1]
        made = [f"{self.appended + n} ".encode() * (n % 5 + 1) for n in range(count)]
        self.appended += count
        self.opened.append(made, term=self.appended // 20 + 1, run=False)
        return (before, bodies + made, *state)

    def truncate(self, kept):
        before, bodies, *state = self.states[-1]
        self.opened.truncate(before + 1 + kept, run=False)
        return (before, bodies[:kept], *state)

    def reset(self, removed):
        before, bodies, *state = self.states[-1]
        self.opened.log.note_committed(before + removed)
        self.opened.submit(self.opened.log.reset(before + removed), run=False)
        return (before + removed, bodies[removed:], *state)

    def reset_beyond_the_end(self):
        before, bodies, *state = self.states[-1]
        begin = before + len(bodies) + 5
        plan = self.opened.log.reset(begin, self.appended // 20 + 1, 77)
        self.opened.submit(plan, run=False)
        return (begin, [], *state)

    def vote(self):
        before, bodies, term, _ = self.states[-1]
        state = HardState(term + 1, f"n{term}")
        self.opened.submit(self.opened.group.hard_states.plan_save(state), run=False)
        return (before, bodies, state.term, state.vote)


def observed(opened):
    bodies = [entry.body for entry in entries_of(opened.log)]
    state = opened.group.hard_state
    return (opened.log.before_begin_index, bodies, state.term, state.vote)


STORY = [
    ("vote",),
    ("append", 3),
    ("append", 9),
    ("prepare",),
    ("checkpoint",),
    ("append", 30),
    ("truncate", 25),
    ("append", 8),
    ("reset", 4),
    ("vote",),
    ("append", 20),
    ("checkpoint",),
    ("reset", 13),
    ("truncate", 20),
    ("reopen",),
    ("append", 12),
    ("truncate", 0),
    ("append", 7),
    ("reset", 7),
    ("append", 5),
    ("reset_beyond_the_end",),
    ("append", 26),
    ("reset", 20),
    ("append", 3),
]


def calls_of(story):
    """The numbers of all calls to the disk that change or sync something."""
    files = SimulatedFileSystem(random.Random(0))
    files.make_directory("/node")
    first = files.calls + 1
    EventHistory(files, story).run()
    return range(first, files.calls + 1)


CALLS = calls_of(STORY)


@pytest.mark.parametrize("survival", ["none", "all", "random"])
def test_73_a_crash_at_every_call_leaves_the_log_before_or_after_the_step(survival):
    for call in CALLS:
        files = SimulatedFileSystem(random.Random(f"{survival} {call}"))
        files.survival = survival
        files.make_directory("/node")
        story = EventHistory(files, STORY)
        files.crash_at = call
        with pytest.raises(SimulatedCrash):
            story.run()
        files.restart()
        opened = Opened(DIRECTORY, files=files, cache=1, **SIZES)
        found = observed(opened)
        assert fits(found, story.states), (call, found, story.states)
        assert not opened.log.damaged
        # and it is as good as any other
        opened.append([b"goes on"], term=99)
        opened.close()
        again = Opened(DIRECTORY, files=files, cache=1, **SIZES)
        assert [entry.body for entry in entries_of(again.log)] == [*found[1], b"goes on"]
        again.close()


def test_73_a_crash_while_opening_after_a_crash_changes_nothing_more():
    for call in CALLS:
        generator = random.Random(call)
        files = SimulatedFileSystem(random.Random(f"twice {call}"))
        files.make_directory("/node")
        story = EventHistory(files, STORY)
        files.crash_at = call
        with pytest.raises(SimulatedCrash):
            story.run()
        for _ in range(4):  # each time a little further, or through
            if generator.random() < 0.5:
                files.restart()
            else:
                files.kill()
            files.crash_at = files.calls + generator.randrange(1, 30)
            with suppress(SimulatedCrash):
                Opened(DIRECTORY, files=files, cache=1, **SIZES).close()
            files.crash_at = None
        files.restart()
        opened = Opened(DIRECTORY, files=files, cache=1, **SIZES)
        assert fits(observed(opened), story.states), call
        assert not opened.log.damaged
        opened.close()


def fits(found, states):
    """Whether a state is one of those possible; of an append, any part may have been kept."""
    if found in states:
        return True
    before, after = states[0], states[-1]
    is_part = before[1] == found[1][: len(before[1])] and found[1] == after[1][: len(found[1])]
    return is_part and found[0] == before[0] == after[0] and found[2:] == before[2:]


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_a_failed_call_ends_the_promises_and_loses_nothing_reported(kind):
    for call in CALLS:
        files = SimulatedFileSystem(random.Random(f"{kind} {call}"))
        files.make_directory("/node")
        story = EventHistory(files, STORY)
        files.fail(call, kind)
        try:
            story.run()
        except StorageError:
            files.power_loss()
        else:
            continue
        opened = Opened(DIRECTORY, files=files, cache=1, **SIZES)
        assert fits(observed(opened), story.states), call
        opened.close()


def small_store():
    """A store of three terms over several files, with a checkpoint in the middle; and its copy."""
    files = SimulatedFileSystem(random.Random(1))
    files.make_directory("/node")
    for directory in (DIRECTORY, "/node/other"):
        opened = Opened(directory, files=files, cache=1, **SIZES)
        opened.submit(opened.group.hard_states.plan_save(HardState(3, "n1")))
        for term in (1, 2, 3):
            opened.append([f"{term}.{n} ".encode() * (n % 4) for n in range(12)], term=term)
            if term == 2:
                opened.log.note_committed(20)
                opened.checkpoint()
        opened.close()
    return files


def every_byte(files):
    """Yield each byte that is used; of the zeros that fill slots up, and of the reserve, some."""
    for room in ("", "/data", "/index"):
        for name in files.names(DIRECTORY + room):
            path = f"{DIRECTORY}{room}/{name}"
            if name not in ("data", "index"):
                step = 64 * 1024 if name == "quorumlog.reserve" else 1  # nobody reads that
                for offset in range(0, files.open(path).size(), step):
                    is_filling = name in SLOT_FILES and offset % SLOT_SIZE >= SLOT_USED
                    if not is_filling or offset % FILLING_STEP == 0:
                        yield path, offset


def read_all(log):
    """Return index → bytes of what can be read."""
    served = {}
    index = log.before_begin_index + 1
    last = log.end_index
    while index <= log.end_index:
        try:
            entry_run = log.read(index, last, 1 << 20)
        except CorruptionError as error:
            last = error.index - 1  # what lies before it can be read
            if last < index:
                index, last = error.index + 1, log.end_index
            continue
        block = block_from_index_records(entry_run.data, entry_run.records)
        for place, size in zip(block.offsets.tolist(), block.sizes.tolist(), strict=True):
            served[index] = bytes(entry_run.data[place : place + size])
            index += 1
        last = log.end_index if last < index else last
    return served


@pytest.mark.parametrize("part", range(FLIP_PARTS))
def test_74_every_flipped_byte_of_every_file_is_detected_or_harmless(part):
    """All bytes take minutes on a busy machine: they come in parts."""
    original = small_store()
    reference = Opened("/node/other", files=original.copy(random.Random(2)), cache=1, **SIZES)
    expected = read_all(reference.log)
    blocks = {index: stored_block(reference.log, index, index) for index in expected}
    refused = []
    for path, offset in islice(every_byte(original), part, None, FLIP_PARTS):
        files = original.copy(random.Random(3))
        files.flip(path, offset, 1 << offset % 8)
        try:
            opened = Opened(DIRECTORY, files=files, cache=1, **SIZES)
        except StorageError:
            refused.append((path.rsplit("/", 1)[-1], offset))
            continue
        where = (path, offset)
        log = opened.log
        assert (log.before_begin_index, log.end_index) == (-1, 35), where
        assert log.term_runs() == [(1, 0), (2, 12), (3, 24)], where
        assert opened.group.hard_state == HardState(3, "n1"), where
        served = read_all(log)
        assert without_pos(served).items() <= without_pos(expected).items(), where
        for index in set(expected) - set(served):
            if log.damaged.range_at(index) is None:
                opened.submit(log.quarantine(index))
            if log.damaged.range_at(index) is not None:
                opened.submit(log.repair(blocks[index]))
            assert without_pos(read_all(log)) == without_pos(expected), where
        opened.close()
    assert {name for name, _ in refused} <= {"quorumlog.identity"}


def without_pos(entries):
    """`pos` in a header is the appending leader's, is covered by no CRC and used for nothing."""
    return {index: data[:24] + data[32:] for index, data in entries.items()}
