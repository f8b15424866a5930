"""Names in certificates: what is taken comes back from a certificate as it was."""

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.pki.errors import PkiError
from quorumlog.pki.names import (
    CLUSTER_ID,
    Subject,
    checked_cluster_id,
    checked_hosts,
    cluster_id_in,
    new_cluster_id,
    node_subject,
    subject_in,
    user_subject,
)

CLUSTER = "K3xT0123456789_-abcdef"
ENDS = string.ascii_letters + string.digits
usable = st.tuples(
    st.sampled_from(ENDS), st.text(f"{ENDS}._-", max_size=62), st.sampled_from(ENDS)
).map("".join)


@given(usable)
def test_a_usable_name_of_a_user_comes_back(name):
    subject = user_subject(name, CLUSTER)
    assert subject_in([subject.uri], []) == subject == Subject("user", name, CLUSTER)
    assert cluster_id_in([subject.uri]) == CLUSTER


@given(usable.map(lambda name: name.replace("-", "_")), st.lists(st.ip_addresses(), min_size=1))
def test_a_usable_name_of_a_node_comes_back_with_its_hosts(name, addresses):
    subject = node_subject(name, CLUSTER, list(map(str, addresses)))
    assert subject_in([subject.uri], subject.hosts) == subject
    assert set(map(ipaddress.ip_address, subject.hosts)) == set(addresses)


@given(st.text(max_size=80))
def test_any_other_name_is_refused_or_is_one_that_cannot_be_mistaken(text):
    try:
        subject = user_subject(text, CLUSTER)
    except PkiError:
        return
    assert subject.name.isascii()
    assert not set(subject.name) & set("/?#%@: ")
    assert subject_in([subject.uri], []) == subject
    assert user_subject(subject.name, CLUSTER) == subject


@given(st.text(max_size=80))
def test_a_host_that_is_taken_is_an_address_or_ascii_and_stays_as_it_is(text):
    try:
        (host,) = checked_hosts([text])
    except PkiError:
        return
    assert host.isascii()
    assert not set(host) & set("/ @")
    assert checked_hosts([host]) == (host,)


@given(st.binary(min_size=16, max_size=16))
def test_an_id_of_a_cluster_is_an_id_and_no_option(drawn):
    left = iter([drawn, b"\x00" * 16])
    found = new_cluster_id(lambda _: next(left))
    assert checked_cluster_id(found) == found
    assert CLUSTER_ID.fullmatch(found)
    assert not found.startswith("-")


@pytest.mark.parametrize(
    ("given_uris", "found"),
    [
        ([], None),
        ([f"quorumlog://{CLUSTER}"], None),
        ([f"quorumlog://{CLUSTER}/node/n0", f"quorumlog://{CLUSTER}/node/n1"], None),
        ([f"quorumlog://{CLUSTER}/node/n0/x"], None),
        ([f"quorumlog://{CLUSTER}/admin/n0"], None),
        ([f"quorumlog://{CLUSTER[:-1]}/node/n0"], None),
        (["https://example.org", f"quorumlog://{CLUSTER}/node/n0"], "node/n0"),
    ],
)
def test_a_certificate_names_one_node_or_user_or_nobody(given_uris, found):
    subject = subject_in(given_uris, [])
    assert (subject.path if subject else None) == found


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ([], "give each with --host"),
        (["h0:7101"], "give --host h0"),
        (["[::1]:7101"], "give --host ::1"),
        (["10.0.0.256"], "not a host name"),
        (["müller.example"], "xn--"),
        (["h" * 64], "not a host name"),
        (["a b"], "not a host name"),
        ([f"h{n}" for n in range(101)], "at most 100"),
    ],
)
def test_a_host_that_is_none_is_told_with_what_to_do(hosts, said):
    with pytest.raises(PkiError, match=said):
        checked_hosts(hosts)


def test_hosts_are_written_in_one_way_and_once():
    given_hosts = ["H0.Example.org", "h0.example.org", "[::1]", "0:0:0:0:0:0:0:1", "*.a.example"]
    assert checked_hosts(given_hosts) == ("h0.example.org", "::1", "*.a.example")


@pytest.mark.parametrize("name", ["", "*", "a/b", "ä", "a" * 65, "-a", "a-", "User:a"])
def test_names_that_cannot_be_used_are_refused(name):
    with pytest.raises(PkiError, match="not usable"):
        user_subject(name, CLUSTER)


def test_names_that_look_alike_are_one():
    assert user_subject("\uff41\uff4cice", CLUSTER) == user_subject("alice", CLUSTER)
