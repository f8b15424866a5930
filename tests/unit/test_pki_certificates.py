"""Certificates as others judge them: a library of its own, `ssl`, and the command openssl."""

import re
import shutil
import ssl
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from cryptography.x509 import verification

from quorumlog.pki.errors import PkiError
from quorumlog.pki.issue import (
    Revoked,
    cluster_id_of,
    is_signed_by,
    issue,
    make_authority,
    make_crl,
    make_request,
    pem_of,
    read_request,
    subject_of,
)
from quorumlog.pki.keys import key_pem, load_key, new_key
from quorumlog.pki.names import Subject, node_subject, user_subject

CLUSTER = "K3xT0123456789_-abcdef"
OTHER = "M7xT0123456789_-abcdef"
NOW = datetime.now(UTC).replace(microsecond=0)
"""`ssl` and openssl look at the clock of the machine, so this is no other day."""
KEYS = {"ec-p256": "prime256v1", "ed25519": "ED25519"}
"""Kinds of keys, and what openssl calls them."""


def random_bytes(seed=b"\xff"):
    """Return a source of bytes that are each time others, and always the same."""
    drawn = iter(range(2, 1_000, 2))  # the last bit is not used
    return lambda count: (seed + next(drawn).to_bytes(2)).rjust(count, seed)


class Made:
    """An authority, a node and a user, with their keys."""

    def __init__(self, kind="ec-p256", cluster=CLUSTER, now=NOW, days=365):
        self.random = random_bytes()
        self.authority = make_authority(cluster, new_key(kind), 3_650, now, self.random)
        self.keys = {name: new_key(kind) for name in ("node", "user")}
        hosts = ["h0.example.org", "10.0.0.10", "::1"]
        self.subjects = {
            "node": node_subject("n0", cluster, hosts),
            "user": user_subject("alice", cluster),
        }
        self.certificates = {
            name: issue(
                self.authority, self.subjects[name], key.public_key(), days, now, self.random
            )
            for name, key in self.keys.items()
        }

    def write(self, directory):
        (directory / "ca.pem").write_bytes(pem_of(self.authority.certificate))
        for name, key in self.keys.items():
            (directory / f"{name}.key").write_bytes(key_pem(key))
            (directory / f"{name}.pem").write_bytes(pem_of(self.certificates[name]))


@pytest.fixture(scope="module")
def made():
    return Made()


def verifier(made, at=NOW):
    store = verification.Store([made.authority.certificate])
    return verification.PolicyBuilder().store(store).time(at)


@pytest.mark.parametrize("host", ["h0.example.org", "10.0.0.10", "::1"])
def test_a_client_that_knows_the_authority_takes_the_node_for_its_hosts(made, host):
    is_name = "." in host and host[0].isalpha()
    subject = verification.DNSName(host) if is_name else verification.IPAddress(ip_address(host))
    chain = verifier(made).build_server_verifier(subject).verify(made.certificates["node"], [])
    assert chain[-1] == made.authority.certificate
    with pytest.raises(verification.VerificationError):
        verifier(made).build_server_verifier(subject).verify(made.certificates["user"], [])


def test_no_host_but_those_it_was_made_for(made):
    subject = verification.DNSName("h1.example.org")
    with pytest.raises(verification.VerificationError):
        verifier(made).build_server_verifier(subject).verify(made.certificates["node"], [])


@pytest.mark.parametrize("whose", ["node", "user"])
def test_a_node_takes_nodes_and_users_as_clients_and_knows_who_they_are(made, whose):
    found = verifier(made).build_client_verifier().verify(made.certificates[whose], [])
    uris = [one.value for one in found.subjects if isinstance(one, x509.UniformResourceIdentifier)]
    name = "n0" if whose == "node" else "alice"
    assert uris == [f"quorumlog://{CLUSTER}/{whose}/{name}"]


def test_certificates_say_what_a_reader_needs(made):
    node, user = made.certificates["node"], made.certificates["user"]
    assert subject_of(node) == made.subjects["node"]
    assert subject_of(user) == Subject("user", "alice", CLUSTER)
    assert user.subject.rfc4514_string() == f"CN=alice,O={CLUSTER}"
    assert cluster_id_of(made.authority.certificate) == CLUSTER
    assert subject_of(made.authority.certificate) is None


