"""Users, ACLs and quotas of a cluster: by the client, by the command, and by Kafka's clients."""

import json

import confluent_kafka.admin as confluent
import kafka.admin as kafka_python
import pytest
from command_line import command, objects
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from kafka_nodes import files_with, kafka_nodes
from quorumlog import SyncClient
from quorumlog.auth.acls import (
    ALL_ACLS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from quorumlog.auth.decoys import HmacDecoys
from quorumlog.auth.verifiers import verifier_of
from quorumlog.errors import RequestError, UnexpectedArgumentError
from quorumlog.model.codes import ResponseCode

SECONDS = 60
PASSWORD = "correct horse, battery staple"
SHA256, SHA512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SALT = b"of librdkafka's"
FLIGHTS = Resource(ResourceType.TOPIC, "flights")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("security"), 3) as nodes:
        yield nodes


@pytest.fixture
def security(cluster):
    with SyncClient(cluster.addresses) as client:
        yield client.security
        client.security.remove_acls(ALL_ACLS)
        for one in client.security.users():
            client.security.remove_user(one.name)


@pytest.fixture
def run(cluster, security, monkeypatch):
    """Run a command; return its exit status, its output and what it said on standard error."""

    def run(*arguments, password=None):
        monkeypatch.delenv("QUORUMLOG_NEW_PASSWORD", raising=False)
        if password is not None:
            monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", password)
        return command(*arguments, "--servers", cluster.addresses)

    return run


