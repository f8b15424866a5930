"""Changing who belongs to a group, one member at a time, by joint consensus (Raft 6).

A learner is added or removed with one entry, since learners count towards no majority. A change of
voters takes two entries: the joint membership, which needs a majority of the old voters and one of
the new voters, and, once that is committed, the final membership. A new leader finishes a change
that it finds half done (R15, R16).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from quorumlog.model.codes import ResponseCode
from quorumlog.model.membership import MEMBERS_MAX, Member, Membership
from quorumlog.model.wording import entries_text
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.effects import Finished
from quorumlog.raft.events import AddMember, ChangeRequested, PromoteMember, RemoveMember
from quorumlog.raft.quorum import has_quorum
from quorumlog.raft.state import RaftState

PROMOTE_LAG_MAX = 1_000
"""A learner that lags by more entries than this has not caught up."""


class MembershipChange:
    """The membership changes of one leader's term; `append` appends an entry that names one."""

    def __init__(
        self,
        state: RaftState,
        dispatchers: Mapping[str, Dispatcher],
        append: Callable[[Membership], None],
    ) -> None:
        self._state = state
        self._dispatchers = dispatchers
        self._append = append
        self._request_id: int | None = None
        self._lost: set[str] = set()

    @property
    def is_running(self) -> bool:
        """Whether the newest membership is not committed, or not final."""
        memberships = self._state.memberships
        return memberships.index > self._state.committed_index or memberships.current.is_joint

    def request(self, event: ChangeRequested) -> None:
        """Start the change that was asked for, or say why not."""
        change = event.change
        if self.is_running:
            code, text = ResponseCode.CHANGE_IN_PROGRESS, "another change of members is under way"
        elif isinstance(change, AddMember):
            code, text = self._add(change.member)
        elif isinstance(change, PromoteMember):
            code, text = self._promote(change.node_id)
        else:
            code, text = self._remove(change)
        if code is ResponseCode.SUCCESS:
            self._request_id = event.request_id
        else:
            self._state.emit(Finished(event.request_id, code, text))

    def committed(self) -> None:
        """The committed index rose: take the next step of a change, or report its end."""
        state = self._state
        if state.memberships.index > state.committed_index:
            return
        current = state.memberships.current
        if current.is_joint:
            self._append(final_membership(current))
        elif self._request_id is not None:
            state.emit(Finished(self._request_id, ResponseCode.SUCCESS, ""))
            self._request_id = None

    def abandon(self) -> None:
        """Leadership ended: the change that was asked for may or may not happen."""
        if self._request_id is not None:
            text = "leadership ended before the change was committed; it may still be"
            self._state.emit(Finished(self._request_id, ResponseCode.TERM_CHANGED, text))
            self._request_id = None

    def tick(self) -> None:
        """Start changes unasked: promote learners that caught up, readmit emptied voters."""
        if self.is_running:
            return
        for member in self._state.memberships.current.members:
            dispatcher = self._dispatchers.get(member.node_id)
            if dispatcher is None:
                continue
            if member.joining and self._not_ready(member, dispatcher) is None:
                self._promote(member.node_id)
                return
            if not member.may_be(dispatcher.contact.incarnation):
                self._readmit(member)
                return

    # -- the changes --------------------------------------------------------------------------

    def _add(self, member: Member) -> tuple[ResponseCode, str]:
        current = self._state.memberships.current
        known = current.member(member.node_id)
        if current.is_voter(member.node_id):
            return ResponseCode.REPEATED_REQUEST, f"{member.node_id} is a voter already"
        if known is None and len(current.members) >= MEMBERS_MAX:
            return ResponseCode.UNEXPECTED_ARGUMENT, f"a group has at most {MEMBERS_MAX} members"
        for other in current.members:
            if member.address and other.address == member.address and other != known:
                text = f"{member.address} is the address of {other.node_id}, which is a member"
                return ResponseCode.UNEXPECTED_ARGUMENT, text
        if known == member:
            return ResponseCode.REPEATED_REQUEST, f"{member.node_id} is a learner already"
        self._append(current.with_member(member))
        return ResponseCode.SUCCESS, ""

    def _promote(self, node_id: str) -> tuple[ResponseCode, str]:
        current = self._state.memberships.current
        member, dispatcher = current.member(node_id), self._dispatchers.get(node_id)
        if member is None:
            return ResponseCode.UNKNOWN_MEMBER, f"{node_id} is no member: add it first"
        if current.is_voter(node_id) or dispatcher is None:
            return ResponseCode.REPEATED_REQUEST, f"{node_id} is a voter already"
        reason = self._not_ready(member, dispatcher)
        if reason is not None:
            return ResponseCode.MEMBER_NOT_READY, reason
        voter = msgspec.structs.replace(
            member, incarnation=dispatcher.contact.incarnation, joining=False
        )
        self._append(current.with_member(voter).with_voters([*current.voters, node_id]))
        return ResponseCode.SUCCESS, ""

    def _not_ready(self, member: Member, dispatcher: Dispatcher) -> str | None:
        """Return why a learner may not vote yet: an empty voter would weaken the majority."""
        if not dispatcher.contact.is_live:
            return f"{member.node_id} does not answer"
        if dispatcher.match_index < 0:
            return f"it is not known yet that {member.node_id} has any entry of this log"
        lag = self._state.log.end_index - dispatcher.match_index
        if lag > PROMOTE_LAG_MAX:
            return f"{member.node_id} is {entries_text(lag)} behind, more than {PROMOTE_LAG_MAX}"
        return None

    def _remove(self, change: RemoveMember) -> tuple[ResponseCode, str]:
        current, node_id = self._state.memberships.current, change.node_id
        if current.member(node_id) is None:
            return ResponseCode.UNKNOWN_MEMBER, f"{node_id} is no member"
        if not current.is_voter(node_id):
            self._append(current.without(node_id))
            return ResponseCode.SUCCESS, ""
        left = tuple(voter for voter in current.voters if voter != node_id)
        if not left:
            return ResponseCode.UNEXPECTED_ARGUMENT, f"{node_id} is the last voter"
        live = self._live(left)
        if not _could_decide(current, left, live):
            text = f"without {node_id} no majority would be left of {', '.join(left)}"
            answering = ", ".join(live) or "nobody"
            return ResponseCode.MEMBER_NOT_READY, f"{text}; of these, {answering} can be reached"
        self._append(current.with_voters(left))
        return ResponseCode.SUCCESS, ""

    def _live(self, voters: Sequence[str]) -> list[str]:
        return [voter for voter in voters if self._is_live(voter)]

    def _is_live(self, voter: str) -> bool:
        dispatcher = self._dispatchers.get(voter)
        member = self._state.memberships.current.member(voter)
        if dispatcher is None or member is None:
            return voter == self._state.config.self_id
        return dispatcher.contact.is_live and member.may_be(dispatcher.contact.incarnation)

    def _readmit(self, member: Member) -> None:
        """A voter came back with an emptied disk: make it a learner that joins again (R14).

        The voter that it was still counts, as an absent one, until a majority without it agreed. To
        let the emptied disk vote at once would be wrong: it could form a majority with others that
        never had an entry which the old disk acknowledged.
        """
        current, node_id = self._state.memberships.current, member.node_id
        if node_id not in self._lost:
            self._lost.add(node_id)
            self._state.alarm(
                f"{node_id} has another data directory than before: it does not count as the "
                "voter it was, and joins again once it has caught up"
            )
        if not current.is_voter(node_id):
            self._append(current.with_member(msgspec.structs.replace(member, incarnation=0)))
            return
        left = tuple(voter for voter in current.voters if voter != node_id)
        if left and _could_decide(current, left, self._live(left)):
            learner = msgspec.structs.replace(member, joining=True)
            self._append(current.with_member(learner).with_voters(left))


def _could_decide(current: Membership, voters: tuple[str, ...], live: Sequence[str]) -> bool:
    """Whether, with these voters, the live ones would be enough for a decision."""
    return has_quorum(msgspec.structs.replace(current, voters=voters), live)


def final_membership(joint: Membership) -> Membership:
    """Return the final membership that follows a joint one.

    Voters that are only in the old set are removed. Those that are to join again stay, as
    learners of any incarnation.
    """
    removed: list[str] = []
    for node_id in joint.outgoing:
        member = joint.member(node_id)
        if node_id in joint.voters or member is None:
            continue
        if member.joining:
            joint = joint.with_member(msgspec.structs.replace(member, incarnation=0))
        else:
            removed.append(node_id)
    return joint.final(removed)
