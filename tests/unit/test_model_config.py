"""Configuration: what is accepted, and how errors read."""

import re

import msgspec
import pytest

from quorumlog.model.config import (
    GroupConfig,
    NodeConfig,
    dump_config,
    load_config,
    parse_address,
    parse_peers,
)
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits
from quorumlog.model.security_config import SecurityConfig
from quorumlog.model.tls_config import TlsConfig

PEERS = "n0-127.0.0.1:7101;n1-127.0.0.1:7102;n2-127.0.0.1:7103"


def node(**changes):
    values = {
        "self_id": "n0",
        "store_base_dir": "/data",
        "groups": [GroupConfig(group="flights", peers=PEERS)],
    }
    return NodeConfig(**{**values, **changes})


def test_round_trip_through_toml(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_bytes(dump_config(node(admin_listen="127.0.0.1:9000")))
    assert load_config(path) == node(admin_listen="127.0.0.1:9000")


def test_defaults_are_those_of_the_design():
    group = GroupConfig(group="g", peers=PEERS)
    assert (group.election_timeout_min_ms, group.election_timeout_max_ms) == (500, 900)
    assert group.heart_beat_time_interval_ms == 100
    assert group.mapped_file_size_for_entry_data == 1_073_741_824
    assert group.mapped_file_size_for_entry_index == 167_772_160
    assert group.flush == "sync"
    assert Limits().entry_bytes_max == 4_194_304


def test_161_self_id_missing_in_peers_is_refused():
    with pytest.raises(ConfigError, match=r"selfId 'n9' is not in peers"):
        node(self_id="n9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n0", "not id-host:port"),
        ("n0-localhost", "not host:port"),
        ("n0-h:99999", "not host:port"),
        ("n0-h:1;n0-h:2", "appears twice"),
        ("../x-h:1", "not usable"),
    ],
)
def test_bad_peers_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_peers(text)


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "", "a" * 129, "-a", "ä"])
def test_names_that_could_be_paths_are_refused(name):
    with pytest.raises(ConfigError, match="not usable"):
        GroupConfig(group=name, peers=PEERS)


@pytest.mark.parametrize("name", ["quorumlog.deleted", "quorumlog.journal", "quorumlog.lock"])
def test_names_of_a_nodes_own_files_are_refused(name):
    with pytest.raises(ConfigError, match="a node's own files"):
        GroupConfig(group=name, peers=PEERS)


def test_a_group_whose_directory_would_hold_the_journal_or_files_of_another_is_refused():
    with pytest.raises(ConfigError, match=r"group flights: .*would hold the journal"):
        node(journal_directory="/data/flights/journal")
    other = GroupConfig(group="other", peers=PEERS, data_store_path="/data/flights/x,/data/other/y")
    flights = GroupConfig(group="flights", peers=PEERS)
    with pytest.raises(ConfigError, match=r"group flights: .*would hold data files of group other"):
        node(groups=[flights, other])
    node(groups=[other])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/data", "the node's own directory"),
        ("/data/", "the node's own directory"),
        ("/x", "a directory of group other"),
    ],
)
def test_a_journal_has_a_directory_of_its_own(path, said):
    other = GroupConfig(group="other", peers=PEERS, data_store_path="/x,/y")
    with pytest.raises(ConfigError, match=rf"journalDirectory: .* is {said}"):
        node(groups=[other], journal_directory=path)
    node(groups=[other], journal_directory="/z")


def test_preferred_leaders_are_members():
    group = GroupConfig(group="g", peers=PEERS, preferred_leader_ids="n1;n4")
    with pytest.raises(ConfigError, match=r"names n4; .* n0, n1, n2"):
        node(groups=[group])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clean_interval": 1 << 62}, "cleanInterval must be above 0 and at most 3600000000000"),
        ({"scrub_interval_hours": float("nan")}, "scrubIntervalHours must be above 0 and at most"),
        ({"scrub_interval_hours": float("inf")}, "scrubIntervalHours must be above 0 and at most"),
        ({"retention_bytes": 1 << 62}, "retentionBytes must be at least 0 and at most"),
        ({"retention_bytes": -1}, "retentionBytes must be at least 0 and at most"),
        ({"mapped_file_size_for_entry_data": 1 << 50}, "at most 1099511627776, not"),
    ],
)
def test_numbers_beyond_their_range_are_refused_with_key_and_range(changes, said):
    with pytest.raises(ConfigError, match=f"group g: .*{said}"):
        GroupConfig(group="g", peers=PEERS, **changes)


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf")])
def test_times_of_a_node_have_a_range_too(hours):
    with pytest.raises(ConfigError, match="deletedGroupReservedHours must be at least 0 and"):
        node(deleted_group_reserved_hours=hours)


