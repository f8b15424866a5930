"""What the core is given once, when it is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorumlog.model.errors import ConfigError
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import Membership, founding


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The group and its timing. Times in milliseconds, sizes in bytes.

    `members` found the group; later its log says who belongs to it. `addresses` are those of the
    members. `incarnation` numbers this replica's data directory; 0: it has no number.
    `original_compatible` is what the group is founded with (`Membership`), and so is `identity`;
    if it is empty, the first leader makes one.

    `push_window_bytes` and `push_window_requests` bound the unanswered pushes to one peer. A push
    that is not answered for `push_timeout_ms` is sent again. Raises `ConfigError` when a value is
    impossible.
    """

    group: str
    self_id: str
    members: tuple[str, ...]
    heartbeat_ms: int
    election_timeout_min_ms: int
    election_timeout_max_ms: int
    push_timeout_ms: int
    push_bytes_max: int
    push_window_bytes: int
    push_window_requests: int
    push_quota_bytes: int
    transfer_timeout_ms: int
    transfer_lag_max: int
    addresses: Mapping[str, str] = field(default_factory=dict)
    incarnation: int = 0
    preferred_leader_ids: tuple[str, ...] = ()
    transfer_lag_bytes_max: int = 10 * 1024 * 1024
    original_compatible: bool = False
    identity: bytes = b""

    def __post_init__(self) -> None:
        """Check the relations between values that the algorithm relies on."""
        if self.self_id not in self.members or len(set(self.members)) != len(self.members):
            raise ConfigError(
                f"group {self.group}: {self.self_id!r} must be one of the members "
                f"{self.members}, each named once"
            )
        if not 0 < self.heartbeat_ms < self.election_timeout_min_ms < self.election_timeout_max_ms:
            raise ConfigError(
                f"group {self.group}: heartbeat ({self.heartbeat_ms} ms) must be above 0 and below "
                f"the election time-out ({self.election_timeout_min_ms} to "
                f"{self.election_timeout_max_ms} ms, a range that must not be empty)"
            )
        bounds = (self.push_timeout_ms, self.push_bytes_max, self.push_window_requests)
        if min(bounds) <= 0 or self.push_window_bytes < self.push_bytes_max:
            raise ConfigError(
                f"group {self.group}: push bounds must be above 0 and one push must fit the window"
            )

    @property
    def founders(self) -> Membership:
        """The membership before the log names one."""
        addresses = {member: self.addresses.get(member, "") for member in self.members}
        return founding(
            addresses, original_compatible=self.original_compatible, identity=self.identity
        )


@dataclass(frozen=True, slots=True)
class BootState:
    """What a replica finds on its disk; all of it is durable.

    `term_runs` lists (term, first index) of each run of equal terms, ascending, over the entries
    before_begin_index + 1 … end_index. `committed_index` is a hint and may be too low.
    `memberships` are those that the log names, with their indexes: the newest committed one and all
    later ones.
    """

    hard_state: HardState
    before_begin_index: int
    before_begin_term: int
    term_runs: list[tuple[int, int]]
    end_index: int
    committed_index: int
    memberships: Sequence[tuple[int, Membership]]
