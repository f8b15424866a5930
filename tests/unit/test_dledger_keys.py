"""Keys of DLedger: what docs/configuration.md says of them is what the configuration does."""

import re
from pathlib import Path

import msgspec
import pytest

from quorumlog.model.config import GroupConfig, NodeConfig, load_config
from quorumlog.model.dledger_keys import REFUSED
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
TABLES, OF_DLEDGER = PAGE.split("## DLedger's keys")
NODE = """
selfId = "n0"
storeBaseDir = "/data"

[[groups]]
group = "g"
peers = "n0-127.0.0.1:7101"
"""


def keys_of(*kinds):
    return {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}


def quoted(text):
    return set(re.findall(r"`(\w+)`", text))


def test_every_key_is_in_a_table():
    rows = "\n".join(line.split("|")[1] for line in TABLES.splitlines() if line.startswith("|"))
    assert keys_of(NodeConfig, GroupConfig, Limits) - {"limits"} <= quoted(rows)


def test_the_keys_documented_as_dledgers_exist():
    listed, table = OF_DLEDGER.split("Four of them")[0], OF_DLEDGER.split("| --- | --- |")[1]
    shared = quoted(listed)
    assert len(shared) == 26
    assert shared <= keys_of(NodeConfig, GroupConfig)
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    refused = {key: row[2].strip() for row in rows for key in quoted(row[1])}
    assert refused == REFUSED


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_of_dledger_that_is_refused_says_what_to_do(key, tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(f"{NODE}{key} = 1\n")
    with pytest.raises(ConfigError) as refusal:
        load_config(path)
    assert key in str(refusal.value)
    assert str(refusal.value).endswith(f"; {REFUSED[key]}")
    assert key not in keys_of(NodeConfig, GroupConfig, Limits)


def test_an_unknown_key_is_refused_by_its_name(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(f"{NODE}noSuchKey = 1\n")
    with pytest.raises(ConfigError, match="unknown key `noSuchKey` in"):
        load_config(path)
