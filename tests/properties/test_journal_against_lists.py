"""Groups that share a journal against plain lists, with the machine stopped at any call.

Appends to several groups at a time, truncations, resets, checkpoints, groups that are emptied,
steps of the settler in between, orderly stops, kills and losses of power: what was reported is
there afterwards, in order, what was removed is not, and no group notices another one's damage.
"""

from itertools import pairwise
from random import Random

import pytest

from journal_access import NODE, SMALL, JournaledNode, new_disk
from quorumlog.model.errors import NoSpaceError
from quorumlog.sim.disk import SimulatedCrash

NAMES = ("a", "b", "c", "d")


class Model:
    """What one group's log may read as: bodies after `before`; `staged` may be there or not.

    `states` are the states that a crash may leave, the first one reported.
    """

    def __init__(self):
        self.before = -1
        self.bodies = []
        self.committed = -1
        self.states = [(-1, [])]

    @property
    def end(self):
        return self.before + len(self.bodies)

    def staged(self):
        self.states.append((self.before, list(self.bodies)))

    def reported(self):
        self.states = [(self.before, list(self.bodies))]


class Run:
    def __init__(self, seed):
        self.random = Random(seed)
        self.files = new_disk(seed, survival="random")
        self.models = {name: Model() for name in NAMES}
        self.number = 0
        self.records = self.now_ms = 0
        self.start()

    def start(self):
        self.node = JournaledNode(self.files, NAMES, limits=SMALL, now_ms=lambda: self.now_ms)
        assert not self.node.settled.failed
        for name in NAMES:
            log, model = self.node.log(name), self.models[name]
            assert not log.damaged, name
            found = (log.before_begin_index, self.node.bodies(name))
            assert self._fits(found, model.states), (name, found, model.states)
            model.before, model.bodies = found
            model.committed = min(model.committed, model.end)
            model.reported()
            if model.committed >= 0:
                log.note_committed(model.committed)

    def _fits(self, found, states):
        """Whether it is what was reported, or between that and what was staged."""
        before, bodies = found
        if found in states:
            return True
        for (older, left), (newer, right) in pairwise(states):
            grows = older == newer == before and right[: len(left)] == left
            if grows and len(left) <= len(bodies) and right[: len(bodies)] == bodies:
                return True
        return False

    # -- what happens -----------------------------------------------------------------------

    def step(self):
        random = self.random
        for name in random.sample(NAMES, random.randint(1, len(NAMES))):
            for _ in range(random.choice((1, 1, 1, 2))):
                self.change(name)
        if random.random() < 0.2:
            self.node.store.idle()
        self.node.commit()
        self.now_ms += random.choice((1, 20, 60))
        for model in self.models.values():
            model.reported()
        if random.random() < 0.6:
            self.node.steps.take(random.randint(1, 6))

    def change(self, name):
        random, model, log = self.random, self.models[name], self.node.log(name)
        kind = random.random()
        if kind < 0.8 or not model.bodies:
            bodies = []
            for _ in range(random.choice((1, 1, 2, 4))):
                self.number += 1
                bodies.append(b"%d" % self.number + b"." * random.choice((0, 50, 50, 400, 900)))
            self.node.stage(name, bodies)
            model.bodies += bodies
        elif kind < 0.87:
            first = max(model.before, model.committed) + 1
            if first <= model.end:
                index = random.randint(first, model.end)
                self.node.plans.append(log.truncate(index))
                del model.bodies[index - model.before - 1 :]
        elif kind < 0.92:
            self.node.checkpoint(name)
        elif kind < 0.97:
            durable = model.states[0][0] + len(model.states[0][1])
            committed = min(durable, model.end)
            if committed > model.before:
                model.committed = max(model.committed, random.randint(model.before + 1, committed))
                log.note_committed(model.committed)
                index = random.randint(model.before, model.committed)
                self.node.plans.append(log.reset(index))
                if index > model.before:
                    del model.bodies[: index - model.before]
                    model.before = index
        else:
            index = model.end + random.randint(1, 20)
            self.node.plans.append(log.reset(index, 1, random.randint(1, 1 << 20)))
            model.before, model.bodies, model.committed = index, [], index
        model.staged()

    def crash(self):
        """Stop in the middle of a call, or between two; the machine or only the process."""
        random = self.random
        self.files.crash_at = None
        kind = random.random()
        if kind < 0.2:
            self.node.close()
            self.files.kill()
        elif kind < 0.45:
            self.files.kill()
        elif kind < 0.6:
            self.files.power_loss()
        else:
            self.files.crash_at = self.files.calls + random.randint(1, 60)
            try:
                for _ in range(40):
                    self.step()
                self.node.close()
                self.files.power_loss()
            except SimulatedCrash:
                self.files.restart()
        self.files.crash_at = None
        while random.random() < 0.3:  # opening is interrupted, too
            self.files.kill()
            self.files.crash_at = self.files.calls + random.randint(1, 150)
            try:
                JournaledNode(self.files, NAMES, limits=SMALL)
            except SimulatedCrash:
                self.files.restart()
            self.files.crash_at = None
        self.files.kill()
        self.start()


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_call_loses_nothing_that_was_reported(seed, caplog):
    run = Run(seed)
    for _ in range(12):
        for _ in range(run.random.randint(1, 25)):
            run.step()
            run.records = max(run.records, run.node.journal.place[1])
        run.crash()
    assert run.records > 1
    assert "are damaged" not in caplog.text, "a crash is no damage"


def test_a_full_disk_stops_no_group_that_needs_no_room():
    run = Run(1)
    for _ in range(20):
        run.step()
    run.files.total_bytes = run.files.total_bytes - run.files.free_bytes
    try:
        for _ in range(5):
            for name in NAMES:
                run.node.stage(name, [b"x"])
            run.node.commit()
    except NoSpaceError:
        pass
    run.files.total_bytes = 1 << 40
    run.files.kill()
    again = JournaledNode(run.files, NAMES)
    assert not again.settled.failed
    assert run.files.names(f"{NODE}/quorumlog.journal")
