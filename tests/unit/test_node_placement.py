"""A replica whose log has it at another address than its configuration takes no part."""

from types import SimpleNamespace

import pytest

from quorumlog.model.config import GroupConfig, is_same_address
from quorumlog.model.membership import Member, Membership, founding, identity_of
from quorumlog.node.placement import misplaced_text, others_text

AT = {"n0": "a:1", "n1": "b:2", "n2": "c:3"}


def seen(peers, addresses=AT, *, index=5):
    membership = founding(addresses)
    core = SimpleNamespace(self_id="n0", membership=membership, membership_index=index)
    config = GroupConfig(group="g", peers=";".join(f"{name}-{at}" for name, at in peers.items()))
    return misplaced_text(core, config), others_text(core, config)


def test_where_log_and_peers_agree_nothing_is_said():
    assert seen(AT) == ("", "")
    assert seen({**AT, "n0": "A:01"}) == ("", ""), "written differently, the same all the same"


def test_a_copy_is_told_which_address_the_log_has_and_what_to_do():
    own, others = seen({"n0": "a:11", "n1": "b:12", "n2": "c:13"})
    assert "a:1 according to the log" in own
    assert "a:11 according to peers" in own
    assert "takes no part" in own
    assert "b:2" in others


def test_another_member_elsewhere_is_only_said():
    own, others = seen({**AT, "n1": "b:12"})
    assert not own
    assert others.startswith("n1 is at b:2 according to the log, at b:12 according to peers")


@pytest.mark.parametrize(
    ("peers", "addresses"),
    [
        ({"n0": "x:9"}, {"n1": "b:2"}),  # removed: the log does not name it
        ({"n0": "x:9"}, {"n0": "", "n1": "b:2"}),
    ],
)
def test_who_has_no_address_in_the_log_is_nowhere_else(peers, addresses):
    assert seen(peers, addresses) == ("", "")


def test_before_the_group_begins_peers_are_right():
    assert seen({**AT, "n0": "x:9"}, index=-1) == ("", "")


def test_addresses_are_compared_as_addresses():
    assert is_same_address("[::1]:7", "[::1]:07")
    assert not is_same_address("h:7", "h:8")
    assert not is_same_address("h:7", "i:7")


# -- the identity of a group ----------------------------------------------------------------------


def members(*numbers):
    named = tuple(Member(f"n{place}", "h:1", number) for place, number in enumerate(numbers))
    return Membership(named, tuple(member.node_id for member in named))


def test_every_founding_has_an_identity_of_its_own():
    first = identity_of("g", members(11, 12, 13))
    assert len(first) == 16
    assert first == identity_of("g", members(11, 12, 13))
    for other in (members(11, 12, 14), members(12, 11, 13), members(11, 12)):
        assert identity_of("g", other) != first
    assert identity_of("h", members(11, 12, 13)) != first
    assert identity_of("g", members(11, 0, 13)) == b""


def test_it_survives_every_change_of_members_and_older_entries_have_none():
    begun = Membership(members(1, 2).members, ("n0", "n1"), identity=bytes(range(16)))
    for changed in (
        begun.with_member(Member("n2", "h:3")),
        begun.with_voters(["n0"]),
        begun.with_voters(["n0"]).final(["n1"]),
        begun.without("n1"),
        Membership.decode(begun.encode()),
    ):
        assert changed.identity == begun.identity
    older = bytes([0x94]) + begun.encode()[1:-18]  # an array without its last field
    assert Membership.decode(older).identity == b""
