"""What surrounds one part of a replica in its unit test: notes what the part says and sends.

A test derives its own `Surroundings` where it answers differently, and gives `context` to the part.
"""

import itertools
from types import SimpleNamespace

from quorumlog.model.limits import Limits
from quorumlog.node.replica.context import ReplicaContext


class _Context(ReplicaContext):
    """Notes alarms instead of logging them."""

    def raise_alarm(self, text):
        self.shell.alarms.append(text)


class Surroundings:
    """Shell and environment of one part; `jobs` are what it gave to threads."""

    def __init__(self, config, *, core=None, log=None, limits=None):
        self.now_ms = 0
        self.steps, self.sent, self.jobs, self.alarms = [], [], [], []
        environment = SimpleNamespace(
            now_ms=lambda: self.now_ms,
            now_us=lambda: self.now_ms * 1_000,
            wall_ms=lambda: self.now_ms,
            nonce=itertools.count(1).__next__,
            disk=SimpleNamespace(submit=self.submit, queued_bytes=0),
            network=SimpleNamespace(send=self.send),
            defer=lambda call: None,
            wake_at=lambda due_ms: None,
            executor=SimpleNamespace(run=lambda *job: self.jobs.append(job)),
            append_hook=None,
        )
        self.context = _Context(config, limits or Limits(), core, log, environment, self)

    def submit(self, owner, token, plan):
        """Nothing is written unless a test says how."""

    def send(self, peer, message, attachments=(), *, bulk=False):
        self.sent.append((message, b"".join(attachments)))
        return True

    def answer_to(self, kind, **fields):
        """Return an answer of the peer that was asked last, with the number of its request."""
        asked = self.sent[-1][0]
        return kind(
            group="g",
            local_id=asked.remote_id,
            remote_id="n0",
            term=1,
            request_id=asked.request_id,
            **fields,
        )

    def step(self, event, **bytes_of):
        self.steps.append(event)

    def tick(self):
        """Let the part do what is due now."""
        self.context.timers.tick()

    def update_eligibility(self):
        """Tests look at what the part says of itself."""

    def check_damage_later(self):
        """There is no damage here."""

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
