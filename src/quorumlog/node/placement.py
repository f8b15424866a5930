"""Whether a replica is where its log says that it is: a copied or moved data directory is not.

The log names the members' addresses, `peers` only where a node looks first. A replica whose own
address differs may be a copy of one that lives on: as that one it would vote, be counted and send
clients there. So it connects to nobody, does not campaign and names no leader to clients. It still
answers whoever connects to it: a member that was removed and added at another address learns so.
"""

from quorumlog.model.config import GroupConfig, is_same_address
from quorumlog.model.errors import ConfigError
from quorumlog.raft.core import RaftCore


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
