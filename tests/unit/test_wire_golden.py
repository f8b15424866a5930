"""Messages of the last release are read by this one, and what this one sends begins with the same.

`tests/fixtures/wire.json` has a message of each kind as the last release encoded it. When a release
is made, QUORUMLOG_WRITE_GOLDEN=1 writes it anew; what the one before cannot read fails this test,
and is changed in the code, not there. tests/integration/test_rolling_upgrade.py has the last
release itself read messages of this one.
"""

import os

import msgspec
import pytest

from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.login import Authenticated
from quorumlog.model.release import RELEASE
from quorumlog.wire.decoder import DECODERS
from quorumlog.wire.kinds import KIND_OF_MESSAGE, MESSAGE_OF_KIND, RESPONSE_KINDS
from quorumlog.wire.versions import NEEDS
from wire_samples import read_golden, sample_of, values_in_messages, write_golden

if os.environ.get("QUORUMLOG_WRITE_GOLDEN"):
    write_golden(RELEASE)
LAST = read_golden()


def is_same(value, golden):
    """Whether a value is what the last release sent; structures may have fields more at the end."""
    if isinstance(value, msgspec.Struct):
        values = [getattr(value, name) for name in value.__struct_fields__]
        return len(golden) <= len(values) and all(map(is_same, values, golden))
    if isinstance(value, list | tuple):
        return len(value) == len(golden) and all(map(is_same, value, golden))
    return value == golden


def begins_with(sent, golden):
    """Whether arrays have what the last release knows at their beginning."""
    if isinstance(sent, list):
        return len(golden) <= len(sent) and all(map(begins_with, sent, golden))
    return sent == golden


@pytest.mark.parametrize("kind", LAST.kinds)
def test_a_message_of_the_last_release_is_read_field_by_field(kind):
    golden = LAST.kinds[kind]
    fields = MESSAGE_OF_KIND[kind].__struct_fields__
    assert list(fields[: len(golden.fields)]) == golden.fields, "fields are added at the end only"
    found = DECODERS[kind].decode(golden.encoded)
    assert is_same(found, msgspec.msgpack.decode(golden.encoded))


@pytest.mark.parametrize("kind", LAST.kinds)
def test_what_this_release_sends_begins_with_what_the_last_one_reads(kind):
    golden = LAST.kinds[kind].encoded
    sent = msgspec.msgpack.encode(DECODERS[kind].decode(golden))
    assert begins_with(msgspec.msgpack.decode(sent), msgspec.msgpack.decode(golden))


def test_structures_within_messages_grow_at_their_end_only():
    now = values_in_messages()
    for name, fields in LAST.values.items():
        assert now[name][: len(fields)] == fields


def test_a_kind_that_the_last_release_does_not_know_needs_a_version_or_a_feature():
    answers = RESPONSE_KINDS | {KIND_OF_MESSAGE[Authenticated]}
    for kind in MESSAGE_OF_KIND.keys() - LAST.kinds.keys() - answers:
        assert kind in NEEDS, f"{MESSAGE_OF_KIND[kind].__name__} may be sent to the last release"
    assert not NEEDS.keys() & answers, "an answer goes to whoever has sent its request"


def test_a_hello_without_the_new_fields_speaks_version_one():
    found = DECODERS[1].decode(LAST.kinds[1].encoded)
    assert (found.wire_min, found.wire_max, found.features) == (1, 1, 0)
    assert (found.cluster_id, found.mechanisms, found.release, found.client) == ("", [], "", "")
    assert found.takes_joined


def test_every_field_of_every_message_survives():
    for kind, message in MESSAGE_OF_KIND.items():
        sample = sample_of(message)
        assert DECODERS[kind].decode(msgspec.msgpack.encode(sample)) == sample


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wire_min", 0),
        ("wire_max", 256),
        ("features", -1),
        ("features", 1 << 62),
        ("cluster_id", "x" * 129),
        ("mechanisms", ["x"] * 17),
        ("mechanisms", ["x" * 129]),
        ("release", "x" * 65),
        ("client", "x" * 201),
    ],
)
def test_what_a_hello_states_is_bounded(name, value):
    hello = Hello(cluster="c", node_id="n0", role="node", **{name: value})
    with pytest.raises(msgspec.ValidationError):
        DECODERS[1].decode(msgspec.msgpack.encode(hello))
