"""Making certificates, requests for them, and revocation lists (X.509, RFC 5280).

Nothing here reads a clock or a file; only keys are drawn elsewhere (`keys.new_key`).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quorumlog.pki.errors import PkiError
from quorumlog.pki.keys import PrivateKey, PublicKey, checked_public, fits, signature_hash
from quorumlog.pki.names import (
    RandomBytes,
    Subject,
    address_in,
    cluster_id_in,
    cluster_uri,
    node_subject,
    subject_in,
    user_subject,
)

CLOCK_SKEW: Final = timedelta(hours=1)
"""What is made now is valid since a little earlier: other machines' clocks may be late."""
AUTHORITY_NAME: Final = "quorumlog CA"
"""How the common names of authorities begin; the day and a part of the serial number follow."""
SERIAL_BYTES: Final = 20


class Authority(NamedTuple):
    """A certificate authority: its certificate, and the key that signs."""

    certificate: x509.Certificate
    key: PrivateKey

    @property
    def cluster_id(self) -> str:
        """The id of the cluster whose authority it is."""
        return cluster_id_of(self.certificate)


class Revoked(NamedTuple):
    """A certificate that is no longer accepted."""

    serial: int
    at: datetime


def make_authority(
    cluster_id: str, key: PrivateKey, days: int, now: datetime, random_bytes: RandomBytes
) -> Authority:
    """Return a new authority of a cluster, which signs no further authorities."""
    serial = _serial(random_bytes)
    # two authorities of one cluster, while one replaces the other, are told apart by their names
    made = f"{AUTHORITY_NAME} {now:%Y-%m-%d} {serial & 0xFFFFFFFF:08x}"
    name = _name(cluster_id, made)
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    skid = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(_days_from(now, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(cluster_uri(cluster_id))]),
            critical=False,
        )
        .add_extension(skid, critical=False)
        .add_extension(_authority_key(skid), critical=False)
        .sign(key, signature_hash(key))
    )
    return Authority(certificate, key)


def issue(
    authority: Authority,
    subject: Subject,
    public: PublicKey,
    days: int,
    now: datetime,
    random_bytes: RandomBytes,
) -> x509.Certificate:
    """Return a certificate for a subject and its public key.

    It ends with its authority at the latest. Raises `PkiError` if that is no longer valid.
    """
    own = authority.certificate
    if own.not_valid_after_utc <= now:
        raise PkiError(
            f"the certificate authority expired at {own.not_valid_after_utc:%Y-%m-%d}: make a new "
            "one for the same cluster ('quorumlog cert ca --cluster-id')"
        )
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if subject.kind == "node":
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    skid = own.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject.cluster_id, subject.name))
        .issuer_name(own.subject)
        .public_key(public)
        .serial_number(_serial(random_bytes))
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(_days_from(now, days), own.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_alternative_names(subject), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_authority_key(skid), critical=False)
        .sign(authority.key, signature_hash(authority.key))
    )


def make_request(subject: Subject, key: PrivateKey) -> x509.CertificateSigningRequest:
    """Return a request for a certificate, which an authority elsewhere can sign (PKCS #10)."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_name(subject.cluster_id, subject.name))
        .add_extension(_alternative_names(subject), critical=False)
        .sign(key, signature_hash(key))
    )


def read_request(
    request: x509.CertificateSigningRequest, cluster_id: str, where: str
) -> tuple[Subject, PublicKey]:
    """Return whom a request is for, checked as if it had been given on the command line; its key.

    Nothing else of it gets into a certificate. Raises `PkiError` if it names nobody, somebody of
    another cluster, or if whoever made it does not have the key.
    """
    if not request.is_signature_valid:
        raise PkiError(f"{where}: its signature is wrong, so whoever made it lacks the key")
    public = checked_public(request.public_key(), where)
    found = subject_of(request)
    if found is None:
        raise PkiError(f"{where}: it names no node or user; make it with 'quorumlog cert csr'")
    if found.cluster_id != cluster_id:
        raise PkiError(
            f"{where}: it is for cluster {found.cluster_id}, and this is the authority of cluster "
            f"{cluster_id}"
        )
    if found.kind == "node":
        return node_subject(found.name, cluster_id, found.hosts), public
    return user_subject(found.name, cluster_id), public


def make_crl(
    authority: Authority, number: int, revoked: Iterable[Revoked], days: int, now: datetime
) -> x509.CertificateRevocationList:
    """Return the list of an authority's revoked certificates, to be replaced in `days`."""
    skid = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - CLOCK_SKEW)
        .next_update(_days_from(now, days))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_authority_key(skid.value), critical=False)
    )
    for one in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(one.serial)
            .revocation_date(one.at)
            .build()
        )
    return builder.sign(authority.key, signature_hash(authority.key))


def load_authority(
    certificates: Sequence[x509.Certificate], key: PrivateKey, where: str
) -> Authority:
    """Return the authority whose key it is. Raises `PkiError` if no certificate fits the key."""
    for one in certificates:
        if fits(key, one.public_key()):
            if not cluster_id_of(one):
                raise PkiError(f"{where}: it is the authority of no quorumlog cluster")
            return Authority(one, key)
    raise PkiError(f"{where}: none of its certificates belongs to the key beside it")


def subject_of(
    made: x509.Certificate | x509.CertificateSigningRequest,
) -> Subject | None:
    """Return the node or user that a certificate or a request names; None: nobody, or several."""
    return subject_in(uris_of(made), hosts_of(made))


def cluster_id_of(made: x509.Certificate) -> str:
    """Return the id of the cluster that a certificate is of; empty: of none."""
    return cluster_id_in(uris_of(made))


def serial_text(certificate: x509.Certificate) -> str:
    """Return the serial number of a certificate in hex, always as long."""
    return f"{certificate.serial_number:0{SERIAL_BYTES * 2}x}"


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the key of an authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def uris_of(made: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return the URIs among the names of a certificate."""
    names = _names_of(made)
    return names.get_values_for_type(x509.UniformResourceIdentifier) if names else []


def hosts_of(made: x509.Certificate | x509.CertificateSigningRequest) -> list[str]:
    """Return the host names and addresses among the names of a certificate."""
    names = _names_of(made)
    if names is None:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def pem_of(made: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    """Return a certificate or a request as text."""
    return made.public_bytes(Encoding.PEM)


def _names_of(
    made: x509.Certificate | x509.CertificateSigningRequest,
) -> x509.SubjectAlternativeName | None:
    try:
        return made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None


def _alternative_names(subject: Subject) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(subject.uri)]
    for host in subject.hosts:
        is_address = address_in(host)
        names.append(x509.IPAddress(ip_address(host)) if is_address else x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _name(cluster_id: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_id),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(skid: x509.SubjectKeyIdentifier) -> x509.AuthorityKeyIdentifier:
    """Return what names the authority's key: Python verifies strictly from 3.13 on."""
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(skid)


def _days_from(now: datetime, days: int) -> datetime:
    try:
        return now + timedelta(days=days)
    except OverflowError:
        raise PkiError(f"{days} days from now is no date") from None


def _serial(random_bytes: RandomBytes) -> int:
    """Return a random number of 159 bits: not negative in 20 bytes, nor 0 (RFC 5280, 4.1.2.2)."""
    return int.from_bytes(random_bytes(SERIAL_BYTES)) >> 1 or 1
