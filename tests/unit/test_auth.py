"""Names of users, ACLs and their filters, quotas, and verifiers of passwords."""

import base64

import pytest

from quorumlog.auth.acls import (
    ANY_HOST,
    CLUSTER,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    checked_acl,
    value_of,
    word_of,
)
from quorumlog.auth.judge import explain, judge
from quorumlog.auth.principals import new_user_name, principal, principal_of, user_name
from quorumlog.auth.quotas import check_quota, checked_entity
from quorumlog.auth.rules import PrincipalRules
from quorumlog.auth.verifiers import (
    check_verifier,
    prepared_password,
    verifier_of,
    verifier_of_salted,
)
from quorumlog.auth.view import NO_SECURITY, SecurityView
from quorumlog.model.errors import UnexpectedArgumentError


def acl(**changes):
    fields = {
        "resource_type": ResourceType.TOPIC,
        "name": "flights",
        "pattern": PatternType.LITERAL,
        "principal": "User:alice",
        "host": ANY_HOST,
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(**fields | changes)


# -- names --------------------------------------------------------------------------------------


def test_a_user_has_one_name_however_it_is_typed():
    assert user_name("u\u0308ber") == user_name("\u00fcber") == "\u00fcber"
    assert principal_of("alice") == principal("User:alice") == "User:alice"
    assert principal("User:*") == "User:*"


@pytest.mark.parametrize("name", ["", "a" * 129, "a\nb", "a\x00", "\u2028", "*"])
def test_a_name_that_no_user_can_have_is_refused(name):
    with pytest.raises(UnexpectedArgumentError):
        user_name(name)


@pytest.mark.parametrize("name", [" ", "\u3000 ", "\u200b", "ANONYMOUS", "\uff21NONYMOUS", "*", ""])
def test_a_name_that_is_reserved_or_cannot_be_seen_is_no_new_users(name):
    with pytest.raises(UnexpectedArgumentError):
        new_user_name(name)


@pytest.mark.parametrize("name", ["a b", "anonymous", "M\u00fcller", "\u0645\u06cc\u200c\u062e"])
def test_other_names_are(name):
    assert new_user_name(name) == name


@pytest.mark.parametrize("text", ["alice", "Group:a", "user:alice", "User:", "Node:n0"])
def test_a_principal_of_an_acl_is_a_users(text):
    with pytest.raises(UnexpectedArgumentError):
        principal(text)


# -- ACLs ---------------------------------------------------------------------------------------


def test_hosts_are_kept_in_one_form():
    assert checked_acl(acl(host="10.1.0.0/16")).host == "10.1.0.0/16"
    assert checked_acl(acl(host="10.1.0.7/32")).host == "10.1.0.7"
    assert checked_acl(acl(host="0:0::1")).host == "::1"
    assert checked_acl(acl(host="::ffff:10.1.0.7")).host == "10.1.0.7"
    assert checked_acl(acl(host="::ffff:10.0.0.0/104")).host == "10.0.0.0/8"
    assert checked_acl(acl(host="::ffff:0:0/96")).host == "0.0.0.0/0"
    assert checked_acl(acl(host="::/0")).host == "::/0"


def may_read(acls, host):
    """Return whether alice may; both ways to find it out agree."""
    view = SecurityView(
        1, {}, {"User:alice": dict.fromkeys(acls)}, {"User:alice": PrincipalRules(acls)}
    )
    asked = view, "User:alice", Operation.READ, Resource(ResourceType.TOPIC, "flights"), host
    found = judge(*asked)
    assert explain(*asked).is_allowed is found
    return found


@pytest.mark.parametrize("written", ["10.1.0.7", "::ffff:10.1.0.7", "::ffff:10.1.0.0/120"])
def test_an_ipv4_address_is_denied_however_it_is_written(written):
    acls = [acl(), acl(permission=Permission.DENY, host=written)]
    assert not may_read(acls, "10.1.0.7")
    assert not may_read(acls, "::ffff:10.1.0.7")
    assert may_read(acls, "10.2.0.7")
    only = [acl(host=written)]
    assert may_read(only, "10.1.0.7")
    assert may_read(only, "::ffff:10.1.0.7")
    assert not may_read(only, "::1")


def test_a_host_that_cannot_be_read_allows_nothing_and_denies():
    """Another version of Python could read it, on the node that was asked."""
    assert not may_read([acl(host="10.01.0.7")], "10.1.0.7")
    assert not may_read([acl(), acl(host="10.01.0.7", permission=Permission.DENY)], "10.1.0.7")


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": ResourceType.ANY},
        {"operation": Operation.ANY},
        {"pattern": PatternType.MATCH},
        {"permission": Permission.ANY},
        {"host": "example.org"},
        {"host": "10.1.0.1/16"},
        {"principal": "alice"},
        {"name": ""},
        {"resource_type": ResourceType.CLUSTER, "name": "other"},
    ],
)
def test_an_acl_that_could_never_be_judged_is_refused(changes):
    with pytest.raises(UnexpectedArgumentError):
        checked_acl(acl(**changes))


def test_groups_of_quorumlog_have_no_room_on_kafkas_wire():
    assert not ResourceType.GROUP.is_kafkas
    assert ResourceType.GROUP > 127
    assert all(one.is_kafkas for one in ResourceType if one <= 127)


