"""Which numbers the keys of a configuration may have.

The bounds are far above what anybody needs, and far below what a clock, a file or a counter holds:
a value beyond them would fail later, where nobody sees which key it is from.
"""

from typing import Final

import msgspec

from quorumlog.model.bounds import SIZE_MAX
from quorumlog.model.config_keys import key_of
from quorumlog.model.errors import ConfigError

POSITIVE: Final = frozenset(
    {
        "audit_file_bytes",
        "check_point_interval",
        "clean_interval",
        "election_timeout_max_ms",
        "election_timeout_min_ms",
        "file_reserved_hours",
        "flush_file_interval",
        "heart_beat_time_interval_ms",
        "leadership_transfer_wait_timeout",
        "mapped_file_size_for_entry_data",
        "mapped_file_size_for_entry_index",
        "max_leadership_transfer_wait_bytes",
        "max_leadership_transfer_wait_index",
        "max_push_time_out_ms",
        "max_snapshot_reserved_num",
        "max_wait_ack_time_ms",
        "metric_grpc_exporter_interval_in_mills",
        "metric_grpc_exporter_time_out_in_mills",
        "peer_push_quota",
        "scrub_interval_hours",
        "snapshot_bytes",
        "snapshot_threshold",
    }
)
"""Fields that must be above 0; all others must not be below."""
HOURS_MAX: Final = 1_000_000
MS_MAX: Final = HOURS_MAX * 3_600_000
FILE_BYTES_MAX: Final = 1 << 40
"""Of one data file or index file."""
AUDIT_FILES_MAX: Final = 1_000
_MOST: Final = {
    "audit_file_bytes": FILE_BYTES_MAX,
    "audit_files": AUDIT_FILES_MAX,
    "check_point_interval": MS_MAX,
    "clean_interval": MS_MAX,
    "deleted_group_reserved_hours": HOURS_MAX,
    "disk_space_ratio_to_check_expired": 1,
    "disk_space_ratio_to_force_clean": 1,
    "election_timeout_max_ms": MS_MAX,
    "election_timeout_min_ms": MS_MAX,
    "file_reserved_hours": HOURS_MAX,
    "flush_file_interval": MS_MAX,
    "heart_beat_time_interval_ms": MS_MAX,
    "leadership_transfer_wait_timeout": MS_MAX,
    "mapped_file_size_for_entry_data": FILE_BYTES_MAX,
    "mapped_file_size_for_entry_index": FILE_BYTES_MAX,
    "max_push_time_out_ms": MS_MAX,
    "max_wait_ack_time_ms": MS_MAX,
    "metric_grpc_exporter_interval_in_mills": MS_MAX,
    "metric_grpc_exporter_time_out_in_mills": MS_MAX,
    "scrub_interval_hours": HOURS_MAX,
}


def check_numbers(config: msgspec.Struct, where: str = "") -> None:
    """Raise `ConfigError` with the key and its range if a number of a configuration is beyond it.

    `where` begins the message, such as `group g: `.
    """
    for name in config.__struct_fields__:
        value, most = getattr(config, name), _MOST.get(name, SIZE_MAX)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        is_positive = name in POSITIVE
        fits = 0 < value <= most if is_positive else 0 <= value <= most  # which nan never does
        if not fits:
            least = "above 0" if is_positive else "at least 0"
            raise ConfigError(
                f"{where}{key_of(name)} must be {least} and at most {most}, not {value}"
            )