def acl(name="flights", **fields):
    given = {
        "resource_type": ResourceType.TOPIC,
        "pattern": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(name=name, **given | fields)


def views(cluster):
    """What each node judges by, once all have what was changed before."""
    cluster.settle()
    return [node.broker.security for node in cluster.nodes]


# -- the client -----------------------------------------------------------------------------------


def test_every_node_takes_the_same_salt_for_a_user_who_does_not_exist(cluster, security):
    security.add_user("alice", PASSWORD, mechanisms=[SHA256], iterations=4_097)

    def decoy(view, node_secret):
        return HmacDecoys(node_secret, lambda: view.decoys).verifier("nobody", SHA256)

    found = {decoy(view, bytes([number])) for number, view in enumerate(views(cluster))}
    assert [one.iterations for one in found] == [4_097], "one for all, as those of users"
    security.remove_user("alice")
    security.add_user("bob", PASSWORD, mechanisms=[SHA256], iterations=4_097)
    assert {decoy(view, b"") for view in views(cluster)} == found, "it stays"


def test_every_node_can_check_the_password_of_a_user_and_none_can_tell_it(cluster, security):
    security.add_user("alice", PASSWORD, iterations=4_096)
    for view in views(cluster):
        kept = view.verifier("alice", SHA256)
        assert kept == verifier_of(PASSWORD, SHA256, kept.salt, 4_096)
        assert view.verifier("alice", SHA512).iterations == 4_096
    assert [(one.name, dict(one.iterations)) for one in security.users()] == [
        ("alice", {SHA256: 4_096, SHA512: 4_096})
    ]
    with pytest.raises(RequestError, match="there is a user 'alice' already") as caught:
        security.add_user("alice", "another one", iterations=4_096)
    assert caught.value.code is ResponseCode.USER_EXISTS

    security.change_password("alice", "new", mechanisms=[SHA512], iterations=4_096)
    for view in views(cluster):
        assert view.verifier("alice", SHA256) is None, "the old password counts no more"
    security.remove_user("alice")
    assert not any(view.has_users for view in views(cluster))
    for call in (security.remove_user, lambda name: security.change_password(name, "p")):
        with pytest.raises(RequestError, match="there is no user 'alice'"):
            call("alice")


def test_errors_never_show_a_password(security):
    for name, password in (("*", PASSWORD), ("alice", "\x07secret"), ("alice", b"secret")):
        with pytest.raises(UnexpectedArgumentError) as caught:
            security.add_user(name, password)
        assert "secret" not in str(caught.value)
        assert PASSWORD not in str(caught.value)


def test_acls_are_added_judged_by_all_nodes_and_removed(cluster, security):
    many = [acl(f"topic-{number:04}" + "x" * 200) for number in range(300)]
    rules = [acl("fl", pattern=PatternType.PREFIXED), acl(permission=Permission.DENY)]
    security.add_acls([*many, *rules])

    assert set(security.acls()) == {*many, *rules}, "they come in several pages"
    assert security.acls(AclFilter(name="flights", pattern=PatternType.MATCH)) == rules
    denied = security.check("User:alice", Operation.READ, FLIGHTS)
    assert (denied.is_allowed, denied.acl) == (False, rules[1])
    assert security.remove_acls(AclFilter(permission=Permission.DENY)) == rules[1:]
    allowed = security.check("User:alice", Operation.DESCRIBE, FLIGHTS)
    assert (allowed.is_allowed, allowed.acl) == (True, rules[0])
    assert not security.check("User:bob", Operation.READ, FLIGHTS).is_allowed
    assert len({view.version for view in views(cluster)}) == 1


def test_quotas_are_set_and_removed(security):
    security.alter_quotas(
        [("user", "alice")], {"producer_byte_rate": 1_000, "consumer_byte_rate": 5}
    )
    security.alter_quotas([("user", "alice")], {"consumer_byte_rate": None})
    security.alter_quotas([("ip", None)], {"connection_creation_rate": 10})
    assert [(one.entity, dict(one.values)) for one in security.quotas()] == [
        ((("user", "alice"),), {"producer_byte_rate": 1_000}),
        ((("ip", None),), {"connection_creation_rate": 10}),
    ]
    security.alter_quotas([("user", "alice")], {"producer_byte_rate": None})
    security.alter_quotas([("ip", None)], {"connection_creation_rate": None})
    assert security.quotas() == []


# -- the command ----------------------------------------------------------------------------------


def test_users_are_administered_by_the_command(run, cluster, tmp_path):
    status, out, err = run("user", "add", "alice", "--iterations", "4096", password=PASSWORD)
    assert (status, out) == (0, "user alice is added\n")
    assert "alice has no rights yet" in err
    file = tmp_path / "password"
    file.write_text("new one\n")
    file.chmod(0o644)
    status, _, err = run("user", "passwd", "alice", "--password-file", str(file))
    assert (status, err) == (
        1,
        f"quorumlog: password file {file} can be used by others than its owner (rights 0644): "
        f"chmod 600 {file}\n",
    )
    file.chmod(0o600)
    options = ("--password-file", str(file), "--mechanism", SHA256, "--iterations", "4096")
    assert run("user", "passwd", "alice", *options)[0] == 0
    (view, *_) = views(cluster)
    kept = view.verifier("alice", SHA256)
    assert kept == verifier_of("new one", SHA256, kept.salt, 4_096)

    assert objects("user", "list", "--servers", cluster.addresses) == [
        {"user": "alice", "iterations": {SHA256: 4096}}
    ]
    _, out, _ = run("user", "list")
    assert [line.split() for line in out.splitlines()] == [
        ["USER", "MECHANISM", "ITERATIONS"],
        ["alice", SHA256, "4096"],
    ]
    run("acl", "add", "--user", "alice", "--operation", "read", "--topic", "flights")
    status, out, err = run("user", "remove", "alice")
    assert (status, out) == (0, "user alice is removed\n")
    assert "1 ACL for alice are left" in err or "1 ACL for alice is left" in err
    status, _, err = run("user", "remove", "alice")
    assert (status, err) == (
        1,
        "quorumlog: there is no user 'alice' ('quorumlog user list' shows those there are)\n",
    )


def test_a_password_is_asked_for_only_at_a_terminal(run):
    status, _, err = run("user", "add", "alice")
    assert status == 1
    assert "there is no terminal to ask for a password at: give --password-file FILE" in err


def test_roles_are_given_checked_and_taken(run, cluster):
    status, out, err = run("acl", "add", "--user", "alice", "--role", "reader", "--topic", "fli*")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["USER", "MAY", "OPERATION", "RESOURCE", "NAME", "HOST"],
        ["alice", "allow", "read", "topic", "fli*", "*"],
    ]
    assert "also need --consumer-group" in err
    asked = ("acl", "check", "--user", "alice", "--topic", "flights", "--operation")
    assert run(*asked, "read")[:2] == (0, "allowed: allow User:alice read topic fli*\n")
    assert run(*asked, "describe")[0] == 0
    assert run(*asked, "write")[:2] == (1, "not allowed: no ACL allows it\n")
    run("acl", "add", "--user", "*", "--operation", "all", "--topic", "flights", "--deny")
    assert run(*asked, "read")[:2] == (1, "not allowed: deny User:* all topic flights\n")
    status, out, _ = run(*asked, "read", "--json")
    assert json.loads(out)["acl"]["permission"] == "deny"

    _, out, _ = run("acl", "list", "--topic", "flights")
    assert len(out.splitlines()) == 3
    assert max(map(len, out.splitlines())) <= 80
    status, out, err = run(
        "acl", "remove", "--user", "alice", "--role", "reader", "--topic", "fli*"
    )
    assert (status, err) == (0, "quorumlog: 1 ACL removed\n")
    assert [one["principal"] for one in objects("acl", "list", "--servers", cluster.addresses)] == [
        "User:*"
    ]


