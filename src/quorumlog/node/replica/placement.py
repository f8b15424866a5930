"""Whether a replica is where its log says it is: a copied or moved data directory is not.

The log names the members' addresses; `peers` says only where a node looks first. A replica whose
own address differs may be a copy of one that still runs: it would vote and be counted as that one,
and send clients there. So it opens no connections, does not campaign and names no leader to
clients. It still answers peers that connect to it: a member that was removed and added at another
address learns of that in this way.

While a name is not resolved nothing changes. A replica that starts meanwhile takes part if the
address in its log is an IP address of its own machine, where no copy can run beside it. Otherwise
it may be a copy, which would vote in place of the replica that it was copied from, so it waits.
"""

import logging
from collections.abc import Callable

from quorumlog.log_events import log_event
from quorumlog.model.config import GroupConfig
from quorumlog.model.membership import addresses_of
from quorumlog.node.environment import Network
from quorumlog.node.places import RETRY_S
from quorumlog.raft.core import RaftCore

logger = logging.getLogger(__name__)


class Placement:
    """The part of a replica that knows where its log and `peers` disagree about addresses.

    `is_same` says whether two addresses lead to the same place; None: names are not resolved yet.
    `is_here` says, without a lookup, whether this node is at an address.
    """

    def __init__(
        self,
        core: RaftCore,
        config: GroupConfig,
        network: Network,
        is_same: Callable[[str, str], bool | None],
        is_here: Callable[[str], bool],
    ) -> None:
        self._core = core
        self._config = config
        self._network = network
        self._is_same = is_same
        self._is_here = is_here
        self._reported = ""
        self.misplaced_text = self._misplaced(None)
        self.others_text = self._others()

    @property
    def text(self) -> str:
        """What operators should do about addresses; "" if nothing."""
        return self.misplaced_text or self.others_text

    @property
    def is_elsewhere(self) -> bool:
        """Whether this replica is known not to be where its log says."""
        own = self._named_elsewhere().get(self._core.self_id) if self.misplaced_text else None
        return own is not None and own[2]

    @property
    def own_address(self) -> str:
        """This replica's address, in the spelling of its log if that is the same place."""
        member = self._core.membership.member(self._core.self_id)
        if self.misplaced_text or member is None or not member.address:
            return self._config.members[self._core.self_id]
        return member.address

    def check(self) -> None:
        """Compare the log's addresses of all members with `peers`, and connect to the others."""
        core, config = self._core, self._config
        self.misplaced_text = self._misplaced(self.misplaced_text)
        self.others_text = self._others()
        if self.text and self.text != self._reported:
            log_event(
                logger, logging.WARNING, "addresses differ", group=config.group, text=self.text
            )
        self._reported = self.text
        addresses = {} if self.misplaced_text else addresses_of(core.membership)
        self._network.update_members(config.group, addresses)

    def _misplaced(self, before: str | None) -> str:
        """Return why this replica may not take part at its address, and what to do; "" if it may.

        Returns `before`, the last result, while that is not known.
        """
        self_id, group = self._core.self_id, self._config.group
        named = self._named_elsewhere().get(self_id)
        if named is None:
            return ""
        log_address, own_address, is_known = named
        if not is_known:
            if self._is_here(log_address):
                return ""
            return before if before is not None else self._unknown(log_address, own_address)
        return (
            f"{self_id} is at {log_address} according to the log of group {group}, but at "
            f"{own_address} according to peers in its configuration: its data directory was copied "
            "or moved, so it takes no part. If it was moved, and nothing runs there any more, "
            f"put {log_address} into peers and start it again; for another address remove it and "
            "add it there (quorumlog members), with an empty directory. Do not run a copy"
        )

    def _unknown(self, log_address: str, own_address: str) -> str:
        return (
            f"cannot look up whether {log_address}, where {self._core.self_id} is according to the "
            f"log of group {self._config.group}, is {own_address}, where it is according to peers: "
            "a name has no answer. It takes no part until it has; it is asked again every "
            f"{RETRY_S:g} s. With {log_address} in peers no name is asked"
        )

    def _others(self) -> str:
        """Return which other members have different addresses in `peers` and log; "" if none."""
        listed = "; ".join(
            f"{node_id} is at {log_address} according to the log, at {address} according to peers"
            for node_id, (log_address, address, is_known) in self._named_elsewhere().items()
            if is_known and node_id != self._core.self_id
        )
        return f"{listed}: the log counts, correct peers" if listed else ""

    def _named_elsewhere(self) -> dict[str, tuple[str, str, bool]]:
        """Return member id → (address in the log, in `peers`, whether that is known to differ)."""
        if self._core.membership_index < 0:
            return {}
        configured = self._config.members
        found: dict[str, tuple[str, str, bool]] = {}
        for member in self._core.membership.members:
            address = configured.get(member.node_id)
            if address is not None and member.address:
                is_same = self._is_same(member.address, address)
                if not is_same:
                    found[member.node_id] = (member.address, address, is_same is False)
        return found