@pytest.mark.parametrize("late", [timedelta(minutes=59), timedelta()])
def test_a_machine_whose_clock_is_late_takes_a_new_certificate(made, late):
    verifier(made, NOW - late).build_client_verifier().verify(made.certificates["user"], [])


def test_validity_ends_after_the_days_that_were_asked_for_and_with_the_authority_at_last():
    made = Made(days=7)
    assert made.certificates["node"].not_valid_after_utc == NOW + timedelta(days=7)
    with pytest.raises(verification.VerificationError):
        verifier(made, NOW + timedelta(days=8)).build_client_verifier().verify(
            made.certificates["node"], []
        )
    later, public = NOW + timedelta(days=3_600), made.keys["user"].public_key()
    last = issue(made.authority, made.subjects["user"], public, 365, later, made.random)
    assert last.not_valid_after_utc == made.authority.certificate.not_valid_after_utc
    gone = NOW + timedelta(days=3_651)
    with pytest.raises(PkiError, match="expired"):
        issue(made.authority, made.subjects["user"], public, 365, gone, made.random)


def test_serial_numbers_are_of_159_random_bits_and_never_0():
    made, public = Made(), new_key("ec-p256").public_key()
    for drawn, expected in ((b"\xff" * 20, (1 << 159) - 1), (b"\x00" * 20, 1)):
        found = issue(
            made.authority, made.subjects["user"], public, 1, NOW, lambda _, drawn=drawn: drawn
        )
        assert found.serial_number == expected


def test_an_authority_signs_no_further_authorities(made):
    constraints = made.authority.certificate.extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (
        True,
        True,
        0,
    )
    usage = made.authority.certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature


def test_two_authorities_of_a_cluster_have_names_of_their_own():
    one, other = Made(), make_authority(CLUSTER, new_key("ec-p256"), 10, NOW, random_bytes(b"\x01"))
    assert one.authority.certificate.subject != other.certificate.subject
    assert not is_signed_by(one.certificates["node"], other.certificate)
    assert is_signed_by(one.certificates["node"], one.authority.certificate)


# -- requests -------------------------------------------------------------------------------------


def test_a_request_gives_names_and_key_and_nothing_else(made):
    subject, key = made.subjects["node"], new_key("ec-p256")
    found, public = read_request(make_request(subject, key), CLUSTER, "n0.csr")
    assert found == subject
    assert public == key.public_key()


def test_a_request_for_another_cluster_is_refused(made):
    request = make_request(user_subject("eve", OTHER), new_key("ec-p256"))
    with pytest.raises(PkiError, match=f"it is for cluster {OTHER}"):
        read_request(request, CLUSTER, "eve.csr")


def test_a_request_that_asks_to_be_an_authority_gets_a_plain_certificate(made):
    key = new_key("ed25519")
    uri = f"quorumlog://{CLUSTER}/user/eve"
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    subject, public = read_request(request, CLUSTER, "eve.csr")
    certificate = issue(made.authority, subject, public, 1, NOW, made.random)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("uris", "said"),
    [
        ([], "names no node or user"),
        ([f"quorumlog://{CLUSTER}"], "names no node or user"),
        ([f"quorumlog://{CLUSTER}/user/eve", f"quorumlog://{CLUSTER}/node/n0"], "names no node"),
        ([f"quorumlog://{CLUSTER}/user/a b"], "is not usable"),
        ([f"quorumlog://{CLUSTER}/node/n0"], "names the hosts"),
    ],
)
def test_a_request_for_nobody_or_for_several_is_refused(uris, said):
    key = new_key("ed25519")
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if uris:
        names = [x509.UniformResourceIdentifier(one) for one in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    with pytest.raises(PkiError, match=said):
        read_request(builder.sign(key, None), CLUSTER, "x.csr")


def test_a_request_with_a_weak_key_is_refused():
    weak = rsa.generate_private_key(65_537, 1024)
    request = make_request(user_subject("alice", CLUSTER), weak)
    with pytest.raises(PkiError, match="RSA, 1024 bits"):
        read_request(request, CLUSTER, "alice.csr")


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_pkcs8_and_read_back(kind):
    key = new_key(kind)
    pem = key_pem(key)
    assert pem.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert load_key(pem, "x.key").public_key() == key.public_key()


def test_what_is_no_key_is_said(made):
    with pytest.raises(PkiError, match=r"x\.key: there is no private key in it"):
        load_key(b"nonsense", "x.key")
    secret = new_key("ec-p256").private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        BestAvailableEncryption(b"pass"),
    )
    with pytest.raises(PkiError, match="protected by a password"):
        load_key(secret, "x.key")