def test_several_roles_are_given_at_once_each_for_what_it_is_for(run):
    roles = ("--user", "carla", "--role", "reader", "--role", "writer")
    names = ("--topic", "red*", "--consumer-group", "red*")
    status, out, _ = run("acl", "add", *roles, *names)
    assert status == 0
    assert [line.split()[2:5] for line in out.splitlines()[1:]] == [
        ["read", "topic", "red*"],
        ["read", "consumer-group", "red*"],
        ["write", "topic", "red*"],
    ]
    status, _, err = run("acl", "add", *roles, "--topic", "red", "--cluster")
    assert status != 0
    assert "cluster" in err
    status, out, _ = run("acl", "add", *roles, "--role", "monitor", "--topic", "red*")
    assert (status, "kafka-cluster" in out or "cluster" in out) == (0, True)
    assert run("acl", "remove", "--user", "carla", "--role", "monitor")[0] == 0
    assert run("acl", "remove", *roles, *names)[::2] == (0, "quorumlog: 3 ACLs removed\n")


def test_a_role_is_taken_whatever_the_address_is_or_for_one(run, cluster):
    def hosts():
        return [one["host"] for one in objects("acl", "list", "--servers", cluster.addresses)]

    role = ("--user", "alice", "--role", "writer", "--topic", "flights")
    for host in ("10.0.0.0/8", "10.1.0.1"):
        assert run("acl", "add", *role, "--host", host)[0] == 0
    assert run("acl", "remove", *role, "--host", "10.1.0.1/32")[2] == "quorumlog: 1 ACL removed\n"
    assert hosts() == ["10.0.0.0/8"]
    assert run("acl", "remove", *role)[2] == "quorumlog: 1 ACL removed\n"
    assert hosts() == []


def test_an_operator_may_see_and_run_everything_and_read_nothing(run):
    assert run("acl", "add", "--user", "olga", "--role", "operator")[0] == 0

    def may(operation, *what):
        return run("acl", "check", "--user", "olga", "--operation", operation, *what)[0] == 0

    assert may("alter", "--cluster")
    assert may("describe", "--topic", "flights")
    assert may("alter", "--group", "lights")
    assert not may("read", "--topic", "flights")
    assert not may("read", "--group", "lights")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "--user", "a", "--topic", "t"], "give either --operation or --role"),
        (["add", "--user", "a", "--operation", "read"], "name what it is about"),
        (["add", "--user", "a", "--operation", "read", "--cluster"], "no operation read"),
        (["add", "--user", "a", "--role", "reader", "--topic", "x*y"], "only a * at the end"),
        (["add", "--user", "a", "--role", "reader", "--group", "*x*"], "only a * at the end"),
        (["remove"], "say which"),
        (["check", "--user", "a", "--operation", "read", "--topic", "t*"], "name one thing"),
    ],
)
def test_what_makes_no_sense_is_refused_as_wrong_use(run, arguments, said):
    status, _, err = run("acl", *arguments)
    assert status == 2
    assert said in " ".join(err.replace("│", " ").split())


def test_quotas_are_administered_by_the_command(run, cluster):
    status, out, _ = run(
        "quota", "set", "--user", "alice", "--client-id", "*", "producer_byte_rate=2000000"
    )
    assert (status, out) == (0, "set for user alice, client-id *: producer_byte_rate\n")
    _, out, _ = run("quota", "list")
    assert out.splitlines()[1].split() == [
        "user",
        "alice,",
        "client-id",
        "*",
        "producer_byte_rate",
        "2000000",
    ]
    assert objects("quota", "list", "--servers", cluster.addresses) == [
        {"entity": {"client-id": None, "user": "alice"}, "quotas": {"producer_byte_rate": 2e6}}
    ]
    status, out, _ = run("quota", "remove", "--user", "alice", "--client-id", "*")
    assert (status, out) == (0, "removed for user alice, client-id *: producer_byte_rate\n")
    status, _, err = run("quota", "set", "--user", "alice", "speed=1")
    assert status == 1
    assert "there is no quota 'speed'; there are producer_byte_rate, " in err


# -- Kafka's clients ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.servers})


@pytest.fixture(scope="module")
def python_admin(cluster):
    client = KafkaAdminClient(bootstrap_servers=cluster.servers.split(","))
    yield client
    client.close()


