"""Where a replica begins whose leader has removed the entries that it needs (spec 40 section 5).

A plain log has nothing to install: such a replica simply begins behind what was removed.
"""

import logging
from typing import TYPE_CHECKING

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.model.message import InstallSnapshotRequest
from quorumlog.node.doors import Doors
from quorumlog.node.log_lines import say
from quorumlog.raft.effects import FetchSnapshot, OfferSnapshot, ResetLog
from quorumlog.raft.events import Received

if TYPE_CHECKING:
    from quorumlog.node.replica import Replica

logger = logging.getLogger(__name__)


class Installs:
    """Of one replica; called on its thread."""

    def __init__(self, replica: "Replica", doors: Doors) -> None:
        self._replica = replica
        self._doors = doors

    def offered(self, offer: InstallSnapshotRequest) -> None:
        """A peer offers a place to begin; one that names no readable membership is dropped."""
        try:
            if offer.config is not None:
                Membership.decode(offer.config[1])
        except UnexpectedArgumentError as error:
            self._replica.raise_alarm(f"{offer.local_id} offers a log that cannot be read: {error}")
            return
        self._replica.tell(Received(offer))

    def offer(self, effect: OfferSnapshot) -> None:
        """Tell a peer where this log begins."""
        core, log = self._replica.core, self._replica.log
        index = log.before_begin_index
        chain_crc = log.chain_crc_at(index)
        configs = [pair for pair in log.config_entries() if pair[0] <= index]
        self._doors.network.send(
            effect.peer_id,
            InstallSnapshotRequest(
                group=self._replica.config.group,
                local_id=core.self_id,
                remote_id=effect.peer_id,
                incarnation=core.incarnation,
                term=core.term,
                request_id=effect.request_id,
                last_included_index=index,
                last_included_term=log.before_begin_term,
                chain_crc=-1 if chain_crc is None else chain_crc,
                membership_index=core.membership_index,
                config=configs[-1] if configs else None,
            ),
        )

    def fetch(self, effect: FetchSnapshot) -> None:
        """Refuse what this replica could do nothing with."""
        self._replica.raise_alarm(
            f"{effect.offer.local_id} offers the snapshot of a state machine, but this replica of "
            "the group has none: give all members the same stateMachine"
        )

    def reset(self, effect: ResetLog) -> None:
        """Begin the log anew, as the core decided."""
        replica, log = self._replica, self._replica.log
        say(
            logger,
            logging.WARNING,
            "log begins anew",
            group=replica.config.group,
            first_index=effect.before_begin_index + 1,
            first_index_before=log.before_begin_index + 1,
            end_index_before=log.end_index,
        )
        replica.counters.log_resets += 1
        if effect.truncate_from >= 0:
            self._doors.disk.submit(self._replica, None, log.truncate(effect.truncate_from))
        plan = log.reset(
            effect.before_begin_index, effect.before_begin_term, effect.chain_crc, effect.config
        )
        self._doors.disk.submit(self._replica, effect.token, plan)