def test_values_have_words():
    assert value_of(Operation, "Describe-Configs") is Operation.DESCRIBE_CONFIGS
    assert value_of(ResourceType, word_of(ResourceType.CONSUMER_GROUP)).name == "CONSUMER_GROUP"
    with pytest.raises(UnexpectedArgumentError, match=r"no operation 'run'; there are any, all, "):
        value_of(Operation, "run")
    assert all(Operation.ALL in found for found in OPERATIONS.values())


def test_filters_select_as_kafkas_do():
    literal, prefixed = acl(), acl(name="fl", pattern=PatternType.PREFIXED)
    every = acl(name="*")

    def found(**asked):
        return [one for one in (literal, prefixed, every) if AclFilter(**asked).has(one)]

    assert found() == [literal, prefixed, every]
    assert found(name="flights") == [literal]
    assert found(name="flights", pattern=PatternType.MATCH) == [literal, prefixed, every]
    assert found(name="fl", pattern=PatternType.PREFIXED) == [prefixed]
    assert found(name="*") == [every]
    assert found(principal="User:bob") == []
    assert found(operation=Operation.WRITE) == found(permission=Permission.DENY) == []
    assert found(host="10.0.0.1") == found(resource_type=ResourceType.GROUP) == []


def test_without_an_acl_nothing_is_allowed():
    asked = NO_SECURITY, "User:alice", Operation.DESCRIBE, CLUSTER
    assert explain(*asked) == (False, None, "no ACL allows it")
    assert explain(*asked, super_users={"User:alice"}).is_allowed


def test_an_acl_says_what_it_is():
    assert acl().text == "allow User:alice read topic flights"
    one = acl(name="fl", pattern=PatternType.PREFIXED, host="10.0.0.0/8")
    assert one.text == "allow User:alice read topic fl* from 10.0.0.0/8"
    assert Resource(one.resource_type, one.name) == (ResourceType.TOPIC, "fl")


# -- passwords ----------------------------------------------------------------------------------


def test_a_verifier_is_that_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    found = verifier_of("pencil", "SCRAM-SHA-256", salt, 4096)

    assert base64.b64encode(found.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(found.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert (found.salt, found.iterations) == (salt, 4096)
    check_verifier(found, "SCRAM-SHA-256")


def test_passwords_that_look_alike_are_the_same():
    assert prepared_password("I\u00adX") == "IX"  # RFC 4013, examples
    assert prepared_password("\u00aa") == "a"
    assert prepared_password("\u2168") == "IX"
    assert prepared_password("a\u00a0b") == "a b"


@pytest.mark.parametrize("password", ["", "\u00ad", "a\x07", "\u06271", "x" * 1025])
def test_a_password_that_no_client_could_send_is_refused(password):
    with pytest.raises(UnexpectedArgumentError):
        prepared_password(password)


@pytest.mark.parametrize(
    ("salted", "mechanism", "salt", "iterations"),
    [
        (bytes(32), "PLAIN", b"salt-of-tests", 4096),
        (bytes(32), "SCRAM-SHA-512", b"salt-of-tests", 4096),
        (bytes(32), "SCRAM-SHA-256", b"", 4096),
        (bytes(32), "SCRAM-SHA-256", b"eleven here", 4096),  # nobody could log in with it
        (bytes(32), "SCRAM-SHA-256", b"salt-of-tests", 4095),
        (bytes(32), "SCRAM-SHA-256", b"salt-of-tests", 1_000_001),
    ],
)
def test_verifiers_have_bounds(salted, mechanism, salt, iterations):
    with pytest.raises(UnexpectedArgumentError):
        verifier_of_salted(salted, mechanism, salt, iterations)


def test_keys_of_another_mechanism_are_no_verifier():
    found = verifier_of_salted(bytes(32), "SCRAM-SHA-256", b"salt-of-tests", 4096)
    with pytest.raises(UnexpectedArgumentError, match="64 bytes"):
        check_verifier(found, "SCRAM-SHA-512")


# -- quotas -------------------------------------------------------------------------------------


def test_quotas_are_for_users_client_ids_or_addresses():
    both = checked_entity([("user", "u\u0308"), ("client-id", None)])
    assert both == (("client-id", None), ("user", "\u00fc"))
    assert checked_entity([("ip", "10.0.0.1")]) == (("ip", "10.0.0.1"),)
    assert checked_entity([("ip", "::ffff:10.0.0.1")]) == (("ip", "10.0.0.1"),)
    check_quota(both, "producer_byte_rate", 1024)
    check_quota(checked_entity([("ip", None)]), "connection_creation_rate", None)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("user", "a"), ("ip", "10.0.0.1")],
        [("user", "a"), ("user", "b")],
        [("host", "a")],
        [("ip", "example.org")],
        [("ip", "10.0.0.0/8")],
        [("client-id", "")],
    ],
)
def test_a_quota_for_something_else_is_refused(parts):
    with pytest.raises(UnexpectedArgumentError):
        checked_entity(parts)


@pytest.mark.parametrize(
    ("key", "value"),
    [("speed", 1), ("connection_creation_rate", 1), ("producer_byte_rate", 0),
     ("producer_byte_rate", float("nan")), ("request_percentage", -1)],
)  # fmt: skip
def test_a_quota_that_means_nothing_is_refused(key, value):
    with pytest.raises(UnexpectedArgumentError):
        check_quota(checked_entity([("user", "a")]), key, value)
