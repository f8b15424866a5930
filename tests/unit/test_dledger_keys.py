"""Keys of DLedger: each is taken, or refused with advice, and docs/differences.md says which."""

import re
from pathlib import Path

import msgspec
import pytest

from generated_tables import DIFFERENCES, DLEDGER_DEFAULTS, OWN_KEYS, page
from quorumlog.model.config import GroupConfig, NodeConfig, load_config
from quorumlog.model.dledger_keys import REFUSED
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits
from quorumlog.model.security_config import SecurityConfig
from quorumlog.model.tls_config import TlsConfig

DOCS = Path(__file__).parents[2] / "docs"
SPEC = (DOCS / "spec" / "70-configuration.md").read_text().split("## 2.")[0]
NODE = """
selfId = "n0"
storeBaseDir = "/data"

[[groups]]
group = "g"
peers = "n0-127.0.0.1:7101"
"""


def keys_of(*kinds):
    return {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}


def test_every_key_is_in_a_table():
    page_text = (DOCS / "configuration.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in page_text.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(\w+)`", rows))
    kinds = (NodeConfig, GroupConfig, Limits, TlsConfig, SecurityConfig)
    assert keys_of(*kinds) - {"limits"} <= named


def test_each_of_the_53_keys_of_dledger_is_either_taken_or_refused():
    assert len(DLEDGER_DEFAULTS) == 53
    taken = DLEDGER_DEFAULTS.keys() & keys_of(NodeConfig, GroupConfig)
    assert not taken & REFUSED.keys()
    assert taken | REFUSED.keys() == DLEDGER_DEFAULTS.keys()


def test_the_53_keys_are_those_of_the_spec():
    listed = set()
    for cell in re.findall(r"^\| (\w[^|]*) \|", SPEC, re.MULTILINE):
        first, *more = re.findall(r"\w+", cell.replace("max…", "maxTakeLeadershipVoteIntervalMs"))
        listed.add(first)
        for word in more:  # of some the spec writes only how the second key ends
            is_end = word in ("Header", "Host")
            listed.add(re.sub("Target$|Port$", word, first) if is_end else word)
    assert listed - {"alias", "Key"} == DLEDGER_DEFAULTS.keys()


def test_the_table_says_of_each_key_what_the_configuration_does():
    assert DIFFERENCES.read_text() == page("dledger keys"), "run python tests/generated_tables.py"


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_of_dledger_that_is_refused_says_what_to_do(key, tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(f"{NODE}{key} = 1\n")
    with pytest.raises(ConfigError) as refusal:
        load_config(path)
    assert key in str(refusal.value)
    assert str(refusal.value).endswith(f"; {REFUSED[key]}")
    named = set(re.findall(r"\b[a-z]+[A-Z]\w+", REFUSED[key])) - {"blockBytes"}
    assert named <= keys_of(NodeConfig, GroupConfig, Limits), "what is advised exists"


def test_the_keys_of_nodes_are_not_taken_in_groups(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(f'{NODE}metricsGrpcExporterTarget = "127.0.0.1:4317"\n')
    with pytest.raises(ConfigError, match="it belongs in the file's top"):
        load_config(path)
    assert "metricsGrpcExporterTarget" in OWN_KEYS


def test_an_unknown_key_is_refused_by_its_name(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(f"{NODE}noSuchKey = 1\n")
    with pytest.raises(ConfigError, match="unknown key `noSuchKey` in"):
        load_config(path)