def binding(name="flights", kind=confluent.ResourceType.TOPIC, **fields):
    given = {
        "resource_pattern_type": confluent.ResourcePatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": confluent.AclOperation.READ,
        "permission_type": confluent.AclPermissionType.ALLOW,
    }
    return confluent.AclBinding(kind, name, **given | fields)


EVERY_BINDING = confluent.AclBindingFilter(
    confluent.ResourceType.ANY,
    None,
    confluent.ResourcePatternType.ANY,
    None,
    None,
    confluent.AclOperation.ANY,
    confluent.AclPermissionType.ANY,
)


def test_acls_of_librdkafka_are_those_of_the_cluster(admin, security):
    group = binding("g", confluent.ResourceType.GROUP, host="10.0.0.1")
    prefix = binding("fl", resource_pattern_type=confluent.ResourcePatternType.PREFIXED)
    for future in admin.create_acls([group, prefix]).values():
        future.result(SECONDS)
    of_a_log = acl("lights", resource_type=ResourceType.GROUP)
    security.add_acls([of_a_log])

    assert {one.text for one in security.acls()} == {
        "allow User:alice read consumer-group g from 10.0.0.1",
        "allow User:alice read topic fl*",
        "allow User:alice read group lights",
    }
    assert set(admin.describe_acls(EVERY_BINDING).result(SECONDS)) == {group, prefix}
    (removed,) = admin.delete_acls([EVERY_BINDING]).values()
    assert set(removed.result(SECONDS)) == {group, prefix}
    assert security.acls() == [of_a_log], "no client of Kafka sees or removes what it cannot name"


def test_acls_of_kafka_python_are_those_of_the_cluster(python_admin, security):
    pattern = kafka_python.ResourcePattern(kafka_python.ResourceType.TOPIC, "flights")
    given = kafka_python.ACL(
        "User:bob",
        "*",
        kafka_python.ACLOperation.WRITE,
        kafka_python.ACLPermissionType.DENY,
        pattern,
    )
    python_admin.create_acls([given])
    assert [one.text for one in security.acls()] == ["deny User:bob write topic flights"]
    asked = kafka_python.ACLFilter(
        principal="User:bob",
        host=None,
        operation=kafka_python.ACLOperation.ANY,
        permission_type=kafka_python.ACLPermissionType.ANY,
        resource_pattern=kafka_python.ResourcePatternFilter(
            kafka_python.ResourceType.ANY, None, kafka_python.ACLResourcePatternType.ANY
        ),
    )
    assert given in python_admin.describe_acls(asked)[0]
    python_admin.delete_acls([asked])
    assert security.acls() == []


def test_a_password_that_librdkafka_gives_is_checked_like_any_other(admin, security, cluster):
    how = confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_256, 5_000)
    given = confluent.UserScramCredentialUpsertion("alice", how, PASSWORD.encode(), SALT)
    admin.alter_user_scram_credentials([given])["alice"].result(SECONDS)
    for view in views(cluster):
        assert view.verifier("alice", SHA256) == verifier_of(PASSWORD, SHA256, SALT, 5_000)

    (info,) = (
        admin.describe_user_scram_credentials(["alice"])["alice"]
        .result(SECONDS)
        .scram_credential_infos
    )
    assert (info.mechanism, info.iterations) == (how.mechanism, 5_000)
    reserved = confluent.UserScramCredentialUpsertion("ANONYMOUS", how, PASSWORD.encode(), b"salt")
    with pytest.raises(KafkaException, match="no user may be called 'ANONYMOUS'"):
        admin.alter_user_scram_credentials([reserved])["ANONYMOUS"].result(SECONDS)
    unknown = admin.describe_user_scram_credentials(["bob"])["bob"]
    with pytest.raises(KafkaException, match="there is no user 'bob'"):
        unknown.result(SECONDS)
    short = confluent.UserScramCredentialUpsertion("bob", how, PASSWORD.encode(), b"eleven here")
    with pytest.raises(KafkaException, match="a salt has 12 to 256 bytes, not 11"):
        admin.alter_user_scram_credentials([short])["bob"].result(SECONDS)
    deletion = confluent.UserScramCredentialDeletion("alice", how.mechanism)
    admin.alter_user_scram_credentials([deletion])["alice"].result(SECONDS)
    assert security.users() == []


# -- what happens to nodes ------------------------------------------------------------------------


def test_no_password_is_in_the_log_or_in_snapshots(cluster, security):
    security.add_user("alice", PASSWORD, iterations=4_096)
    with SyncClient(cluster.addresses, "__cluster") as client:
        client.admin.save_snapshot()
    assert files_with(cluster, PASSWORD.encode()) == []
