"""Entries of the group itself in the form that DLedger 0.2.7 reads; what is taken for them."""

import pytest

from quorumlog.model.block import (
    HEADER,
    config_block,
    config_entries_of,
    data_mask,
    decode_entries,
    encode_block,
    encode_entry,
    is_noop,
    noop_block,
    own_magic,
    parse_block,
    stamp,
)
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.membership import Member, Membership, founding
from quorumlog.sessions.entries import system_entry_of

MEMBERS = founding({"n0": "h:1", "n1": "h:2"}, original_compatible=True)


def stamped(block):
    stamp(block, 7, 3, block.offsets + 100, 0)
    return block


def parsed(data, count):
    return parse_block(memoryview(bytearray(data)), count=count, entry_bytes_max=1 << 20)


def test_a_noop_and_a_membership_are_normal_entries_on_the_system_channel():
    noop = stamped(noop_block(compatible=True))
    assert bytes(noop.data[48:]) == b"NOP1"
    config = stamped(config_block(b"who", compatible=True))
    assert bytes(config.data[48:]) == b"CFG1who"
    for block in (noop, config):
        header = HEADER.unpack_from(block.data)
        assert (header[0], header[5]) == (Magic.NORMAL, SYSTEM_CHANNEL)
        assert header[7] != 0
        assert not data_mask(block).any()
        assert not any(entry.is_data for entry in decode_entries(block))


def test_the_other_form_is_what_it_always_was():
    assert bytes(noop_block().data) == encode_entry(b"", magic=Magic.NOOP)
    assert bytes(config_block(b"who").data) == encode_entry(b"who", magic=Magic.CONFIG_CHANGE)


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("others", [0, 20])
def test_both_forms_are_read_back_as_what_they_are(compatible, others):
    assert is_noop(stamped(noop_block(compatible=compatible)))
    block = config_block(MEMBERS.encode(), compatible=compatible)
    assert not is_noop(block)
    data = bytes(block.data) + bytes(encode_block([b"user's"] * others))
    ((index, body),) = config_entries_of(stamped(parsed(data, 1 + others)))
    assert (index, Membership.decode(body)) == (7, MEMBERS)


@pytest.mark.parametrize("body", [b"NOP1", b"CFG1who", b"NOP1 and more", b"CFG"])
def test_what_others_write_is_never_taken_for_it(body):
    for channel, crc in ((0, 1), (7, 1), (SYSTEM_CHANNEL, 0)):
        assert own_magic(Magic.NORMAL, channel, crc, body) == Magic.NORMAL
    foreign = bytearray(encode_entry(body, channel=SYSTEM_CHANNEL))
    foreign[40:44] = bytes(4)  # DLedger computes no CRC
    assert config_entries_of(parsed(foreign, 1)) == []


@pytest.mark.parametrize("block", [noop_block, lambda **form: config_block(b"who", **form)])
def test_no_client_can_append_such_an_entry(block):
    with pytest.raises(UnexpectedArgumentError, match="none that a block may start with"):
        system_entry_of(block(compatible=True))


def test_a_membership_keeps_the_form_through_every_change():
    changed = MEMBERS.with_member(Member("n2", "h:3")).with_voters(["n0", "n1", "n2"]).final()
    assert Membership.decode(changed.encode()).original_compatible
    assert not Membership.decode(founding({"n0": "h:1"}).encode()).original_compatible
