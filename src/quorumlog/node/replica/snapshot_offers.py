"""What an offer says of its snapshot, and a fingerprint that identifies the offer."""

import hashlib

import msgspec

from quorumlog.model.messages.peer import InstallSnapshotRequest
from quorumlog.storage.log.snapshots import SnapshotMeta


def meta_of(offer: InstallSnapshotRequest) -> SnapshotMeta:
    """Return the metadata of the snapshot that an offer describes."""
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
    """Return a fingerprint of an offer and the tables attached to it."""
    fields = (offer.term, *msgspec.structs.astuple(meta_of(offer)))
    return hashlib.sha256(msgspec.msgpack.encode(fields) + table).digest()