def test_a_key_that_does_not_exist_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(dump_config(node()) + b"\nheartbeat = 1\n")
    with pytest.raises(ConfigError, match="heartbeat"):
        load_config(path)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_listening_beyond_loopback_needs_insecure():
    peers = "n0-10.1.2.3:7101"
    group = GroupConfig(group="g", peers=peers)
    with pytest.raises(ConfigError, match="insecure"):
        NodeConfig(self_id="n0", store_base_dir="/d", groups=[group])
    NodeConfig(self_id="n0", store_base_dir="/d", groups=[group], insecure=True)


def test_one_member_has_one_address_in_all_groups():
    groups = [
        GroupConfig(group="a", peers="n0-127.0.0.1:1;n1-127.0.0.1:2"),
        GroupConfig(group="b", peers="n0-127.0.0.1:1;n1-127.0.0.1:3"),
    ]
    with pytest.raises(ConfigError, match="two addresses"):
        node(groups=groups)


@pytest.mark.parametrize(
    "changes",
    [
        {"heart_beat_time_interval_ms": 0},
        {"election_timeout_min_ms": 150},
        {"election_timeout_max_ms": 500},
        {"mapped_file_size_for_entry_index": 100},
        {"max_wait_ack_time_ms": 0},
    ],
)
def test_impossible_values_are_refused(changes):
    with pytest.raises(ConfigError):
        GroupConfig(group="g", peers=PEERS, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"entry_bytes_max": 0},
        {"entry_bytes_max": 8 << 20},
        {"frame_bytes_max": 4 << 20},
        {"outbox_bytes_max": 4 << 20},
        {"push_window_bytes": 1},
    ],
)
def test_contradicting_limits_are_refused(changes):
    with pytest.raises(ConfigError):
        Limits(**changes)


def test_addresses():
    assert parse_address("[::1]:80") == ("::1", 80)
    assert parse_address("localhost:1") == ("localhost", 1)


