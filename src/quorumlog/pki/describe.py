"""What a file of certificates or keys is, for people and programs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quorumlog.model.wording import counted
from quorumlog.pki import files
from quorumlog.pki.errors import PkiError
from quorumlog.pki.issue import (
    cluster_id_of,
    hosts_of,
    is_signed_by,
    serial_text,
    subject_of,
)
from quorumlog.pki.keys import fits, key_words, load_key
from quorumlog.pki.pem import CRL, blocks_in, load_certificate, load_crl, load_request

WARNING_DAYS: Final = 30
"""A certificate that expires within this time is to be renewed."""
USAGES: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
}
What: TypeAlias = Literal[
    "certificate", "certificate authority", "request", "revocation list", "private key"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One part of a file. Empty: it has no such thing.

    Attributes:
        expires: when; of a revocation list, when the next one is due.
        key_file: the file beside it whose key belongs to it.
        problem: what is wrong with it, and what to do.
    """

    file: str
    what: What
    subject: str = ""
    cluster_id: str = ""
    hosts: tuple[str, ...] = ()
    usages: tuple[str, ...] = ()
    valid_from: datetime | None = None
    expires: datetime | None = None
    key: str = ""
    key_file: str = ""
    issuer: str = ""
    serial: str = ""
    sha256: str = ""
    revoked: tuple[str, ...] = ()
    problem: str = ""


def describe_file(path: Path, now: datetime) -> list[Described]:
    """Return what is in a file, part by part. Raises `PkiError` if it cannot be read."""
    parts = []
    for label, block in blocks_in(files.read(path), str(path)):
        if label.endswith("PRIVATE KEY"):
            parts.append(_described_key(path, block))
        elif label in _READERS:
            parts.append(_READERS[label](path, block, now))
    if not parts:
        raise PkiError(f"{path}: neither certificates nor keys are in it")
    return parts


def _described_certificate(path: Path, block: bytes, now: datetime) -> Described:
    certificate = load_certificate(block, str(path))
    is_authority = signs(certificate)
    key_file, problem = ("", "") if is_authority else _key_beside(path, certificate)
    return Described(
        file=str(path),
        what="certificate authority" if is_authority else "certificate",
        subject=subject_words(certificate),
        cluster_id=cluster_id_of(certificate),
        hosts=tuple(hosts_of(certificate)),
        usages=tuple(usages_of(certificate)),
        valid_from=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
        key=key_words(certificate.public_key()),
        key_file=key_file,
        issuer=_issuer_words(certificate),
        serial=serial_text(certificate),
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
        problem=problem or time_problem(certificate, now),
    )


def _described_request(path: Path, block: bytes, _now: datetime) -> Described:
    request = load_request(block, str(path))
    found = subject_of(request)
    wrong = "" if request.is_signature_valid else "its signature is wrong"
    return Described(
        file=str(path),
        what="request",
        subject=f"{found.kind} {found.name}" if found else request.subject.rfc4514_string(),
        cluster_id=found.cluster_id if found else "",
        hosts=tuple(hosts_of(request)),
        key=key_words(request.public_key()),
        problem=wrong,
    )


def _described_crl(path: Path, block: bytes, now: datetime) -> Described:
    crl = load_crl(block, str(path))
    due = crl.next_update_utc
    problem = ""
    if due is not None and due <= now:
        problem = overdue_words(due - now)
    return Described(
        file=str(path),
        what="revocation list",
        issuer=common_name(crl.issuer),
        valid_from=crl.last_update_utc,
        expires=due,
        revoked=tuple(f"{one.serial_number:040x}" for one in crl),
        problem=problem,
    )


def _described_key(path: Path, block: bytes) -> Described:
    public = load_key(block, str(path)).public_key()
    return Described(
        file=str(path), what="private key", key=key_words(public), problem=rights_problem(path)
    )


_READERS: Final[dict[str, Callable[[Path, bytes, datetime], Described]]] = {
    "CERTIFICATE": _described_certificate,
    "CERTIFICATE REQUEST": _described_request,
    "NEW CERTIFICATE REQUEST": _described_request,
    CRL: _described_crl,
}


def _key_beside(path: Path, certificate: x509.Certificate) -> tuple[str, str]:
    """Return the file of a certificate's key, if it is beside it, and what is wrong with it."""
    key_file = path.with_suffix(".key")
    if key_file == path or not key_file.exists():
        return "", ""
    return str(key_file), key_problem(key_file, certificate)


def key_problem(key_file: Path, certificate: x509.Certificate) -> str:
    """Return what is wrong with the key of a certificate, and what to do; empty: nothing."""
    if problem := rights_problem(key_file):
        return problem
    try:
        if fits(load_key(files.read(key_file), str(key_file)), certificate.public_key()):
            return ""
    except PkiError as error:
        return str(error)
    return (
        f"{key_file} is the key of another certificate; if a renewal was interrupted, "
        "'quorumlog cert renew' finishes it"
    )


def rights_problem(key_file: Path) -> str:
    """Return what is wrong with the rights to a key, and what to do; empty: nothing."""
    try:
        if files.others_may(key_file):
            return f"others may read or write {key_file}: 'chmod 600 {key_file}'"
    except PkiError as error:
        return str(error)
    return ""


def time_problem(certificate: x509.Certificate, now: datetime) -> str:
    """Return that a certificate is not valid now, if so."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return f"not valid before {utc_text(begins)} UTC; the clock here says {utc_text(now)}"
    if now >= ends:
        return f"expired {time_words(ends - now)}, on {ends:%Y-%m-%d}"
    return ""


def signs(certificate: x509.Certificate) -> bool:
    """Whether it is the certificate of an authority."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def usages_of(certificate: x509.Certificate) -> Iterator[str]:
    """Yield what a certificate is for: `server`, `client`; an authority's: for nothing of these."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return
    yield from (USAGES[one] for one in usages if one in USAGES)


def subject_words(certificate: x509.Certificate) -> str:
    """Return whom a certificate is for, such as `node n0`; what is not ours has its own name."""
    found = subject_of(certificate)
    return f"{found.kind} {found.name}" if found else common_name(certificate.subject)


def common_name(name: x509.Name) -> str:
    """Return the last part of a name that people know it by."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[-1].value) if found else name.rfc4514_string()


def _issuer_words(certificate: x509.Certificate) -> str:
    if certificate.issuer == certificate.subject and is_signed_by(certificate, certificate):
        return "itself"
    return common_name(certificate.issuer)


def time_words(left: timedelta) -> str:
    """Return how long it is until a time: `in 364 days`, `2 hours ago`."""
    seconds = abs(left.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length or unit == "minute":
            text = counted(round(seconds / length), unit)
            return f"in {text}" if left > timedelta() else f"{text} ago"
    raise AssertionError  # the last unit takes all


def overdue_words(left: timedelta) -> str:
    """Return what it means that a revocation list should have been replaced, and what to do."""
    return (
        f"expired {time_words(left)}: whoever has it accepts no certificate of this authority; "
        "make a newer one ('quorumlog cert crl')"
    )


def utc_text(at: datetime) -> str:
    """Return a time as it is shown."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
