"""A group played by hand: messages wait in a queue until they are delivered, disks until told.

Commands are those of tests/transcripts; `Stage.play` carries one out and returns what happened.
"""

import random

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushRequest,
    PushResponse,
    TimeoutNowRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.raft import events as ev
from quorumlog.raft.dispatcher import COMMIT_DELAY_MS
from raft_members import Group
from raft_messages import log_of

ROUNDS_MAX = 200


class Stage(Group):
    """`queue` holds what is under way, in the order in which it was sent."""

    def __init__(self, count, *, founded, **options):
        super().__init__(count, founded=founded, **options)
        self.sync_ms = self.delay_ms = (0, 0)
        self.queue, self.lines = [], []
        self.quiet = False
        self.waiting, self.busy = [], {}

    def record(self, replica, text):
        self.lines.append(f"  {replica.id} {text}")

    # -- instead of time ----------------------------------------------------------------------

    def _later(self, delay_ms, action, *arguments):
        if action == self._arrive:
            self.queue.append(arguments)
        elif action != self._tick:
            self.waiting.append((action, arguments))

    def work(self):
        """Let disks that are not held write, and entries be read."""
        kept = []
        while self.waiting:
            action, arguments = self.waiting.pop(0)
            replica = arguments[0]
            if action == self._synced and replica.id in self.busy:
                kept.append((action, arguments))
            else:
                action(*arguments)
        self.waiting = kept

    def advance(self, replica, duration_ms):
        self.now += duration_ms
        self.step(replica, ev.Ticked())

    # -- commands -----------------------------------------------------------------------------

    def play(self, words):
        """`quiet` in front leaves out messages, `silent` everything."""
        self.lines = []
        manner = words[0] if words[0] in ("quiet", "silent") else None
        self.quiet = manner is not None
        verb, *arguments = words[1:] if manner else words
        getattr(self, "do_" + verb.replace("-", "_"))(*arguments)
        self.work()
        return [] if manner == "silent" else self.lines

    def do_give(self, node_id, *runs):
        """`1x3 2x2 term=4`: three entries of term 1 and two of 2; the newest term known is 4."""
        replica = self.nodes[node_id]
        pairs = [run.split("x") for run in runs if "x" in run]
        log = log_of(*[(int(term), int(count)) for term, count in pairs])
        terms = [int(run.removeprefix("term=")) for run in runs if run.startswith("term=")]
        replica.stored = log
        replica.stored_state = HardState(max([log.runs()[-1][0] if pairs else 0, *terms]), None)

    def do_start(self, *node_ids):
        self.start(*node_ids)

    def do_campaign(self, node_id):
        replica = self.nodes[node_id]
        self.now = max(self.now, replica.core.next_deadline_ms())
        self.step(replica, ev.Ticked())

    def do_elect(self, node_id):
        self.do_campaign(node_id)
        self.work()
        self.do_stabilize()

    def do_tick(self, node_id, duration_ms):
        self.advance(self.nodes[node_id], int(duration_ms))

    def do_propose(self, node_id, count="1"):
        self.propose(node_id, int(count))

    def do_deliver(self, *ends):
        """`all`, or `n0 n1`: what n0 sent to n1; `n0 *` and `* n1` stand for any."""
        for message, entries in self.take(ends):
            self.bring(message, entries)

    def do_deliver_one(self, source, target):
        """The oldest that the one sent to the other."""
        first, *later = self.take((source, target))
        self.queue = later + self.queue
        self.bring(*first)

    def do_drop(self, *ends):
        for message, _ in self.take(ends):
            if not self.quiet:
                self.lines.append(f"lost: {describe(message)}")

    def do_stabilize(self, *among):
        """Deliver whatever is under way (among these) until nothing is, late commits included."""
        for _ in range(ROUNDS_MAX):
            chosen = self.take(("*", "*"), among)
            if not chosen and not self.tell_commits():
                return
            for message, entries in chosen:
                self.bring(message, entries)
        raise AssertionError("messages go round in circles")

    def tell_commits(self):
        """Let the moment pass that leaders wait before they tell idle followers of a commit."""
        due = [
            replica
            for replica in self.nodes.values()
            if replica.up
            and replica.core.role is Role.LEADER
            and replica.core.next_deadline_ms() == self.now + COMMIT_DELAY_MS
        ]
        for replica in due:
            self.advance(replica, COMMIT_DELAY_MS)
            self.work()
        return due

    def take(self, ends, among=()):
        source, target = ("*", "*") if ends == ("all",) else ends
        chosen, left = [], []
        for item in self.queue:
            message = item[0]
            fits = source in ("*", message.local_id) and target in ("*", message.remote_id)
            inside = not among or {message.local_id, message.remote_id} <= set(among)
            (chosen if fits and inside else left).append(item)
        self.queue = left
        return chosen

    def bring(self, message, entries):
        blocked = (message.local_id, message.remote_id) in self.cuts
        gone = message.remote_id not in self.nodes or not self.nodes[message.remote_id].up
        if not self.quiet:
            self.lines.append(f"{'lost: ' if blocked or gone else ''}{describe(message)}")
        self._arrive(message, entries)
        self.work()

    def do_isolate(self, node_id):
        self.isolate(node_id)

    def do_cut(self, source, target):
        self.cut(source, target, both=False)

    def do_heal(self):
        self.heal()

    def do_crash(self, node_id):
        self.random = random.Random(0)
        self.crash(node_id)
        self.waiting = [item for item in self.waiting if item[1][0].id != node_id]
        self.busy.pop(node_id, None)

    def do_wipe(self, node_id):
        self.wipe(node_id)

    def do_restart(self, node_id):
        self.start(node_id)

    def do_add_node(self, node_id):
        self.start_stranger(node_id)

    def do_transfer(self, node_id, target):
        self.transfer(target, at=node_id)

    def do_change(self, node_id, verb, target):
        if verb in ("add", "join"):
            self.add(target, joining=verb == "join", at=node_id)
        else:
            getattr(self, verb)(target, at=node_id)

    def do_read(self, node_id):
        self.read(node_id)

    def do_hold_disk(self, node_id):
        """What is written from now on is not durable until `release-disk`."""
        self.busy[node_id] = True

    def do_sync_once(self, node_id):
        """What was given to a held disk first becomes durable; later writes go on waiting."""
        for item in [item for item in self.waiting if item[1][0].id == node_id][:1]:
            self.waiting.remove(item)
            item[0](*item[1])

    def do_release_disk(self, node_id):
        del self.busy[node_id]

    def do_queue(self):
        self.lines += [describe(message) for message, _ in self.queue]

    def do_status(self, *node_ids):
        for replica in self.nodes.values():
            if replica.up and (not node_ids or replica.id in node_ids):
                core = replica.core
                text = f"{replica.id} {core.role.value} term {core.term} vote {core.vote or '-'}"
                text += f" leader {core.leader_id or '-'} end {core.end_index}"
                text += f" durable {core.durable_index} committed {core.committed_index}"
                self.lines.append(text)

    def do_log(self, *node_ids):
        """Terms of the entries; a bar after the last that is known to be committed."""
        for replica in self.nodes.values():
            if replica.up and (not node_ids or replica.id in node_ids):
                terms = [str(entry.term) for entry in replica.log.entries]
                terms.insert(replica.core.committed_index + 1, "|")
                self.lines.append(f"{replica.id}: {' '.join(terms)}")

    def do_members(self, *node_ids):
        for replica in self.nodes.values():
            if replica.up and (not node_ids or replica.id in node_ids):
                self.lines.append(f"{replica.id}: {spoken(replica.core.membership)}")

    # -- what happened ------------------------------------------------------------------------

    def _RoleChanged(self, replica, effect, event, entries):  # noqa: N802
        leader = "" if effect.role is Role.LEADER else f", leader {effect.leader_id or '-'}"
        self.record(replica, f"is {effect.role.value} in term {effect.term}{leader}")
        super()._RoleChanged(replica, effect, event, entries)

    def _AppendNoop(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"appends {effect.index} of term {effect.term}: noop")
        super()._AppendNoop(replica, effect, event, entries)

    def _AppendMembership(self, replica, effect, event, entries):  # noqa: N802
        names = spoken(effect.membership)
        self.record(replica, f"appends {effect.index} of term {effect.term}: members {names}")
        super()._AppendMembership(replica, effect, event, entries)

    def _AppendProposal(self, replica, effect, event, entries):  # noqa: N802
        span = spanned(effect.first_index, effect.last_index)
        self.record(replica, f"appends {span} of term {effect.term}")
        super()._AppendProposal(replica, effect, event, entries)

    def _AppendReceived(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"stores {spanned(effect.first_index, effect.last_index)}")
        super()._AppendReceived(replica, effect, event, entries)

    def _TruncateLog(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"removes {effect.from_index} and what follows")
        super()._TruncateLog(replica, effect, event, entries)

    def _MembershipChanged(self, replica, effect, event, entries):  # noqa: N802
        if not isinstance(event, ev.ChangeRequested):
            names = spoken(effect.membership)
            self.record(replica, f"takes membership of {effect.index}: {names}")
        super()._MembershipChanged(replica, effect, event, entries)

    def _Committed(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"commits {effect.index}")
        super()._Committed(replica, effect, event, entries)

    def _RefuseProposal(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"refuses an append: {effect.code.name}")
        super()._RefuseProposal(replica, effect, event, entries)

    def _Finished(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"answers {effect.code.name}{': ' * bool(effect.text)}{effect.text}")
        super()._Finished(replica, effect, event, entries)

    def _ReadReady(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"answers the read: up to {effect.index}")
        super()._ReadReady(replica, effect, event, entries)

    def _Alarm(self, replica, effect, event, entries):  # noqa: N802
        self.record(replica, f"ALARM {effect.text.partition(': ')[2]}")
        super()._Alarm(replica, effect, event, entries)