HEAD = 'selfId = "n0"\nstoreBaseDir = "/d"\n'
GROUP = '[[groups]]\ngroup = "g"\npeers = "n0-127.0.0.1:7101"\n'
NO_TABLES = "groups are tables, each begun by [[groups]] in a line of its own,"
INTERVAL = "group g: flushFileInterval is a whole number"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{HEAD}colour = 1\nlogLevl = 'INFO'\n{GROUP}pendingRequestsMax = 1\nflsh = 'sync'\n"
            "[limits]\nretentionBytes = 1\npendingByteMax = 1\n",
            "unknown key `colour` in the file's top. "
            "Unknown key `logLevl` in the file's top; did you mean logLevel? "
            "Unknown key `pendingRequestsMax` in [[groups]] (group g); it belongs in [limits]. "
            "Unknown key `flsh` in [[groups]] (group g); did you mean flush? "
            "Unknown key `retentionBytes` in [limits]; it belongs in [[groups]]. "
            "Unknown key `pendingByteMax` in [limits]; did you mean pendingBytesMax?",
        ),
        (
            f"{HEAD}cluster = production\n{GROUP}",
            'Invalid value (at line 3, column 11); strings need quotes: key = "text"',
        ),
        (
            f"{HEAD}listen = 127.0.0.1:7101\n{GROUP}",
            "Expected newline or end of document after a statement (at line 3, column 15); "
            'strings need quotes: key = "text"',
        ),
        (
            f"{HEAD}{GROUP}[limits]\npendingRequestsMax = 0\n",
            "limits.pendingRequestsMax must be above 0, not 0",
        ),
        (
            f"{HEAD}{GROUP}flushFileInterval = 'x'\n",
            "group g: flushFileInterval is a whole number, not 'x'",
        ),
        (
            f"{HEAD}logLevel = 'X'\n{GROUP}",
            "logLevel is one of 'DEBUG', 'INFO', 'WARNING', 'ERROR', not 'X'",
        ),
        (f"{HEAD}[[groups]]\npeers = 7\n", "[[groups]], number 1: peers is text in quotes, as in"),
        (f"{HEAD}{GROUP}[limits]\ngroupsMax = 'a'\n", "[limits]: groupsMax is a whole number"),
        (f"{HEAD}{GROUP}[security]\nlogin = 'off'\n", "[security]: login is one of 'required', "),
        (
            f"{HEAD}{GROUP}[security]\nmechanisms = 'PLAIN'\n",
            "[security]: mechanisms is a list of texts, as in [\"text\"], not 'PLAIN'",
        ),
        (
            f"{HEAD}{GROUP}[security]\nmechanisms = [7]\n",
            "[security]: mechanisms is a list of texts",
        ),
        (f"{HEAD}{GROUP}[security]\nlogn = 'none'\n", "unknown key `logn` in [security]; did you"),
        (f"{HEAD}security = 7\n{GROUP}", "security is a table, begun by [security] in a line"),
        (
            f"{HEAD}{GROUP}[security]\nmechanisms = ['SCRAM-SHA-1']\n",
            "[security]: mechanisms has 'SCRAM-SHA-1'; known are SCRAM-SHA-256, SCRAM-SHA-512,",
        ),
        (
            f"{HEAD}{GROUP}[security]\nmechanisms = ['PLAIN', 'PLAIN']\n",
            "[security]: mechanisms names one twice",
        ),
        (
            f"{HEAD}{GROUP}[security]\nmechanisms = ['OAUTHBEARER']\noauthJwksFile = 'keys'\n",
            "[security]: OAUTHBEARER in mechanisms needs oauthIssuer",
        ),
        (
            f"{HEAD}{GROUP}[security]\nsuperUsers = ['admin']\n",
            "[security]: superUsers has 'admin', which is no principal; write \"User:NAME\"",
        ),
        (f"{HEAD}listen = 7101\n{GROUP}", 'listen is text in quotes, as in "text", not 7101'),
        (f"{HEAD}groups = 7\n", f"{NO_TABLES} not 7"),
        (f"{HEAD}groups = [7]\n", f"{NO_TABLES} not 7"),
        (f"{HEAD}groups = {{}}\n", f"{NO_TABLES} not by [groups]"),
        (GROUP, "selfId is missing in the file's top"),
        (f"{HEAD}[[groups]]\n", "[[groups]], number 1: group is missing"),
        (f"{HEAD}[[groups]]\ngroup = 'g'\n", "group g: peers is missing"),
        (
            f"{HEAD}limits = 3\n{GROUP}",
            "limits is a table, begun by [limits] in a line of its own, not 3",
        ),
        (
            f"{HEAD}partitionGroups = [1]\n{GROUP}",
            "partitionGroups is a table, begun by [partitionGroups] in a line of its own, not [1]",
        ),
        (
            f"{HEAD}{GROUP}[partitionGroups]\nflush = [1]\n",
            "[partitionGroups]: flush is a number, true or false, or text in quotes, not [1]",
        ),
        (f"{HEAD}{GROUP}flushFileInterval = true\n", f"{INTERVAL}, not true"),
    ],
)
def test_errors_of_a_file_use_the_names_of_the_file(tmp_path, text, message):
    path = tmp_path / "n0.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load_config(path)
    assert str(refusal.value).startswith(f"{path}: {message}")