# -- what ssl and openssl say ---------------------------------------------------------------------


def context(directory, whose, *, server, crl=False):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's default from 3.13 on
    made.load_cert_chain(directory / f"{whose}.pem", directory / f"{whose}.key")
    made.load_verify_locations(directory / "ca.pem")
    if crl:
        made.load_verify_locations(directory / "ca.crl")
        made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return made


def shake_hands(client, server, host):
    """Do a handshake in memory; return what each side sees of the other."""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = client.wrap_bio(here, there, server_hostname=host)
    serving = server.wrap_bio(there, here, server_side=True)
    for _ in range(3):
        for side in (dialling, serving):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return dialling.getpeercert(), serving.getpeercert()


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("host", ["h0.example.org", "10.0.0.10", "::1"])
def test_strict_python_accepts_both_sides(tmp_path, kind, host):
    Made(kind).write(tmp_path)
    client, server = (context(tmp_path, w, server=w == "node") for w in ("user", "node"))
    node, user = shake_hands(client, server, host)
    assert ("URI", f"quorumlog://{CLUSTER}/node/n0") in node["subjectAltName"]
    assert ("URI", f"quorumlog://{CLUSTER}/user/alice") in user["subjectAltName"]


def test_a_revoked_certificate_is_refused_and_others_are_not(tmp_path):
    made = Made()
    made.write(tmp_path)
    revoked = [Revoked(made.certificates["user"].serial_number, NOW)]
    crl = make_crl(made.authority, 1, revoked, 30, NOW)
    (tmp_path / "ca.crl").write_bytes(crl.public_bytes(Encoding.PEM))
    server = context(tmp_path, "node", server=True, crl=True)
    shake_hands(context(tmp_path, "node", server=False), server, "h0.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shake_hands(context(tmp_path, "user", server=False), server, "h0.example.org")
    assert crl.next_update_utc == NOW + timedelta(days=30)
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 1


@pytest.fixture
def openssl(tmp_path):
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no command openssl")

    def run(*arguments):
        done = subprocess.run(
            [program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("kind", KEYS)
def test_openssl_verifies_chain_purpose_and_revocation(tmp_path, openssl, kind):
    made = Made(kind)
    made.write(tmp_path)
    crl = make_crl(
        made.authority, 7, [Revoked(made.certificates["user"].serial_number, NOW)], 30, NOW
    )
    (tmp_path / "ca.crl").write_bytes(crl.public_bytes(Encoding.PEM))
    strict = ["verify", "-x509_strict", "-CAfile", "ca.pem"]
    checking = [*strict, "-crl_check", "-CRLfile", "ca.crl"]
    assert openssl(*checking, "-purpose", "sslserver", "node.pem") == (0, "node.pem: OK\n")
    assert openssl(*strict, "-purpose", "sslclient", "node.pem")[0] == 0
    assert openssl(*strict, "-purpose", "sslclient", "user.pem")[0] == 0
    assert openssl(*strict, "-purpose", "sslserver", "user.pem")[0] != 0
    status, said = openssl(*checking, "user.pem")
    assert status != 0
    assert "certificate revoked" in said
    shown = openssl("x509", "-in", "node.pem", "-noout", "-text")[1]
    names = re.search(r"Subject Alternative Name: \n\s*(.*)", shown)[1]
    assert names == (
        f"URI:quorumlog://{CLUSTER}/node/n0, DNS:h0.example.org, IP Address:10.0.0.10, "
        "IP Address:0:0:0:0:0:0:0:1"
    )
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in shown
    assert KEYS[kind] in openssl("pkey", "-in", "node.key", "-noout", "-text")[1]


def test_openssl_reads_a_request(tmp_path, openssl):
    request = make_request(node_subject("n0", CLUSTER, ["h0"]), new_key("ec-p256"))
    (tmp_path / "n0.csr").write_bytes(pem_of(request))
    status, said = openssl("req", "-in", "n0.csr", "-noout", "-verify", "-text")
    assert status == 0
    assert f"URI:quorumlog://{CLUSTER}/node/n0, DNS:h0" in said
