"""Every bound of the system, by name and unit.

Relations between bounds are checked once, when the object is made.
"""

import msgspec

from quorumlog.model.config_keys import key_of
from quorumlog.model.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Bounds on everything that could grow. Sizes in bytes, times in milliseconds.

    Raises `ConfigError` when two bounds contradict each other.
    """

    entry_bytes_max: int = 4 * MIB
    """Largest encoded entry, header included (4 MiB, as in DLedger)."""
    block_bytes_max: int = 4 * MIB + 64 * KIB
    """Largest block in one append, push or fetch."""
    block_entries_max: int = 65_536
    frame_bytes_max: int = 8 * MIB
    """Largest frame payload; a longer one is refused before anything is allocated."""
    message_bytes_max: int = 256 * KIB
    """Largest structured part of a frame (everything but the attached block)."""
    handshake_ms: int = 5_000
    frame_ms: int = 10_000
    """Time for a frame to arrive, from its first byte; one that is still coming then goes on at
    `frame_bytes_per_second_min`."""
    frame_bytes_per_second_min: int = 64 * KIB
    receive_bytes_max: int = 64 * MIB
    """Unfinished frames of all clients, and their appends under way; above it frames wait."""
    peer_receive_bytes_max: int = 64 * MIB
    """Unfinished frames of all members together: a share that clients cannot take."""
    append_bytes_max: int = 48 * MIB
    """Appends of all clients to all groups that wait for their answers, each with 8 KiB on top."""
    query_bytes_max: int = 16 * MIB
    """Queries of all clients to state machines that wait for their answers, each with 1 KiB on top.
    """
    send_bytes_max: int = 64 * MIB
    """Unread answers of all clients together; one client may have half of it."""
    unread_ms: int = 30_000
    """A client that lags with reading by this long, at `frame_bytes_per_second_min`, is closed."""
    kafka_request_bytes_max: int = 256 * MIB
    """Requests of all Kafka clients, unfinished or waiting for their answers, each with 1 KiB on
    top; above it those that hold most are not read."""
    kafka_connections_max: int = 1_024
    """Connections of Kafka clients one node accepts at a time."""
    connections_max: int = 4_096
    """Client and peer connections one node accepts at a time."""
    strangers_per_address_max: int = 64
    """Connections of one address that have not said who they are; more wait, or are closed."""
    strangers_max: int = 512
    """The same of all addresses together."""
    requests_in_flight_max: int = 1_024
    """Unanswered requests on one connection; reading pauses above."""
    outbox_bytes_max: int = 64 * MIB
    """Unsent bytes on one connection; a client above it is closed, a peer message is dropped."""
    pending_requests_max: int = 10_000
    """Appends waiting for their majority in one group (spec 70 maxPendingRequestsNum)."""
    pending_bytes_max: int = 64 * MIB
    tail_cache_bytes: int = 16 * MIB
    """Newest bytes of each log kept in memory; what is not yet durable is kept on top of it."""
    push_bytes_max: int = 1 * MIB
    """Bytes in one push; a single larger entry still travels alone."""
    push_window_bytes: int = 8 * MIB
    push_window_requests: int = 256
    disk_queue_bytes_max: int = 128 * MIB
    """Bytes passed to the disk thread and not yet durable, over all groups."""
    fetch_wait_ms_max: int = 30_000
    fetch_waiters_max: int = 10_000
    """Fetches of one group that wait for entries not yet committed."""
    groups_max: int = 4_096
    """Groups that one node hosts."""
    ordered_streams_max: int = 64
    """Ordered append streams on one connection."""

    def __post_init__(self) -> None:
        """Check the relations that the code relies on."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(f"limits.{key_of(name)} must be above 0, not {value}")
        if self.entry_bytes_max > self.block_bytes_max:
            raise ConfigError("limits: entryBytesMax must not exceed blockBytesMax")
        if self.block_bytes_max + self.message_bytes_max > self.frame_bytes_max:
            raise ConfigError("limits: blockBytesMax + messageBytesMax must fit frameBytesMax")
        for name in ("receive_bytes_max", "peer_receive_bytes_max", "send_bytes_max"):
            if getattr(self, name) < 2 * self.frame_bytes_max:
                raise ConfigError(f"limits.{key_of(name)} must be at least twice frameBytesMax")
        if self.outbox_bytes_max < self.frame_bytes_max:
            raise ConfigError("limits.outboxBytesMax must be at least frameBytesMax")
        if self.push_bytes_max > self.block_bytes_max:
            raise ConfigError("limits: pushBytesMax must not exceed blockBytesMax")
        if self.push_window_bytes < self.push_bytes_max:
            raise ConfigError("limits: pushWindowBytes must be at least pushBytesMax")


DEFAULT_LIMITS = Limits()