def test_who_logs_in_and_how_is_read_with_paths_beside_the_file(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(
        f"{HEAD}{GROUP}[security]\nlogin = 'none'\nmechanisms = ['PLAIN', 'OAUTHBEARER']\n"
        "superUsers = ['User:admin']\noauthJwksFile = 'keys.json'\noauthIssuer = 'i'\n"
        "oauthAudience = 'a'\n"
    )
    security = load_config(path).security
    assert security.oauth_jwks_file == str(tmp_path / "keys.json")
    assert (security.login, security.oauth_principal_claim) == ("none", "sub")
    cluster = GROUP.replace('"g"', '"__cluster"\nkind = "cluster"')
    path.write_text(f"{HEAD}{cluster}[security]\n")
    security = load_config(path).security
    assert (security.login, security.oauth_jwks_file) == ("required", "")
    assert security.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    path.write_text(f"{HEAD}{GROUP}")
    assert load_config(path).security is None


def test_where_metrics_are_sent_is_checked():
    sent = node(
        metrics_grpc_exporter_target="https://collector.example:4317",
        metrics_grpc_exporter_header="x-token: a b:c , other:",
        trace_every=100,
    )
    assert sent.exporter_headers == {"x-token": "a b:c", "other": ""}
    assert node().exporter_headers == {}
    for target in ("collector", "ftp://c:1", "c:99999", "https://c/path:1x"):
        with pytest.raises(ConfigError, match="metricsGrpcExporterTarget"):
            node(metrics_grpc_exporter_target=target)
    for header in ("no pair", "Upper:1", "a:1,,b:2", "a:\n"):
        with pytest.raises(ConfigError, match="metricsGrpcExporterHeader"):
            node(metrics_grpc_exporter_header=header)
    with pytest.raises(ConfigError, match="metricGrpcExporterIntervalInMills must be above 0"):
        node(metric_grpc_exporter_interval_in_mills=0)
    for changes in ({"trace_every": 5}, {"trace_every": -1, "metrics_grpc_exporter_target": "c:1"}):
        with pytest.raises(ConfigError, match="traceEvery must be 0"):
            node(**changes)


CLUSTER = {"group": "__cluster", "kind": "cluster", "peers": "n0-127.0.0.1:7101"}


def broker_config(groups=(CLUSTER,), **keys):
    document = {"selfId": "n0", "storeBaseDir": "d", "groups": list(groups), **keys}
    return msgspec.convert(document, NodeConfig)


@pytest.mark.parametrize(
    ("mechanisms", "groups", "refusal"),
    [
        (["PLAIN"], [CLUSTER], "PLAIN in mechanisms would send secrets that anybody could read"),
        (["SCRAM-SHA-512"], [], "are in __cluster: add \\[\\[groups\\]\\]"),
    ],
)
def test_a_login_that_nobody_could_use_is_refused(mechanisms, groups, refusal):
    plain = {"group": "g", "peers": "n0-127.0.0.1:7101"}
    security = {"mechanisms": mechanisms}
    with pytest.raises(ConfigError, match=refusal):
        broker_config([*groups, plain], security=security)
    security["login"] = "none"
    assert broker_config([*groups, plain], security=security)
    assert broker_config([plain], security={"mechanisms": []}).security.login == "required"


def test_a_broker_has_the_cluster_group_and_an_address_for_clients():
    config = broker_config(kafkaListen="127.0.0.1:9092")
    assert config.kafka_address == "127.0.0.1:9092"
    assert config.auto_create_topics
    assert config.cluster_group.state_machine == "cluster"
    other = broker_config(kafkaListen="127.0.0.1:9092", kafkaAdvertised="example.org:19092")
    assert other.kafka_address == "example.org:19092"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"groups": [{"group": "g", "peers": "n0-127.0.0.1:1"}]}, 'kind = "cluster"'),
        ({"kafkaListen": "0.0.0.0:9092"}, "without TLS only loopback addresses"),
        ({"kafkaListen": "0.0.0.0:9092", "insecure": True}, "set kafkaAdvertised"),
        ({"kafkaListen": "", "kafkaAdvertised": "a:1"}, "no meaning without kafkaListen"),
        ({"kafkaAdvertised": "a:0"}, "must have a port"),
        ({"kafkaListen": "nowhere"}, "is not host:port"),
        ({"groups": [{**CLUSTER, "kind": "log"}]}, "__cluster, and no other"),
        ({"groups": [{**CLUSTER, "group": "g"}]}, "__cluster, and no other"),
        ({"groups": [{**CLUSTER, "stateMachine": "kv"}]}, "no stateMachine of yours"),
        (
            {"groups": [{"group": "g", "peers": "n0-h:1", "stateMachine": "cluster"}]},
            "only __cluster has the stateMachine",
        ),
    ],
)
def test_an_impossible_broker_is_refused_in_words(keys, words):
    with pytest.raises((ConfigError, msgspec.ValidationError), match=re.escape(words)):
        broker_config(**{"kafkaListen": "127.0.0.1:9092", **keys})


