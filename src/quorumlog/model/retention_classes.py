"""Which topics share the logs of partition groups: those that keep records for about as long.

Room comes back by whole data files, so one topic that keeps for long keeps the files of all that
share its log. A topic's retention class is the power of 4 of milliseconds that `retention.ms` is
within, from 17.5 minutes to 50 days, and one more for longer times.
"""

from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.model.topic_configs import retained

MIXED: Final = -1
"""Of a partition group that was made before there were classes: topics of all classes share it."""
SHORTEST: Final = 10
"""4^10 ms are 17.5 minutes."""
LONGEST: Final = 17
"""All times above 4^16 ms, which are 50 days."""
BY_BYTES: Final = 18
"""Age does not matter, and `retention.bytes` is set."""
UNLIMITED: Final = 19
"""Nothing is removed."""
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"))


def retention_class(configs: Mapping[str, str], defaults: Mapping[str, str]) -> int:
    """Return the class of a topic with these configs, where the cluster has these defaults."""
    age_ms, size_bytes = retained(configs, defaults)
    if age_ms is None:
        return UNLIMITED if size_bytes is None else BY_BYTES
    return next((one for one in range(SHORTEST, LONGEST) if age_ms <= 4**one), LONGEST)


def nearest(wanted: int, found: Collection[int]) -> int:
    """Return the class, of those of some groups, that suits topics of the `wanted` class best.

    Of two that are equally near the one that keeps for longer; MIXED only if there is no other.
    Raises `ValueError` if there is none at all.
    """
    return max(found, key=lambda one: (one != MIXED, -abs(one - wanted), one))


def class_text(one: int) -> str:
    """Return a class in words."""
    if one in _WORDS:
        return _WORDS[one]
    unit_ms, unit = next(entry for entry in _UNITS if 4**one >= entry[0])
    return f"up to {4**one / unit_ms:.3g} {unit}"


_WORDS: Final = {
    MIXED: "mixed",
    LONGEST: f"over {4 ** (LONGEST - 1) / _UNITS[0][0]:.3g} d",
    BY_BYTES: "by bytes",
    UNLIMITED: "unlimited",
}
