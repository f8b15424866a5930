"""Any changes of users, ACLs and quotas: the same state everywhere, and what it should be."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, Resource, ResourceType
from quorumlog.auth.judge import explain, judge
from quorumlog.auth.verifiers import verifier_of_salted
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterQuotas,
    AlterUsers,
    Envelope,
    QuotaChange,
    UserChange,
    decode_result,
    encode,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import Entry

SHA256 = "SCRAM-SHA-256"
ALICE, TOPIC = "User:alice", Resource(ResourceType.TOPIC, "ab")
VERIFIERS = [verifier_of_salted(bytes([n]) * 32, SHA256, b"salt-of-tests", 4096) for n in range(2)]
WHO = ("User:root", "192.0.2.1:5000")

USERS = st.builds(
    UserChange,
    st.sampled_from(["alice", "bob"]),
    st.dictionaries(
        st.sampled_from([SHA256, "SCRAM-SHA-512"]), st.sampled_from([None, *VERIFIERS]), max_size=2
    ),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
ACLS = st.builds(
    Acl,
    st.just(ResourceType.TOPIC) | st.just(ResourceType.ANY),
    st.sampled_from(["a", "ab"]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, "User:*"]),
    st.just("*") | st.just("nowhere"),
    st.sampled_from([Operation.READ, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
QUOTAS = st.builds(
    QuotaChange,
    st.sampled_from([(("user", "alice"),), (("user", None),), (("ip", "::1"),), ()]),
    st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]),
    st.sampled_from([None, 1.0, 2.5, -1.0]),
)
COMMANDS = st.lists(
    st.builds(AlterUsers, *map(st.just, WHO), st.lists(USERS, max_size=3))
    | st.builds(AlterAcls, *map(st.just, WHO), *[st.lists(ACLS, max_size=4)] * 2)
    | st.builds(AlterQuotas, *map(st.just, WHO), st.lists(QUOTAS, max_size=3)),
    max_size=12,
)


def entries(commands):
    bodies = [
        encode(Envelope(number.to_bytes(16), 1, command)) for number, command in enumerate(commands)
    ]
    return [Entry(index=n, term=1, pos=0, body=body) for n, body in enumerate(bodies)]


def saved(machine):
    chunks = []

    class Writer:
        write = staticmethod(chunks.append)

    machine.save_snapshot(Writer)
    return b"".join(chunks)


@given(COMMANDS)
def test_replicas_agree_however_entries_are_batched_and_snapshots_taken(commands):
    given = entries(commands)
    together, single = ClusterMachine(), ClusterMachine()
    results = together.apply(given)
    for number, one in enumerate(given):
        if number % 3 == 2:  # goes on from a snapshot
            single._state = ClusterState.decode(saved(single))
        assert single.apply([one]) == [results[number]]

    assert together.digest() == single.digest()
    assert ClusterState.decode(saved(together)).encode() == saved(together)
    views = together.view.security, single.view.security
    assert views[0].version == views[1].version
    for operation in (Operation.READ, Operation.DESCRIBE, Operation.WRITE):
        asked = ALICE, operation, TOPIC
        told = [judge(view, *asked) for view in views] + [
            explain(view, *asked).is_allowed for view in views
        ]
        assert len(set(told)) == 1


@given(COMMANDS)
def test_what_there_is_afterwards_was_added_and_not_removed(commands):
    machine = ClusterMachine()
    acls, quotas = set(), {}
    for one in entries(commands):
        before = machine.view.security
        command = commands[one.index]
        outcomes = decode_result(machine.apply([one])[0]).outcomes
        done = [code is ResponseCode.SUCCESS for code, _ in outcomes]
        if isinstance(command, AlterAcls):
            acls -= set(command.removed)
            acls |= {acl for acl, is_done in zip(command.added, done, strict=False) if is_done}
        elif isinstance(command, AlterQuotas):
            for change, is_done in zip(command.changes, done, strict=True):
                if is_done:
                    quotas[change.entity, change.key] = change.value
        after = machine.view.security
        assert after.version == before.version or after is not before
        assert {acl for some in after.acls.values() for acl in some} == acls
        assert {
            (entity, key): value
            for entity, found in after.quotas.items()
            for key, value in found.items()
        } == {key: value for key, value in quotas.items() if value is not None}
        assert all(after.users.values())
        assert set(after.rules) == set(after.acls) == {acl.principal for acl in acls}