NODE_WITH_TLS = """
selfId = "n0"
storeBaseDir = "/data"
listen = "127.0.0.1:7101"

[tls]
certificate = "tls/n0.pem"
key = "/keys/n0.key"
ca = "../ca.pem"
"""
TLS = {"certificate": "n0.pem", "key": "n0.key", "ca": "ca.pem"}


def test_files_of_tls_are_relative_to_the_configuration(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(NODE_WITH_TLS)
    config = load_config(path)
    assert config.tls.certificate == str(tmp_path / "tls" / "n0.pem")
    assert config.tls.key == "/keys/n0.key"
    assert config.tls.ca == str(tmp_path / "../ca.pem")
    assert (config.tls.crl, config.tls.mode, config.tls.client_auth) == ("", "required", "optional")
    other = tmp_path / "other" / "n0.toml"
    other.parent.mkdir()
    other.write_bytes(dump_config(config))
    assert load_config(other) == config


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('peerCA = "x"', "unknown key `peerCA` in [tls]; did you mean peerCa?"),
        ('tls.ca = "x"', "unknown key `tls` in [tls]"),
        ('mode = "on"', "[tls]: mode is one of 'required', 'optional', not 'on'"),
        ("minVersion = 1.2", "[tls]: minVersion is one of '1.2', '1.3', not 1.2"),
        ("crl = 1", '[tls]: crl is text in quotes, as in "text", not 1'),
        ('principalRules = "DEFAULT"', 'principalRules is a list of texts, as in ["text"]'),
        ('principalRules = ["x"]', "principalRules: 'x' is neither DEFAULT nor RULE"),
        ("memberRule = 'DNS:(.*)'", "set peerCa, too"),
    ],
)
def test_a_wrong_key_of_tls_is_told_in_the_words_of_the_file(tmp_path, line, words):
    path = tmp_path / "n0.toml"
    path.write_text(NODE_WITH_TLS + line)
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_config(path)


def test_a_file_that_tls_needs_is_named(tmp_path):
    path = tmp_path / "n0.toml"
    path.write_text(NODE_WITH_TLS.replace('key = "/keys/n0.key"', ""))
    with pytest.raises(ConfigError, match=r"key is missing in \[tls\]"):
        load_config(path)
    path.write_text(NODE_WITH_TLS.replace('"/keys/n0.key"', '""'))
    with pytest.raises(ConfigError, match=r"\[tls\] key: the name of a file is needed"):
        load_config(path)
    path.write_text(NODE_WITH_TLS.split("[tls]", maxsplit=1)[0] + 'tls = "on"')
    with pytest.raises(ConfigError, match=re.escape("tls is a table, begun by [tls]")):
        load_config(path)
    with pytest.raises(ConfigError, match="at most 32 rules"):
        TlsConfig(**TLS, principal_rules=["DEFAULT"] * 33)


def test_with_tls_a_node_may_listen_everywhere():
    tls = TlsConfig(**TLS)
    security = SecurityConfig(login="none", super_users=["User:admin"])
    assert node(listen="0.0.0.0:7101", tls=tls, security=security).tls is tls
    with pytest.raises(ConfigError, match="everybody who can connect may do everything"):
        node(listen="0.0.0.0:7101", tls=tls)
    optional = TlsConfig(**TLS, mode="optional")
    with pytest.raises(ConfigError, match="plain connections are served, too"):
        node(listen="0.0.0.0:7101", tls=optional)
    assert node(listen="0.0.0.0:7101", tls=optional, insecure=True)
