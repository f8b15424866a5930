"""How Spark's options name a cluster, and that none of them is a secret."""

import json
import pickle
import platform
import traceback

import pytest

from quorumlog.client.contexts import Access, Context
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.spark import QuorumlogSource
from quorumlog.spark.access import of_text, open_brokers, open_nodes, options_of, text_of
from quorumlog.spark.sink.options import parse_write_options
from quorumlog.spark.sink.topics.options import parse_topic_options as parse_topic_write_options
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.topics.options import parse_topic_options

CANARY = "canary-7f3a"
KINDS = [
    (parse_options, {"group": "g"}, "servers"),
    (parse_write_options, {"group": "g"}, "servers"),
    (parse_topic_options, {"subscribe": "t"}, "kafka.bootstrap.servers"),
    (parse_topic_write_options, {"topic": "t"}, "kafka.bootstrap.servers"),
]
FILES = {
    "ca": "/ca.pem",
    "certificate": "/a.pem",
    "keyFile": "/a.key",
    "clusterId": "0123456789abcdefghijk_",
    "verifyName": "cluster",
}
GIVEN = {
    "ca": "/ca.pem",
    "certificate": "/a.pem",
    "key": "/a.key",
    "cluster_id": "0123456789abcdefghijk_",
    "verify_name": "cluster",
}


@pytest.mark.parametrize(("parse", "of_kind", "servers"), KINDS[:3])
def test_a_context_or_files_say_how_a_cluster_is_reached(parse, of_kind, servers):
    assert parse({**of_kind, "context": "prod"}).servers == Access(context="prod")
    assert parse({**of_kind, servers: "h:1, h:2"}).servers == "h:1,h:2"
    found = parse({**of_kind, servers: "h:1", **FILES}).servers
    addresses = {"kafka" if "kafka" in servers else "servers": "h:1"}
    assert found == Access(given=Context(**addresses, **GIVEN))
    assert parse({**of_kind, **options_of(found, servers)}).servers == found


@pytest.mark.parametrize(("parse", "of_kind", "servers"), KINDS)
def test_two_that_say_it_are_refused(parse, of_kind, servers):
    for other in ({servers: "h:1"}, {"ca": "/ca.pem"}):
        with pytest.raises(UnexpectedArgumentError, match=r"options context and .* are given"):
            parse({**of_kind, "context": "prod", **other})
    with pytest.raises(UnexpectedArgumentError, match=f"'{servers}' is missing"):
        parse({**of_kind, "ca": "/ca.pem"})
    with pytest.raises(UnexpectedArgumentError, match="verifyName='dns' is wrong"):
        parse({**of_kind, servers: "h:1", "verifyName": "dns"})


@pytest.mark.parametrize(
    "name",
    ["password", "token", "PassWord", "kafka.sasl.jaas.config", "kafka.ssl.key.password", "secret"],
)
@pytest.mark.parametrize(("parse", "of_kind", "servers"), KINDS)
def test_an_option_that_would_be_a_secret_is_refused_without_it(parse, of_kind, servers, name):
    with pytest.raises(UnexpectedArgumentError, match="Spark keeps options in plans") as raised:
        parse({**of_kind, servers: "h:1", name: CANARY})
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_the_environment_of_the_driver_says_it_else(monkeypatch):
    monkeypatch.setenv("QUORUMLOG_SERVERS", "h:7")
    monkeypatch.setenv("QUORUMLOG_BOOTSTRAP_SERVERS", "h:9")
    found = parse_options({"group": "g"}).servers
    assert open_nodes(found).servers == "h:7"
    assert open_brokers(parse_topic_options({"subscribe": "t"}).servers).kafka == "h:9"


def test_what_lacks_is_said_with_the_machine_that_lacks_it():
    where = f"on {platform.node()}: "
    with pytest.raises(ConfigError, match=f"{where}there is no context 'prod'"):
        open_nodes(Access(context="prod"))
    with pytest.raises(ConfigError, match=f"{where}password file /none cannot be read"):
        open_nodes(Access(given=Context(servers="h:1", user="a", password_file="/none")))
    with pytest.raises(ConfigError, match=f"{where}h:1 names no brokers: it lacks kafka"):
        open_brokers(Access(given=Context(servers="h:1")))
    with pytest.raises(ConfigError, match=f"{where}h:1 names no nodes: it lacks servers"):
        open_nodes(Access(given=Context(kafka="h:1")))


def test_what_spark_is_given_to_carry_has_no_secret(tmp_path):
    path = tmp_path / "alice.pw"
    path.write_text(CANARY)
    path.chmod(0o600)
    options = {"servers": "h:1", "group": "g", "user": "alice", "passwordFile": str(path)}
    source = QuorumlogSource(options)
    reader = source.reader(source.schema())
    assert CANARY.encode() not in pickle.dumps(reader)
    found = parse_options(options).servers
    assert open_nodes(found).security.password.reveal() == CANARY
    assert CANARY not in text_of(found)


@pytest.mark.parametrize(
    "where", ["h:1,h:2", Access(context="prod"), Access(given=Context(servers="h:1", ca="/c"))]
)
def test_a_query_tells_its_listener_where_to_report(where):
    assert of_text(json.loads(json.dumps(text_of(where)))) == where
