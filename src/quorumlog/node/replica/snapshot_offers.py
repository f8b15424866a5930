"""What an offer of a snapshot says of it, and what tells one offer from every other."""

import hashlib

import msgspec

from quorumlog.model.messages.peer import InstallSnapshotRequest
from quorumlog.storage.log.snapshots import SnapshotMeta


def meta_of(offer: InstallSnapshotRequest) -> SnapshotMeta:
    """Return what a snapshot is, as an offer describes it."""
    return SnapshotMeta(
        last_included_index=offer.last_included_index,
        last_included_term=offer.last_included_term,
        chain_crc=offer.chain_crc,
        config=offer.config,
        digest=offer.digest,
        size_bytes=offer.size_bytes,
        sha256=offer.sha256,
        kept_bytes=offer.kept_bytes,
    )


def fingerprint_of(offer: InstallSnapshotRequest, table: bytes) -> bytes:
    """Return what tells an offer, with the sessions attached to it, from every other."""
    said = (offer.term, *msgspec.structs.astuple(meta_of(offer)))
    return hashlib.sha256(msgspec.msgpack.encode(said) + table).digest()
