"""Who may do what: the compiled rules against a model that looks at every ACL."""

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.auth.acls import (
    ANY_HOST,
    ANY_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from quorumlog.auth.judge import explain, judge
from quorumlog.auth.rules import PrincipalRules
from quorumlog.auth.view import SecurityView

PRINCIPALS = ["User:alice", "User:bob", "User:*"]
NAMES = st.text("ab", min_size=1, max_size=4)
HOSTS = st.sampled_from([ANY_HOST, ANY_HOST, "10.0.0.1", "10.0.0.0/8", "::1"])
ADDRESSES = st.sampled_from(["10.0.0.1", "10.2.0.1", "::ffff:10.0.0.1", "192.0.2.1", "::1"])
ASKED = st.sampled_from([one for one in Operation if one > Operation.ALL])
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
IMPLIES = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}

ACLS = st.builds(
    Acl,
    TYPES,
    NAMES | st.just(ANY_NAME),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(PRINCIPALS),
    HOSTS,
    st.sampled_from([one for one in Operation if one is not Operation.ANY]),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)


def view_of(acls):
    by_principal = {}
    for one in acls:
        by_principal.setdefault(one.principal, {})[one] = None
    rules = {who: PrincipalRules(found) for who, found in by_principal.items()}
    return SecurityView(acls=by_principal, rules=rules)


def is_about(acl, principal, resource, host):
    if acl.principal not in (principal, "User:*") or acl.resource_type != resource.type:
        return False
    if acl.pattern is PatternType.PREFIXED and not resource.name.startswith(acl.name):
        return False
    if acl.pattern is PatternType.LITERAL and acl.name not in (resource.name, "*"):
        return False
    if acl.host == ANY_HOST:
        return True
    if not host:
        return acl.permission is Permission.DENY
    address = ip_address(host)
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address in ip_network(acl.host)


def model(acls, principal, operation, resource, host):
    about = [one for one in acls if is_about(one, principal, resource, host)]
    denied = {one.operation for one in about if one.permission is Permission.DENY}
    allowed = {one.operation for one in about if one.permission is Permission.ALLOW}
    if denied & {operation, Operation.ALL}:
        return False
    return bool(allowed & {operation, Operation.ALL, *IMPLIES.get(operation, ())})


@given(
    st.lists(ACLS, max_size=12),
    st.sampled_from(["User:alice", "User:bob", "User:carol"]),
    ASKED,
    st.builds(Resource, TYPES, NAMES),
    ADDRESSES | st.just(""),
    st.randoms(use_true_random=False),
)
def test_rules_decide_as_each_acl_looked_at(acls, principal, operation, resource, host, random):
    expected = model(acls, principal, operation, resource, host)
    shuffled = random.sample(acls, len(acls))

    assert judge(view_of(acls), principal, operation, resource, host) is expected
    assert judge(view_of(shuffled), principal, operation, resource, host) is expected
    told = explain(view_of(acls), principal, operation, resource, host)
    assert told.is_allowed is expected
    assert told.acl is None or is_about(told.acl, principal, resource, host)
    assert judge(view_of(acls), principal, operation, resource, host, {principal})
