"""Which topics share logs: those that keep records for about as long."""

import pytest

from quorumlog.model.retention_classes import (
    BY_BYTES,
    LONGEST,
    MIXED,
    SHORTEST,
    UNLIMITED,
    class_text,
    nearest,
    retention_class,
)

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, 15),
        ({"retention.ms": "0"}, SHORTEST),
        ({"retention.ms": str(4**SHORTEST)}, SHORTEST),
        ({"retention.ms": str(4**SHORTEST + 1)}, SHORTEST + 1),
        ({"retention.ms": str(DAY_MS)}, 14),
        ({"retention.ms": str(4**16)}, 16),
        ({"retention.ms": str(4**16 + 1)}, LONGEST),
        ({"retention.ms": str((1 << 63) - 1)}, LONGEST),
        ({"retention.ms": "-1"}, UNLIMITED),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, BY_BYTES),
        ({"retention.ms": "60000", "retention.bytes": "1000"}, SHORTEST),
        ({"cleanup.policy": "compact", "retention.ms": "60000"}, UNLIMITED),
        ({"cleanup.policy": "compact, delete", "retention.ms": "60000"}, SHORTEST),
        ({"cleanup.policy": "", "retention.ms": "60000", "retention.bytes": "9"}, UNLIMITED),
    ],
)
def test_topics_that_keep_for_about_as_long_are_of_one_class(configs, expected):
    assert retention_class(configs, {}) == expected


def test_the_defaults_of_the_cluster_count():
    assert retention_class({}, {"log.retention.ms": "60000"}) == SHORTEST
    assert retention_class({"retention.ms": "-1"}, {"log.retention.bytes": "9"}) == BY_BYTES


def test_the_nearest_class_is_taken_and_of_two_the_one_that_keeps_longer():
    assert nearest(13, {10, 12, 14}) == 14
    assert nearest(13, {10, 12}) == 12
    assert nearest(SHORTEST, {UNLIMITED, MIXED}) == UNLIMITED
    assert nearest(SHORTEST, {MIXED}) == MIXED


def test_classes_have_words():
    texts = [class_text(one) for one in (MIXED, *range(SHORTEST, UNLIMITED + 1))]
    assert texts == [
        "mixed",
        "up to 17.5 min",
        "up to 1.17 h",
        "up to 4.66 h",
        "up to 18.6 h",
        "up to 3.11 d",
        "up to 12.4 d",
        "up to 49.7 d",
        "over 49.7 d",
        "by bytes",
        "unlimited",
    ]
