"""A broker refuses settings that none of its partition groups could have."""

import pytest

from quorumlog.broker.broker import Broker
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError


def broker(tmp_path, **settings):
    group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers="n0-127.0.0.1:7101")
    return Broker(
        NodeConfig(
            self_id="n0",
            store_base_dir=str(tmp_path),
            groups=[group],
            kafka_listen="127.0.0.1:0",
            partition_groups=settings,
        )
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mappedFileSizeForEntryData": 1 << 20}, "mappedFileSizeForEntryData must exceed"),
        ({"mappedFileSize": 1 << 20}, "mappedFileSize"),
        ({"flush": "never"}, "flush is one of 'sync', 'async', not 'never'"),
        ({"peers": "n0-127.0.0.1:7101"}, "peers is no setting"),
    ],
)
def test_settings_that_partition_groups_cannot_have_are_refused_when_a_node_starts(
    tmp_path, settings, text
):
    with pytest.raises(ConfigError, match=f"partitionGroups: .*{text}"):
        broker(tmp_path, **settings)


def test_settings_that_partition_groups_can_have_are_taken(tmp_path):
    assert broker(tmp_path, flush="async", retentionBytes=1 << 30).config.partition_groups
