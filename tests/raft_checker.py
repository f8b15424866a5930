"""What must be true of a whole group of replicas, whatever happens."""

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import PushResponse, VoteRequest, VoteResponse


class SafetyChecker:
    """Remembers who led and what was committed; asked after every step, raises AssertionError."""

    def __init__(self):
        self.leaders = {}
        self.committed = {}
        self.acknowledged = set()

    def elected(self, replica, term):
        me = (replica.id, replica.incarnation)
        known = self.leaders.setdefault(term, me)
        assert known == me, f"election safety: {known} and {me} lead term {term}"
        for index, (entry, commit_term) in self.committed.items():
            if commit_term < term and index > replica.log.base:
                assert index <= replica.log.end, f"leader completeness: {index} is missing"
                assert replica.log.at(index) == entry, f"leader completeness: {index} differs"

    def advanced(self, replica, first, last):
        for index in range(max(first, replica.log.base + 1), last + 1):
            entry = replica.log.at(index)
            known, _ = self.committed.setdefault(index, (entry, replica.core.term))
            assert known == entry, f"state machine safety: {replica.id} differs at {index}"

    def logs_match(self, replica, others):
        mine = replica.log
        for other in others:
            index = min(mine.end, other.log.end)
            lowest = max(mine.base, other.log.base)
            while index > lowest and mine.at(index).term != other.log.at(index).term:
                index -= 1
            if index > lowest:
                same = mine.at(index) == other.log.at(index)
                assert same, f"log matching: {replica.id} and {other.id} at {index}"

    def promised(self, replica, message):
        state = replica.stored_state
        if isinstance(message, VoteResponse):
            if message.vote_result.accepts and not message.pre_vote:
                assert state.term >= message.request_term, "vote not durable"
                if state.term == message.request_term:
                    assert state.vote == message.remote_id, "vote not durable"
        elif isinstance(message, PushResponse) and message.code is ResponseCode.SUCCESS:
            index = message.match_index
            assert replica.stored.end >= index, "promise before persist"
            if index > replica.log.base:
                assert replica.stored.at(index) == replica.log.at(index), "other entry durable"
        ahead = isinstance(message, VoteRequest) and message.pre_vote
        known = max([state.term, *(entry.term for entry in replica.log.entries[-1:])])
        assert ahead or message.term <= known, "term not durable"

    def durable(self, replica):
        index = replica.core.durable_index
        assert index <= replica.stored.end, "durable_index is ahead of the disk"
        if index > replica.log.base:
            assert replica.stored.at(index) == replica.log.at(index), "another entry is durable"

    def finished(self):
        kept = {entry.payload for entry, _ in self.committed.values()}
        assert self.acknowledged <= kept, "an acknowledged append is missing"
