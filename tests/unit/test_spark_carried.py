"""Credentials that Spark's tasks carry: nothing is left to be read where a task runs."""

import os
import pickle

import pytest
from msgspec import structs

from certificates import CLUSTER_ID, Authority
from quorumlog.client.contexts import Access, Context
from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.client.outgoing_tls import outgoing_tls
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.model.secrets import Secret
from quorumlog.spark import QuorumlogSource, carried
from quorumlog.spark.access import (
    of_text,
    open_brokers,
    open_nodes,
    options_of,
    said_where,
    text_of,
)
from quorumlog.spark.carried import Carried, can_carry
from quorumlog.spark.data_source import CarryingSource
from quorumlog.spark.source.options import parse_options

CANARY = "canary-7f3a"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    made.user("alice")
    made.user("bob")
    return made


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """What this process keeps of a test's tasks, closed after it."""
    monkeypatch.setattr(carried, "_files", {})
    yield
    for file in carried._files.values():
        file.close()


def access(pki, directory, user="alice", **login):
    """A context whose files are copies that a test can remove."""
    own = [f"{user}.pem", f"{user}.key"]
    for name in own:
        path = directory / name
        path.write_bytes((pki.directory / name).read_bytes())
        path.chmod(0o600)
    ca = directory / "ca.pem"
    ca.write_bytes(pki.file.read_bytes())
    files = {"certificate": str(directory / own[0]), "key": str(directory / own[1])}
    given = Context(servers="h:1", kafka="h:2", ca=str(ca), cluster_id=CLUSTER_ID, **files, **login)
    return Access(given=given)


def remove(directory):
    for path in directory.iterdir():
        path.unlink()


def test_a_task_needs_no_file_of_the_driver(pki, tmp_path):
    password = tmp_path / "alice.password"
    password.write_text(CANARY)
    password.chmod(0o600)
    where = access(pki, tmp_path, password_file=str(password))
    where = Access(given=structs.replace(where.given, user="alice"))
    sent = pickle.dumps(Carried(where))
    remove(tmp_path)

    received = pickle.loads(sent)
    nodes, brokers = open_nodes(received), open_brokers(received)
    assert (nodes.servers, brokers.kafka) == ("h:1", "h:2")
    assert nodes == brokers  # so connections are shared
    security = nodes.security
    assert (security.user, security.password) == ("alice", Secret(CANARY))
    assert security.mechanism == "SCRAM-SHA-256"
    assert security.cluster_id == CLUSTER_ID
    assert outgoing_tls(security).context.cert_store_stats()["x509_ca"] == 1
    assert librdkafka_settings(security)["sasl.password"] == CANARY
    again = pickle.loads(pickle.dumps(received))  # a task may send it on
    assert again == received
    assert open_nodes(again) == nodes


