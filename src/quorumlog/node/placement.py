"""Whether a replica is where its log says that it is: a copied or moved data directory is not.

The log names the members' addresses, `peers` only where a node looks first. A replica whose own
address differs may be a copy of one that lives on: as that one it would vote, be counted and send
clients there. So it connects to nobody, does not campaign and names no leader to clients. It still
answers whoever connects to it: a member that was removed and added at another address learns so.
"""

import logging

from quorumlog.model.config import GroupConfig, is_same_address
from quorumlog.model.errors import ConfigError
from quorumlog.model.log_lines import say
from quorumlog.model.membership import addresses_of
from quorumlog.node.doors import Network
from quorumlog.raft.core import RaftCore

logger = logging.getLogger(__name__)


class Placement:
    """Of one replica: where its log and `peers` disagree about its address, and about others'."""

    def __init__(self, core: RaftCore, config: GroupConfig, network: Network) -> None:
        self._core = core
        self._config = config
        self._network = network
        self._said = ""
        self.misplaced_text = misplaced_text(core, config)
        self.others_text = others_text(core, config)

    @property
    def text(self) -> str:
        """What is to be done about addresses; "" if nothing."""
        return self.misplaced_text or self.others_text

    def look(self) -> None:
        """See where the log has the members, this one among them; connect to the others there."""
        core, config = self._core, self._config
        self.misplaced_text = misplaced_text(core, config)
        self.others_text = others_text(core, config)
        if self.text and self.text != self._said:
            say(logger, logging.WARNING, "addresses differ", group=config.group, text=self.text)
        self._said = self.text
        addresses = {} if self.misplaced_text else addresses_of(core.membership)
        self._network.meet(config.group, addresses)


def misplaced_text(core: RaftCore, config: GroupConfig) -> str:
    """Return why a replica may not take part at its address, and what to do; "" if it may."""
    named = _named_elsewhere(core, config).get(core.self_id)
    if named is None:
        return ""
    log_address, own_address = named
    return (
        f"{core.self_id} is at {log_address} according to the log of group {config.group}, but at "
        f"{own_address} according to peers in its configuration: its data directory was copied or "
        f"moved, so it takes no part. Put {log_address} into peers and start it again; for another "
        "address remove it and add it there (quorumlog members), with an empty directory"
    )


def others_text(core: RaftCore, config: GroupConfig) -> str:
    """Return which other members `peers` has at other addresses than the log; "" if none."""
    named = _named_elsewhere(core, config)
    named.pop(core.self_id, None)
    if not named:
        return ""
    listed = "; ".join(
        f"{node_id} is at {log_address} according to the log, at {address} according to peers"
        for node_id, (log_address, address) in named.items()
    )
    return f"{listed}: the log counts, correct peers"


def _named_elsewhere(core: RaftCore, config: GroupConfig) -> dict[str, tuple[str, str]]:
    """Return member id → (address in the log, in `peers`) of those that differ."""
    if core.membership_index < 0:
        return {}
    configured = config.members
    found: dict[str, tuple[str, str]] = {}
    for member in core.membership.members:
        address = configured.get(member.node_id)
        if address is not None and member.address and not _is_same(member.address, address):
            found[member.node_id] = (member.address, address)
    return found


def _is_same(one: str, other: str) -> bool:
    try:
        return is_same_address(one, other)
    except ConfigError:
        return one == other
