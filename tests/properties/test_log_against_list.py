"""The log in files against a plain list, with crashes and reopenings between any two operations.

Appends, truncations, resets, checkpoints, group commits; the process dies, or the machine does,
with writes waiting, at any call to the disk inside a group commit, or right after one. The disk is
simulated: what was not fsynced survives by chance, sector by sector and name by name.
"""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from store_access import Opened

SIZES = {"data_file": 2_000, "index_file": 32 * 8}
DIRECTORY = "/node/g"


class LogMachine(RuleBasedStateMachine):
    """`model` is what the log should read as: index → (term, body), behind `before`.

    `attempted` are the states after each step since the last group commit, the first one durable.
    """

    @initialize(cache=st.sampled_from([1, 500, 1 << 20]), seed=st.integers(0, 1 << 32))
    def start(self, cache, seed):
        self.files = SimulatedFileSystem(random.Random(seed))
        self.files.make_directory("/node")
        self.cache = cache
        self.before = -1
        self.model = {}
        self.committed = self.committed_durably = -1
        self.term = 1
        self.counter = 0
        self.open()
        self.attempted = [self.state()]

    def open(self):
        self.opened = Opened(DIRECTORY, cache=self.cache, files=self.files, **SIZES)
        self.opened.log.note_committed(self.committed)

    def state(self):
        return (self.before, dict(self.model))

    @property
    def end(self):
        return max(self.model, default=self.before)

    # -- operations -------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12), step=st.integers(0, 1))
    def append(self, sizes, step):
        self.term += step
        bodies = []
        for size in sizes:
            self.counter += 1
            bodies.append(f"{self.counter}:".encode().ljust(size, b"."))
        self.opened.append(bodies, term=self.term, run=False)
        first = self.end + 1
        self.model |= {first + n: (self.term, body) for n, body in enumerate(bodies)}
        self.attempted.append(self.state())

    @precondition(lambda self: self.end > max(self.committed, self.before))
    @rule(data=st.data())
    def truncate(self, data):
        first = max(self.committed, self.before) + 1
        from_index = data.draw(st.integers(first, self.end))
        self.opened.truncate(from_index, run=False)
        self.model = {index: entry for index, entry in self.model.items() if index < from_index}
        self.attempted.append(self.state())

    @precondition(lambda self: self.committed > self.before)
    @rule(data=st.data())
    def remove_the_first(self, data):
        self.before = data.draw(st.integers(self.before + 1, self.committed))
        self.opened.submit(self.opened.log.reset(self.before), run=False)
        self.model = {index: entry for index, entry in self.model.items() if index > self.before}
        self.attempted.append(self.state())

    @rule(further=st.integers(1, 30))
    def go_on_behind_the_end(self, further):
        """As after the installation of a snapshot."""
        self.before = self.end + further
        self.opened.submit(self.opened.log.reset(self.before, self.term, 99), run=False)
        self.model = {}
        self.committed = self.before
        self.attempted.append(self.state())

    @rule()
    def prepare_files(self):
        for file in self.opened.log.upcoming():
            file.prepare()

    @rule()
    def group_commit(self):
        self.opened.run()
        self.attempted = [self.state()]
        self.committed_durably = self.committed

    @precondition(lambda self: self.end > self.committed)
    @rule(data=st.data())
    def commit(self, data):
        self.group_commit()
        self.committed = data.draw(st.integers(max(self.committed, self.before), self.end))
        self.committed_durably = self.committed
        self.opened.log.note_committed(self.committed)

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

    # -- crashes ----------------------------------------------------------------------------

    @rule(power=st.booleans(), survival=st.sampled_from(["random", "none", "all"]))
    def crash_with_writes_waiting(self, power, survival):
        """Nothing of what waits was written: the log is as it was after the last group commit."""
        self.stop(power, survival)
        self.attempted = self.attempted[:1]
        self.recovered()

    @precondition(lambda self: self.opened.waiting)
    @rule(
        call=st.integers(1, 40),
        power=st.booleans(),
        survival=st.sampled_from(["random", "none", "all"]),
    )
    def crash_inside_a_group_commit(self, call, power, survival):
        self.files.crash_at = self.files.calls + call
        try:
            self.opened.run()
        except SimulatedCrash:
            pass
        else:
            self.attempted = [self.state()]
        self.files.crash_at = None
        self.stop(power, survival)
        self.recovered()

    def stop(self, power, survival):
        self.files.survival = survival
        if power:
            self.files.power_loss()
        else:
            self.files.kill()

    def recovered(self):
        self.committed = self.committed_durably
        self.open()
        log = self.opened.log
        found = {entry.index: (entry.term, entry.body) for entry in self.opened.entries()}
        state = (log.before_begin_index, found)
        assert any(is_possible(state, self.attempted[: n + 1]) for n in range(len(self.attempted)))
        assert not log.damaged
        self.before, self.model = state
        self.attempted = [self.state()]
        self.committed = self.committed_durably = max(self.committed, self.before)
        self.term = max([self.term, *(term for term, _ in found.values())])

    # -- what always holds ------------------------------------------------------------------

    @invariant()
    def reads_as_the_model(self):
        if not hasattr(self, "opened"):
            return
        log = self.opened.log
        assert (log.before_begin_index, log.end_index) == (self.before, self.end)
        entries = self.opened.entries(piece=400)
        assert {entry.index: (entry.term, entry.body) for entry in entries} == self.model
        runs = [
            (term, index)
            for index, (term, _) in sorted(self.model.items())
            if self.model.get(index - 1, (None,))[0] != term
        ]
        assert log.term_runs() == runs
        if entries:
            assert log.end_chain_crc == entries[-1].chain_crc
        assert log.size_bytes >= sum(48 + len(entry.body) for entry in entries)


def is_possible(found, attempted):
    """Whether a crash on the way to the last of these states may leave what was found.

    Everything that was durable and that no step has removed must be there; of what was appended,
    any beginning.
    """
    before, entries = found
    last_before, last = attempted[-1]
    durable = {
        index
        for index, entry in attempted[0][1].items()
        if all(state.get(index) == entry for _, state in attempted)
    }
    return (
        before == last_before
        and all(last.get(index) == entry for index, entry in entries.items())
        and durable <= set(entries)
        and sorted(entries) == list(range(before + 1, before + 1 + len(entries)))
    )


TestLogAgainstList = LogMachine.TestCase
TestLogAgainstList.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
)