def test_a_password_of_the_environment_and_a_token_are_carried(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD_OF_ALICE", CANARY)
    of_user = Access(given=Context(servers="h:1", user="alice", password_env="PASSWORD_OF_ALICE"))
    sent = pickle.dumps(Carried(of_user))
    monkeypatch.delenv("PASSWORD_OF_ALICE")
    security = open_nodes(pickle.loads(sent)).security
    assert (security.ca, security.password) == ("system", Secret(CANARY))

    token = tmp_path / "token"
    token.write_text("first")
    token.chmod(0o600)
    stream = Carried(Access(given=Context(servers="h:1", token_file=str(token))))
    assert open_nodes(pickle.loads(pickle.dumps(stream))).security.token == Secret("first")
    token.write_text("second")
    assert open_nodes(pickle.loads(pickle.dumps(stream))).security.token == Secret("second")


def test_where_it_was_made_the_files_are_read(pki, tmp_path):
    where = access(pki, tmp_path)
    assert open_nodes(Carried(where)) == open_nodes(where)
    assert not carried._files


def test_it_shows_nothing_of_what_it_carries(pki, tmp_path):
    received = pickle.loads(pickle.dumps(Carried(access(pki, tmp_path))))
    key = (tmp_path / "alice.key").read_text().splitlines()[1]
    for text in (repr(received), str(received), repr(received._received), text_of(received)):
        assert key not in text
    assert of_text(text_of(received)) == received.access
    assert "credentials" not in text_of(received)
    with open(open_nodes(received).security.key) as file:
        assert key in file.read()
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_files_of_the_driver_that_are_of_no_use_are_an_error_there(pki, tmp_path):
    where = access(pki, tmp_path)
    (tmp_path / "alice.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"alice\.key can be used by others"):
        pickle.dumps(Carried(where))
    (tmp_path / "alice.key").unlink()
    with pytest.raises(ConfigError, match=r"alice\.key cannot be read"):
        pickle.dumps(Carried(where))
    with pytest.raises(ConfigError, match="h:1 has no credentials"):
        pickle.dumps(Carried(Access(given=Context(servers="h:1"))))


def test_files_that_are_renewed_while_they_are_read_are_read_again(pki, tmp_path, monkeypatch):
    where, renewals = access(pki, tmp_path), ["bob"]
    checked = carried.outgoing_tls

    def renew(security):
        found = checked(security)
        if renewals:
            for kind in ("pem", "key"):
                content = (pki.directory / f"{renewals[0]}.{kind}").read_bytes()
                (tmp_path / f"alice.{kind}").write_bytes(content)
            renewals.pop()
        return found

    monkeypatch.setattr(carried, "outgoing_tls", renew)
    sent = pickle.dumps(Carried(where))
    outgoing_tls(open_nodes(pickle.loads(sent)).security)
    assert not renewals


def test_errors_on_an_executor_name_the_file_of_the_driver(pki, tmp_path):
    where = access(pki, tmp_path)
    received = pickle.loads(pickle.dumps(Carried(where)))
    _, key = received._received.files["key"]
    received._received.files["key"] = (where.given.key, key[:100])
    security = open_nodes(received).security
    with pytest.raises(ConfigError) as caught, said_where():
        outgoing_tls(security)
    assert f"{where.given.key} of the driver" in str(caught.value)
    assert "/proc" not in str(caught.value)


def test_what_a_process_keeps_is_bounded_and_never_another_content(pki, tmp_path, monkeypatch):
    monkeypatch.setattr(carried, "FILES_MAX", 4)
    tasks = [pickle.dumps(Carried(access(pki, tmp_path, name))) for name in ("alice", "bob")]
    alice = open_nodes(pickle.loads(tasks[0])).security
    assert open_nodes(pickle.loads(tasks[0])).security == alice  # three files
    with pytest.raises(ConfigError, match=r"4 different certificates and keys.*start the Spark"):
        open_nodes(pickle.loads(tasks[1]))
    outgoing_tls(alice)


class Application:
    """A session, and the settings that its application was started with."""

    def __init__(self, master, **settings):
        setattr(self, "_jsparkSession", None)  # noqa: B010  (Spark's name)
        self.sparkContext, self.master = self, master
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def getConf(self):  # noqa: N802  (Spark's name)
        return self

    def getAll(self):  # noqa: N802
        return list(self._settings.items())


CRYPTO = {"spark_network_crypto_enabled": "true"}


@pytest.mark.parametrize(
    ("application", "may"),
    [
        (Application("local"), True),
        (Application("local[2,2]"), True),
        (Application("local-cluster[1,1,1024]"), False),
        (Application("spark://h:7077"), False),
        (Application("yarn", **CRYPTO), False),
        (Application("yarn", **CRYPTO, spark_authenticate="true"), True),
        (Application("k8s://h", spark_ssl_rpc_enabled="True"), True),
        (object(), False),  # of Spark Connect
    ],
)
def test_tasks_carry_credentials_only_where_nobody_can_listen(application, may):
    assert can_carry(application) is may


@pytest.mark.parametrize("name", ["credentials", "Credentials"])
def test_a_source_that_was_not_allowed_to_refuses(name):
    options = {"context": "prod", "group": "g", name: "driver"}
    with pytest.raises(UnexpectedArgumentError, match=r"spark\.authenticate=true.*register\("):
        QuorumlogSource(options)
    CarryingSource(options)
    QuorumlogSource({**options, name: "here"})


def test_the_option_is_one_of_two_words_and_needs_credentials():
    of_context = {"context": "prod", "group": "g"}
    assert parse_options({**of_context, "credentials": "here"}).servers == Access(context="prod")
    found = parse_options({**of_context, "credentials": "Driver"}).servers
    assert found == Carried(Access(context="prod"))
    assert options_of(found, "servers") == {"context": "prod", "credentials": "driver"}
    with pytest.raises(UnexpectedArgumentError, match=r"credentials='there' is wrong.*here"):
        parse_options({**of_context, "credentials": "there"})
    with pytest.raises(UnexpectedArgumentError, match="there are no credentials"):
        parse_options({"servers": "h:1", "group": "g", "credentials": "driver"})
