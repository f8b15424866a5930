"""The log in files against a plain list: appends, truncations, checkpoints, crashes, reopening.

A crash drops every write that was not carried out, and may tear the last one that was written but
not yet fsynced: only a prefix of its bytes reached the file.
"""

import shutil
import tempfile
from itertools import takewhile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.storage.files import OsFile
from store_access import Opened

SIZES = {"data_file": 2_000, "index_file": 32 * 8}


class TornWriteError(Exception):
    """The machine stops here, in the middle of a write."""


class LogMachine(RuleBasedStateMachine):
    """`model` is what the log should read as; `attempted` what it was after each step since the
    last group commit: a crash leaves a prefix of one of these, never less than all have in common.
    """

    @initialize(cache=st.sampled_from([1, 500, 1 << 20]))
    def start(self, cache):
        self.directory = Path(tempfile.mkdtemp(prefix="quorumlog-property-"))
        self.cache = cache
        self.model = []
        self.attempted = [[]]
        self.committed = 0
        self.term = 1
        self.counter = 0
        self.open()

    def open(self):
        self.opened = Opened(self.directory / "g", cache=self.cache, **SIZES)

    def teardown(self):
        if hasattr(self, "directory"):
            self.opened.close()
            shutil.rmtree(self.directory)

    # -- operations -------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), step=st.integers(0, 1))
    def append(self, sizes, step):
        self.term += step
        bodies = []
        for size in sizes:
            self.counter += 1
            bodies.append(f"{self.counter}:".encode().ljust(size, b"."))
        self.opened.append(bodies, term=self.term, run=False)
        self.model += [(self.term, body) for body in bodies]
        self.attempted.append(list(self.model))

    @precondition(lambda self: len(self.model) > self.committed)
    @rule(data=st.data())
    def truncate(self, data):
        from_index = data.draw(st.integers(self.committed, len(self.model) - 1))
        self.opened.truncate(from_index, run=False)
        del self.model[from_index:]
        self.attempted.append(list(self.model))

    @rule()
    def group_commit(self):
        self.opened.run()
        self.attempted = [list(self.model)]

    @rule(data=st.data())
    def commit(self, data):
        self.group_commit()
        self.committed = data.draw(st.integers(self.committed, len(self.model)))
        if self.committed:
            self.opened.log.note_committed(self.committed - 1)

    @rule()
    def checkpoint(self):
        self.group_commit()
        self.opened.checkpoint()

    @rule()
    def clean_restart(self):
        self.checkpoint()
        self.opened.close()
        self.open()
        assert self.opened.group.report.cut_bytes == 0

    @rule()
    def crash_with_writes_waiting(self):
        """Nothing of what waits was written: the log is as it was after the last group commit."""
        self.opened.close()
        self.open()
        self.recovered(self.attempted[:1])
        assert len(self.model) == len(self.attempted[0])

    @precondition(lambda self: self.opened.waiting)
    @rule(written=st.integers(0, 3_000))
    def crash_inside_a_group_commit(self, written):
        """Only so many bytes of the group commit reach the files."""
        budget = [written]
        whole = OsFile.write_at

        def torn(file, buffers, offset):
            raw = b"".join(bytes(buffer) for buffer in buffers)
            kept = raw[: budget[0]]
            budget[0] -= len(kept)
            if kept:
                whole(file, [kept], offset)
            if len(kept) < len(raw):
                raise TornWriteError

        OsFile.write_at = torn
        try:
            self.opened.run()
        except TornWriteError:
            pass
        finally:
            OsFile.write_at = whole
        self.opened.close()
        self.open()
        self.recovered(self.attempted)

    def recovered(self, attempted):
        found = [(entry.term, entry.body) for entry in self.opened.entries()]
        in_common = attempted[0]
        for whole in attempted[1:]:
            pairs = zip(in_common, whole, strict=False)
            in_common = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        assert found[: len(in_common)] == in_common
        assert any(whole[: len(found)] == found for whole in attempted)
        self.model = found
        self.attempted = [list(found)]
        self.term = max([self.term, *(term for term, _ in found)])

    # -- what always holds ------------------------------------------------------------------

    @invariant()
    def reads_as_the_model(self):
        if not hasattr(self, "opened"):
            return
        log = self.opened.log
        assert log.end_index == len(self.model) - 1
        entries = self.opened.entries(piece=400)
        assert [(entry.term, entry.body) for entry in entries] == self.model
        runs = [
            (term, index)
            for index, (term, _) in enumerate(self.model)
            if index == 0 or self.model[index - 1][0] != term
        ]
        assert log.term_runs() == runs
        if entries:
            assert log.end_chain_crc == entries[-1].chain_crc


TestLogAgainstList = LogMachine.TestCase
TestLogAgainstList.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
