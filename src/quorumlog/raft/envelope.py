"""The fields that every message of a group has: from whom, to whom, and in which term.

Both ends name their incarnations, the numbers of their data directories. A disk that was emptied
comes back under the same node id, and neither an answer that the old one gave nor one that is meant
for it may be mistaken for the new one's (R14).
"""

from typing import TypedDict

from quorumlog.model.messages.peer import PeerMessage
from quorumlog.raft.state import RaftState


class RequestEnvelope(TypedDict):
    """The first fields of a request."""

    group: str
    local_id: str
    remote_id: str
    incarnation: int
    term: int


class ResponseEnvelope(RequestEnvelope):
    """The first fields of a response; `remote_incarnation` is the one that asked."""

    remote_incarnation: int


def request_to(state: RaftState, peer_id: str, term: int | None = None) -> RequestEnvelope:
    """Return the envelope of a request of the present term, or of `term`."""
    return {
        "group": state.config.group,
        "local_id": state.config.self_id,
        "remote_id": peer_id,
        "incarnation": state.config.incarnation,
        "term": state.term if term is None else term,
    }


def response_to(
    state: RaftState, request: PeerMessage, *, is_outdated: bool = False
) -> ResponseEnvelope:
    """Return the envelope of an answer.

    A request that `is_outdated`, because its term is lower than one that is known here, is answered
    with the newest term known, also when only the log has it: the sender must get beyond that.
    """
    return {
        "group": request.group,
        "local_id": state.config.self_id,
        "remote_id": request.local_id,
        "incarnation": state.config.incarnation,
        "remote_incarnation": request.incarnation,
        "term": state.known_term if is_outdated else state.term,
    }
