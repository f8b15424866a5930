"""Would nodes and clients accept each other's certificates?

What can be said of each by itself is said first, in words. Then each node and each other party do
a TLS handshake in memory, with the contexts that they would use: what else is wrong shows there.
"""

import ssl
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from cryptography import x509

from quorumlog.model.errors import ConfigError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.pki import files
from quorumlog.pki.describe import (
    WARNING_DAYS,
    common_name,
    key_problem,
    overdue_words,
    signs,
    subject_words,
    time_problem,
    time_words,
    usages_of,
)
from quorumlog.pki.errors import PkiError
from quorumlog.pki.files import Pair
from quorumlog.pki.issue import cluster_id_of, is_signed_by, subject_of
from quorumlog.pki.names import Subject
from quorumlog.pki.pem import certificates_in, crls_in
from quorumlog.transport.tls_contexts import peer_context, server_context
from quorumlog.transport.tls_words import in_words

CRL_WARNING_DAYS: Final = 7
"""A revocation list that expires within this time is to be made anew."""
PARTIES_MAX: Final = 100
ROUNDS_MAX: Final = 10
"""A handshake of TLS 1.3 has three flights."""
Level: TypeAlias = Literal["problem", "warning"]
_UNKNOWN_AUTHORITY: Final = {18, 19, 20, 21}
"""OpenSSL's numbers (`X509_V_ERR_…`) for a chain that ends with nobody who is trusted."""


class Party(NamedTuple):
    """A node or client: its certificate and key, and the authorities that it trusts."""

    pair: Pair
    certificate: x509.Certificate
    subject: Subject | None
    ca_file: Path
    trusted: tuple[x509.Certificate, ...]

    @property
    def crl_file(self) -> Path | None:
        """The revocation lists beside the authorities that it trusts, if there are any."""
        found = self.ca_file.with_suffix(".crl")
        return found if found.exists() else None

    @property
    def label(self) -> str:
        """What it is called: `node n0`; `user alice`; or as its certificate has it."""
        return subject_words(self.certificate)

    @property
    def is_node(self) -> bool:
        """Whether others connect to it."""
        if self.subject is not None:
            return self.subject.kind == "node"
        return "server" in usages_of(self.certificate)


def authority_of(certificate: x509.Certificate, trusted: Iterable[x509.Certificate]) -> str:
    """Return which of the authorities signed a certificate; empty: none of them."""
    signers = (one for one in trusted if is_signed_by(certificate, one))
    return next((common_name(one.subject) for one in signers), "")


class Finding(NamedTuple):
    """What stands in the way (`problem`), or will (`warning`)."""

    level: Level
    about: str
    text: str


def load_parties(paths: Sequence[Path], ca_file: Path | None) -> tuple[list[Party], list[Finding]]:
    """Read the parties in files and directories; return what cannot be read as well."""
    parties, findings = list[Party](), list[Finding]()
    for path in paths:
        try:
            for certificate_file in find_certificates(path):
                try:
                    parties.append(load_party(certificate_file, ca_file))
                except PkiError as error:
                    findings.append(Finding("problem", str(certificate_file), str(error)))
        except PkiError as error:
            findings.append(Finding("problem", str(path), str(error)))
    return parties, findings


def find_certificates(path: Path) -> list[Path]:
    """Return the files of certificates that are meant: one, or those of a directory.

    In a directory, ca.pem is that of the authority, which is nobody's own.
    Raises `PkiError` if there is none.
    """
    if not path.is_dir():
        return [path]
    found = [path / name for name in files.list_names(path, ".pem") if name != "ca.pem"]
    if not found:
        raise PkiError(f"{path}: there is no certificate in this directory (NAME.pem)")
    return found


def load_party(certificate_file: Path, ca_file: Path | None) -> Party:
    """Read a party; `ca_file` None: it trusts the ca.pem beside its certificate.

    Raises `PkiError`.
    """
    (certificate, *_) = certificates_in(files.read(certificate_file), str(certificate_file))
    if signs(certificate):
        raise PkiError(f"{certificate_file}: it is an authority's, and no node's or client's")
    ca = ca_file or certificate_file.with_name("ca.pem")
    if not ca.exists():
        raise PkiError(f"{ca} is not there: name the authorities that are trusted with --ca FILE")
    trusted = tuple(certificates_in(files.read(ca), str(ca)))
    pair = Pair(certificate_file, certificate_file.with_suffix(".key"))
    return Party(pair, certificate, subject_of(certificate), ca, trusted)


def check_parties(parties: Sequence[Party], now: datetime) -> list[Finding]:
    """Return what keeps the parties from accepting each other now, or soon will.

    Raises `PkiError` if they are too many.
    """
    if len(parties) > PARTIES_MAX:
        raise PkiError(f"{len(parties)} are too many to be checked at once, at most {PARTIES_MAX}")
    findings = [found for one in parties for found in check_one(one, now)]
    findings += _check_names(parties)
    wrong = {found.about for found in findings if found.level == "problem"}
    sound = [one for one in parties if one.label not in wrong]
    return findings + list(_check_pairs(sound, now))


