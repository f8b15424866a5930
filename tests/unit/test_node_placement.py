"""A replica takes no part if its log has it at another address than its configuration."""

import asyncio
from types import SimpleNamespace

import pytest

from quorumlog.model.config import GroupConfig, is_written_alike
from quorumlog.model.membership import Member, Membership, founding, identity_of
from quorumlog.node.places import Places, is_here
from quorumlog.node.replica.placement import Placement

AT = {"n0": "a:1", "n1": "b:2", "n2": "c:3"}


class Network:
    def __init__(self):
        self.members = None

    def update_members(self, group, addresses):
        self.members = addresses


def placed(peers, addresses=AT, *, index=5, is_same=is_written_alike, here=()):
    membership = founding(addresses)
    core = SimpleNamespace(self_id="n0", membership=membership, membership_index=index)
    config = GroupConfig(group="g", peers=";".join(f"{name}-{at}" for name, at in peers.items()))
    return Placement(core, config, Network(), is_same, here.__contains__)


def seen(peers, addresses=AT, *, index=5):
    placement = placed(peers, addresses, index=index)
    return placement.misplaced_text, placement.others_text


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


def test_another_name_of_the_same_place_is_no_other_place():
    placement = placed({**AT, "n0": "alias:1", "n1": "also:2"}, is_same=lambda one, other: True)
    placement.check()
    assert placement.text == ""
    assert placement._network.members == AT
    assert placement.own_address == "a:1", "as others' logs write it"


def test_while_names_are_looked_up_nothing_changes():
    known = {("b:2", "b:2"): True, ("c:3", "c:3"): True}
    placement = placed({**AT, "n0": "alias:1"}, is_same=lambda *pair: known.get(pair))
    assert placement.text.startswith("cannot look up whether a:1, where n0 is according to the log")
    assert "alias:1, where it is according to peers: a name has no answer" in placement.text
    assert "asked again every 10 s" in placement.text
    placement.check()
    assert not placement.is_elsewhere, "nobody knows"
    assert placement._network.members == {}, "it may be a copy, which connects to nobody"
    assert placement.own_address == "alias:1"
    known["a:1", "alias:1"] = False
    placement.check()
    assert "copied or moved" in placement.text
    assert placement.is_elsewhere
    known["a:1", "alias:1"] = True
    placement.check()
    assert placement.text == ""
    del known["a:1", "alias:1"]
    placement.check()
    assert placement.text == ""
    assert placement._network.members == AT


def test_who_is_at_a_number_of_its_own_machine_takes_part_without_any_answer():
    addresses = {**AT, "n0": "10.0.0.1:1"}
    placement = placed(
        {**AT, "n0": "alias:1"}, addresses, is_same=lambda *_: None, here=["10.0.0.1:1"]
    )
    placement.check()
    assert placement.text == ""
    assert placement._network.members == addresses
    assert placement.own_address == "10.0.0.1:1", "others would refuse one that is elsewhere"


@pytest.mark.parametrize(
    ("address", "listen", "expected"),
    [
        ("127.0.0.1:7", "127.0.0.1:7", True),
        ("127.0.0.1:7", "127.0.0.1:8", True),  # what is forwarded there
        ("127.0.0.1:7", "0.0.0.0:7", True),
        ("127.0.0.1:7", "localhost:7", True),
        ("127.0.0.1:7", "127.0.0.2:7", False),
        ("192.0.2.1:7", "0.0.0.0:7", False),  # never a machine's (RFC 5737)
        ("localhost:7", "127.0.0.1:7", False),
        ("0.0.0.0:7", "0.0.0.0:7", False),
        ("no address", "127.0.0.1:7", False),
    ],
)
def test_a_number_is_here_if_this_machine_has_it(address, listen, expected):
    assert is_here(address, listen) is expected


# -- names of hosts -------------------------------------------------------------------------------


