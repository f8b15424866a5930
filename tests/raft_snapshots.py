"""How replicas of a simulated group start their logs after entries that were removed.

With `fetch_ms` the offers of leaders name a snapshot, which takes that long to fetch; else they are
of plain logs, and there is nothing to fetch.
"""

from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import InstallSnapshotRequest
from quorumlog.raft import events as ev


class Snapshots:
    """Part of `Cluster`."""

    fetch_ms = None
    has_snapshots = True
    confirms_offers = True

    def trim(self, node_id, before_begin_index):
        """Remove committed, durable entries, as retention does."""
        replica = self.nodes[node_id]
        last = min(replica.core.committed_index, replica.core.durable_index)
        before_begin_index = min(before_begin_index, last)
        if before_begin_index <= replica.log.base:
            return
        term = replica.log.at(before_begin_index).term
        chain = replica.log.chain_at(before_begin_index)
        for log in (replica.log, replica.stored):
            log.reset(before_begin_index, term, chain)
        self.step(replica, ev.LogCompacted(before_begin_index, term))

    def _OfferSnapshot(self, replica, effect, event, entries):  # noqa: N802
        if not self.has_snapshots:
            answer = ev.EntriesUnreadable(effect.peer_id, effect.request_id, "there is none")
            self._later(1, self._read, replica, replica.incarnation, answer)
            return
        core, log = replica.core, replica.log
        self._transmit(
            replica,
            InstallSnapshotRequest(
                group="g",
                local_id=replica.id,
                remote_id=effect.peer_id,
                incarnation=core.incarnation,
                term=core.term,
                request_id=effect.request_id,
                last_included_index=log.base,
                last_included_term=log.base_term,
                chain_crc=log.base_chain,
                membership_index=core.membership_index,
                config=self.config_before(replica),
                sha256=b"" if self.fetch_ms is None else b"snapshot",
            ),
        )

    @staticmethod
    def config_before(replica):
        """The newest membership that the log leaves out, if the replica knows it."""
        index, membership = replica.core.membership_index, replica.core.membership
        known = -1 < index <= replica.log.base
        return (index, membership.encode()) if known else None

    def _ConfirmOffer(self, replica, effect, event, entries):  # noqa: N802
        """The leader says at once that the offer is its own; return what that led to."""
        if self.confirms_offers:
            return self.step(replica, ev.OfferConfirmed(effect.offer))
        return []

    def _FetchSnapshot(self, replica, effect, event, entries):  # noqa: N802
        fetched = ev.SnapshotFetched(effect.offer)
        self._later(self.fetch_ms, self._fetched, replica, replica.incarnation, fetched)

    def _fetched(self, replica, incarnation, event):
        if replica.up and replica.incarnation == incarnation:
            self.step(replica, event)

    def _ResetLog(self, replica, effect, event, entries):  # noqa: N802
        if effect.truncate_from >= 0:
            assert effect.truncate_from > replica.checked_to, "committed entries stay"
            replica.log.cut(effect.truncate_from)
            self._write(replica, effect.token, "cut", effect.truncate_from)
        start = (effect.before_begin_index, effect.before_begin_term, effect.chain_crc)
        config = effect.config and (effect.config[0], Membership.decode(effect.config[1]))
        replica.log.reset(*start, config)
        self._write(replica, effect.token, "reset", *start, config)
        replica.checked_to = max(replica.checked_to, effect.before_begin_index)