def check_one(party: Party, now: datetime) -> Iterator[Finding]:
    """Yield what is wrong with a party by itself."""
    certificate, label = party.certificate, party.label

    def problem(text: str) -> Finding:
        return Finding("problem", label, f"{party.pair.certificate}: {text}")

    if text := time_problem(certificate, now):
        yield problem(text)
    elif certificate.not_valid_after_utc - now < timedelta(days=WARNING_DAYS):
        left = time_words(certificate.not_valid_after_utc - now)
        text = f"{party.pair.certificate} expires {left}: 'quorumlog cert renew'"
        yield Finding("warning", label, text)
    if party.subject is None:
        text = "names no node or user of a cluster; only rules of the configuration can map it"
        yield Finding("warning", label, f"{party.pair.certificate} {text}")
    wanted = ["server", "client"] if party.is_node else ["client"]
    missing = [one for one in wanted if one not in usages_of(certificate)]
    if missing:
        yield problem(f"not made for use by a {' and a '.join(missing)} (extended key usage)")
    if not party.pair.key.exists():
        yield problem(f"its key is not here ({party.pair.key})")
    elif text := key_problem(party.pair.key, certificate):
        yield Finding("problem", label, text)
    yield from _check_trust(party, now)


def _check_trust(party: Party, now: datetime) -> Iterator[Finding]:
    """Yield what is wrong with the authorities that a party trusts."""
    signer = authority_of(party.certificate, party.trusted)
    for authority in party.trusted:
        name = common_name(authority.subject)
        about = f"{party.ca_file}: {name}"
        cluster = cluster_id_of(authority)
        if not signs(authority):
            yield Finding("problem", party.label, f"{about} is no authority, and signs nothing")
        elif text := time_problem(authority, now):
            level: Level = "problem" if name == signer else "warning"
            yield Finding(level, party.label, f"{about}: {text}")
        if party.subject and cluster not in ("", party.subject.cluster_id):
            text = f"{about} is the authority of cluster {cluster}, not {party.subject.cluster_id}"
            yield Finding("problem", party.label, text)
    if party.crl_file is not None:
        yield from _check_crls(party, party.crl_file, now)


def _check_crls(party: Party, crl_file: Path, now: datetime) -> Iterator[Finding]:
    """Yield that a party is revoked, or that a list ends."""
    for crl in crls_in(files.read(crl_file), str(crl_file)):
        if crl.issuer == party.certificate.issuer and (
            crl.get_revoked_certificate_by_serial_number(party.certificate.serial_number)
        ):
            text = f"{party.pair.certificate} is revoked ({crl_file}): make a new one"
            yield Finding("problem", party.label, text)
        left = crl.next_update_utc - now if crl.next_update_utc else None
        if left is None or left > timedelta(days=CRL_WARNING_DAYS):
            continue
        about = f"{crl_file}: list of {common_name(crl.issuer)}"
        if left <= timedelta():
            yield Finding("problem", party.label, f"{about} {overdue_words(left)}")
        else:
            text = f"{about} expires {time_words(left)}: 'quorumlog cert crl'"
            yield Finding("warning", party.label, text)


def _check_names(parties: Iterable[Party]) -> Iterator[Finding]:
    """Yield members that two certificates claim to be."""
    nodes = Counter(one.label for one in parties if one.is_node)
    for label, count in nodes.items():
        if count > 1:
            text = f"{count} of the certificates are of {label}: each node has a name of its own"
            yield Finding("warning", label, text)


def _check_pairs(parties: Sequence[Party], now: datetime) -> Iterator[Finding]:
    """Yield who would refuse whom, of parties with which nothing is wrong by themselves."""
    for server, client in permutations(parties, 2):
        if not server.is_node:
            continue
        about = f"{client.label} at {server.label}"
        ours, theirs = server.subject, client.subject
        if ours and theirs and ours.cluster_id != theirs.cluster_id:
            if not client.is_node or server.label < client.label:
                text = f"of different clusters: {theirs.cluster_id} and {ours.cluster_id}"
                yield Finding("problem", about, text)
            continue
        try:
            refusal = handshake(server, client, now)
        except ConfigError as error:
            yield Finding("problem", about, str(error))
            continue
        if refusal is not None:
            yield Finding("problem", about, _refusal_text(refusal))


class Refusal(NamedTuple):
    """One of the two does not take the other's certificate; `number`: OpenSSL's, or 0."""

    by: Party
    of: Party
    number: int
    reason: str


def _refusal_text(refusal: Refusal) -> str:
    by, of = refusal.by, refusal.of
    if refusal.number in _UNKNOWN_AUTHORITY:
        trusted = ", ".join(common_name(one.subject) for one in by.trusted)
        return (
            f"{by.label} does not accept {of.pair.certificate}: signed by "
            f"{common_name(of.certificate.issuer)}, and {by.ca_file} has {trusted}"
        )
    return f"{by.label} does not accept {of.pair.certificate}: {refusal.reason}"


def handshake(server: Party, client: Party, now: datetime) -> Refusal | None:
    """Have two parties do a TLS handshake in memory; None: each accepts the other.

    Host names are checked elsewhere. Raises `ConfigError` if a file cannot be used.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = peer_context(_config(client)).wrap_bio(to_client, to_server)
    serving = server_context(_config(server)).wrap_bio(to_server, to_client, server_side=True)
    sides = [(client, server, dialling), (server, client, serving)]
    for _ in range(ROUNDS_MAX):
        for own, other, side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue  # it is the other side's turn
            except ssl.SSLError as error:
                number = getattr(error, "verify_code", 0)
                reason = in_words(error, str(own.pair.certificate), now.timestamp())
                return Refusal(own, other, number, reason)
    return None


def _config(party: Party) -> TlsConfig:
    certificate, key = map(str, party.pair)
    return TlsConfig(
        certificate=certificate,
        key=key,
        ca=str(party.ca_file),
        crl=str(party.crl_file or ""),
        client_auth="required",
    )