class Names:
    """Knows some names."""

    def __init__(self, **numbers):
        self.numbers = numbers

    async def resolve(self, host, port, timeout_s=None):
        numbers = [host] if host[0].isdigit() or ":" in host else self.numbers.get(host)
        if not numbers:
            raise TimeoutError(host)
        return [(2, (number, port)) for number in numbers]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("localhost:7", "127.0.0.1:7", True),
        ("127.0.0.1:7", "localhost:7", True),
        ("localhost:7", "[::1]:7", True),
        ("localhost:7", "[0:0:0:0:0:0:0:1]:7", True),
        ("localhost:7", "127.0.0.1:8", False),
        ("localhost:7", "127.0.0.2:7", False),
        ("elsewhere:7", "127.0.0.1:7", None),
        ("no address", "127.0.0.1:7", False),
    ],
)
async def test_names_are_looked_up_before_they_are_compared(one, other, expected):
    changes = []
    places = Places(Names(localhost=["::1", "127.0.0.1"]), lambda: changes.append(1))
    first = places.is_same(one, other)
    await places.resolved()
    assert places.is_same(one, other) is expected
    assert first in (None, expected)
    assert len(changes) == (first is None and expected is not None)
    await places.stop()


async def test_a_name_that_nobody_knows_yet_is_looked_up_again(monkeypatch):
    monkeypatch.setattr("quorumlog.node.places.RETRY_S", 0.0)
    names, known = Names(), asyncio.Event()
    places = Places(names, lambda: known.set() if places.is_same("a:1", "10.0.0.1:1") else None)
    places.is_same("a:1", "10.0.0.1:1")
    await places.resolved()
    assert places.is_same("a:1", "10.0.0.1:1") is None
    names.numbers["a"] = ["10.0.0.1"]
    async with asyncio.timeout(60):
        await known.wait()
    assert places.is_same("a:1", "10.0.0.1:1") is True
    await places.stop()


async def test_what_is_known_stays_known_without_an_answer(monkeypatch):
    monkeypatch.setattr("quorumlog.node.places.RETRY_S", 0.0)
    names, asked = Names(a=["10.0.0.2"]), asyncio.Semaphore(0)
    resolve = names.resolve

    async def resolved(host, port, timeout_s=None):
        asked.release()
        return await resolve(host, port, timeout_s)

    names.resolve = resolved
    places = Places(names, lambda: None)
    places.is_same("a:1", "10.0.0.1:1")
    await places.resolved()
    names.numbers.clear()
    async with asyncio.timeout(60):
        for _ in range(8):  # two names are asked each time
            await asked.acquire()
    assert places.is_same("a:1", "10.0.0.1:1") is False
    await places.stop()


async def test_pairs_beyond_a_bound_are_different(monkeypatch):
    monkeypatch.setattr("quorumlog.node.places.PAIRS_MAX", 1)
    places = Places(Names(a=["10.0.0.1"], b=["10.0.0.1"]), lambda: None)
    assert places.is_same("a:1", "10.0.0.1:1") is None
    assert places.is_same("b:1", "10.0.0.1:1") is False
    await places.stop()


async def test_pairs_that_nobody_asks_for_any_more_make_room(monkeypatch):
    monkeypatch.setattr("quorumlog.node.places.PAIRS_MAX", 2)
    monkeypatch.setattr("quorumlog.node.places.FORGET_S", 0.0)
    needed, known = ["a", "b"], asyncio.Event()

    def ask():
        found = [places.is_same(f"{name}:1", "10.0.0.1:1") for name in needed]
        if all(found):
            known.set()

    places = Places(Names(a=["10.0.0.1"], b=["10.0.0.1"], c=["10.0.0.1"]), ask)
    ask()
    await places.resolved()
    assert known.is_set()
    known.clear()
    needed[:] = ["b", "c"]
    ask()
    assert not known.is_set()
    async with asyncio.timeout(30):
        await known.wait()
    assert len(places._tasks) == len(places._known) == 2
    await places.stop()


def test_addresses_are_compared_as_addresses():
    assert is_written_alike("[::1]:7", "[::1]:07")
    assert not is_written_alike("h:7", "h:8")
    assert not is_written_alike("h:7", "i:7")


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
    older = bytes([0x94]) + begun.encode()[1:-19]  # an array without its last two fields
    assert Membership.decode(older).identity == b""


async def test_no_name_is_looked_up_after_the_end():
    """A task of it would go on in the program around the node."""
    places = Places(Names(a=["10.0.0.1"], b=["10.0.0.1"]), lambda: None)
    await places.stop()
    before = asyncio.all_tasks()
    assert places.is_same("a:1", "b:1") is None
    assert asyncio.all_tasks() == before