# -- in words -------------------------------------------------------------------------------------


def spanned(first, last):
    return str(first) if first == last else f"{first}-{last}"


def spoken(membership: Membership):
    text = " ".join(membership.voters)
    if membership.is_joint:
        text += f", before {' '.join(membership.outgoing)}"
    if membership.learners:
        text += f", learners {' '.join(membership.learners)}"
    return text


def describe(message):
    """One line for one message."""
    return f"{message.local_id} > {message.remote_id} {_said(message)}"


def _said(message):
    return _WORDS[type(message)](message)


def _vote_request(message):
    kind = "would-vote?" if message.pre_vote else "vote?"
    chosen = " chosen by the leader" if message.transfer else ""
    end = f"{message.ledger_end_index} of term {message.ledger_end_term}"
    return f"{kind} term {message.term}, log ends at {end}{chosen}"


def _vote_response(message):
    kind = "would-vote" if message.pre_vote else "vote"
    return f"{kind} term {message.request_term}: {message.vote_result.name}"


def _heartbeat(message):
    return f"heartbeat {message.round} term {message.term}"


def _heartbeat_response(message):
    return f"heartbeat {message.round}: {_code(message)} end {message.end_index}"


def _timeout_now(message):
    return f"take-over term {message.term}, log ends at {message.end_index}"


def _push(message):
    at = f"{message.prev_index} of term {message.prev_term}"
    if message.first_index >= 0:
        span = spanned(message.first_index, message.last_index)
        return f"APPEND {span} behind {at}, committed {message.commit_index}"
    if message.type.name == "COMMIT":
        return f"COMMIT {message.commit_index}"
    return f"{message.type.name} at {at}"


def _push_response(message):
    told = f"match {message.match_index}" if message.match_index >= 0 else ""
    if message.code is ResponseCode.INCONSISTENT_STATE:
        told = f"end {message.end_index}"
        if message.x_term >= 0:
            told = f"term {message.x_term} from {message.x_index} on"
    return f"{message.type.name}: {_code(message)} {told}".rstrip()


_WORDS = {
    VoteRequest: _vote_request,
    VoteResponse: _vote_response,
    HeartBeatRequest: _heartbeat,
    HeartBeatResponse: _heartbeat_response,
    TimeoutNowRequest: _timeout_now,
    PushRequest: _push,
    PushResponse: _push_response,
}
"""How each message is told in a transcript."""


def _code(message):
    return "ok" if message.code is ResponseCode.SUCCESS else message.code.name
