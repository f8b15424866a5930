"""Replicas compare digests of what they derived from the same entries (decision 0021).

After every `digestEntries` entries each follower asks the leader for the digest of a majority of
the voters, and the leader asks the follower for its own. While no majority agrees, those that
differ are told so. An answer that was not asked for is not believed (decision 0028): the number of
a query is random, so only the peer that received it can repeat it.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from quorumlog.log_events import log_event
from quorumlog.model.codes import Role
from quorumlog.model.messages.peer import DigestQuery, StateDigest
from quorumlog.node.replica.comparison_points import POINTS_KEPT, Points
from quorumlog.node.replica.context import ReplicaContext

logger = logging.getLogger(__name__)

DIGEST_BYTES_MAX = 1_024
"""Length of a digest that is compared."""

_Value = TypeVar("_Value")


class DigestComparison(ABC):
    """The part of a replica that compares one thing, such as its machine's state, with others'.

    After the entry `agreed_index` it equalled a majority's. All methods run on the event loop's
    thread. `query` and `digest` make the question for a digest and the answer with one.

    `_own_queries` holds the numbers of its own queries, `_peer_queries` those of followers that
    wait for the majority's digest: by entry, and by peer.
    """

    def __init__(
        self,
        context: ReplicaContext,
        what: str,
        query: Callable[..., DigestQuery] = DigestQuery,
        digest: Callable[..., StateDigest] = StateDigest,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._what = what
        self._query = query
        self._digest = digest
        self.points = Points(context.config.digest_entries)
        self._own: dict[int, bytes] = {}
        self._seen: dict[int, dict[str, bytes]] = {}
        self._sent: dict[int, dict[str, bool]] = {}
        self._own_queries: dict[int, dict[str, int]] = {}
        self._peer_queries: dict[int, dict[str, int]] = {}
        self.agreed_index = -1

    # -- what is compared ---------------------------------------------------------------------

    def _compares(self, index: int) -> bool:
        """Whether there is something to compare after an entry."""
        return self.points.is_one(index)

    @abstractmethod
    def _agreed(self) -> None:
        """It equalled a majority's after `agreed_index`."""

    @abstractmethod
    def _differs(self, text: str, index: int, *, is_majority: bool) -> None:
        """It differs from a majority's after an entry, or else from that of some replica."""

    # -- who says what ------------------------------------------------------------------------

    def reached(self, index: int, digest: bytes) -> None:
        """This replica has come to an entry after which digests are compared."""
        core = self._context.core
        _keep(self._own, index, digest)
        if core.role is Role.LEADER:
            self._record(core.self_id, index, digest)
        elif core.leader_id is not None:
            self._ask(core.leader_id, index)

    def forget(self) -> None:
        """Forget all digests of this replica: what they were of is made again."""
        self._own.clear()
        self._own_queries.clear()

    def received(self, message: DigestQuery | StateDigest) -> None:
        """Handle a query or an answer of a peer."""
        if isinstance(message, DigestQuery):
            self._query_received(message)
        else:
            self._digest_received(message)

    def _query_received(self, query: DigestQuery) -> None:
        """A follower asks for the majority's digest, or the leader for this replica's."""
        core, index, peer = self._context.core, query.index, query.local_id
        if not self._compares(index):
            return
        if core.role is not Role.LEADER:
            if index in self._own:
                self._answer(query.request_id, peer, index, self._own[index])
        elif peer in core.membership.ids and index <= core.committed_index:
            _keep(
                self._peer_queries,
                index,
                self._peer_queries.get(index, {}) | {peer: query.request_id},
            )
            self._sent.get(index, {}).pop(peer, None)
            self._ask(peer, index)

    def _digest_received(self, message: StateDigest) -> None:
        """Take a digest that a peer was asked for; drop any other."""
        core, index, peer = self._context.core, message.index, message.local_id
        queries = self._own_queries.get(index, {})
        is_eligible = self._compares(index) and len(message.digest) <= DIGEST_BYTES_MAX
        if not is_eligible or queries.get(peer) != message.request_id:
            return
        if message.is_verdict != (core.role is not Role.LEADER):
            return  # it was asked for in another role
        if not message.is_verdict:
            del queries[peer]
            self._record(peer, index, message.digest)
        elif peer == core.leader_id and message.term == core.term:
            if message.is_majority:  # other answers may come before the majority's
                del queries[peer]
            self._take_result(message.digest, index, is_majority=message.is_majority)

    def _ask(self, peer: str, index: int) -> None:
        """Ask a follower for its digest, or the leader for the majority's."""
        number = self._environment.nonce()
        _keep(self._own_queries, index, self._own_queries.get(index, {}) | {peer: number})
        envelope = self._context.envelope_to(peer)
        query = self._query(**envelope, request_id=number, index=index)
        self._environment.network.send(peer, query)

    # -- the leader ---------------------------------------------------------------------------

    def _record(self, node_id: str, index: int, digest: bytes) -> None:
        seen = self._seen.get(index, {})
        if seen.get(node_id) != digest:
            self._sent.get(index, {}).pop(node_id, None)
        _keep(self._seen, index, seen | {node_id: digest})
        if index in self._seen:
            _keep(self._sent, index, self._sent.get(index, {}))
            self._compare(index)

    def _compare(self, index: int) -> None:
        seen, voters = self._seen[index], self._context.core.membership.voters
        counted = Counter(seen[node_id] for node_id in voters if node_id in seen)
        [(digest, count)] = counted.most_common(1) or [(b"", 0)]
        if count > len(voters) // 2:
            for node_id in seen:
                self._send_digest(node_id, index, digest, is_majority=True)
            return
        own = seen.get(self._context.core.self_id)
        for node_id, other in seen.items():
            if own is not None and other != own:
                self._send_digest(node_id, index, own, is_majority=False)
                self._send_digest(self._context.core.self_id, index, other, is_majority=False)

    def _send_digest(self, node_id: str, index: int, digest: bytes, *, is_majority: bool) -> None:
        """Send a replica a digest, once; and once more when a majority's is known."""
        sent, number = self._sent[index], self._peer_queries.get(index, {}).get(node_id)
        if sent.get(node_id, False) or (node_id in sent and not is_majority):
            return
        sent[node_id] = is_majority
        if node_id == self._context.core.self_id:
            self._take_result(digest, index, is_majority=is_majority)
        elif number is not None:
            self._answer(number, node_id, index, digest, is_verdict=True, is_majority=is_majority)

    def _answer(
        self,
        request_id: int,
        node_id: str,
        index: int,
        digest: bytes,
        *,
        is_verdict: bool = False,
        is_majority: bool = False,
    ) -> None:
        answer = self._digest(
            **self._context.envelope_to(node_id),
            index=index,
            digest=digest,
            is_verdict=is_verdict,
            is_majority=is_majority,
            request_id=request_id,
        )
        self._environment.network.send(node_id, answer)

    # -- everyone -----------------------------------------------------------------------------

    def _take_result(self, digest: bytes, index: int, *, is_majority: bool) -> None:
        if self._own.get(index) == digest:
            if is_majority:
                self.agreed_index = max(self.agreed_index, index)
                self._agreed()
            return
        if index not in self._own:
            return
        who = "those of a majority" if is_majority else "that of another replica"
        text = f"{self._what} after entry {index} differs from {who}"
        log_event(
            logger, logging.ERROR, "states differ", group=self._context.config.group, text=text
        )
        self._context.raise_alarm(text)
        self._differs(text, index, is_majority=is_majority)


def _keep(kept: dict[int, _Value], index: int, value: _Value) -> None:
    """Remember a value for an entry, and drop those of the oldest entries."""
    kept[index] = value
    while len(kept) > POINTS_KEPT:
        del kept[min(kept)]
