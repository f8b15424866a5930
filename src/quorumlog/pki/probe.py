"""Which certificates running nodes show, and whether they take ours: TLS handshakes with them."""

import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from quorumlog.log_events import reason_of
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError
from quorumlog.model.wording import counted
from quorumlog.pki.check import Finding, Party, authority_of, check_parties, load_parties
from quorumlog.pki.describe import common_name, time_problem
from quorumlog.pki.errors import PkiError
from quorumlog.pki.files import read
from quorumlog.pki.issue import cluster_id_of, hosts_of
from quorumlog.pki.names import address_in
from quorumlog.pki.pem import certificates_in
from quorumlog.transport.tls_contexts import client_context, close_socket
from quorumlog.transport.tls_words import in_words

CONNECT_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 2.0
"""With TLS 1.3 a server judges our certificate when the handshake is over for us: what it says then
comes within this time, or it is taken for no refusal."""
SERVERS_MAX: Final = 50
OLDEST_VERSION: Final = "1.2"
"""Of TLS, as a port of Kafka's clients may have it."""


class Shown(NamedTuple):
    """What one server shows. `failure`: why it shows nothing; `refusal`: why it refuses us."""

    address: str
    certificate: x509.Certificate | None = None
    failure: str = ""
    refusal: str = ""


class Checked(NamedTuple):
    """What was checked, and what was found. `trusted`: whom the servers were checked against."""

    parties: list[Party]
    shown: list[Shown]
    trusted: tuple[x509.Certificate, ...]
    findings: list[Finding]

    @property
    def problems(self) -> int:
        """How many things stand in the way."""
        return sum(one.level == "problem" for one in self.findings)


def check_all(
    paths: Sequence[Path], ca_file: Path | None, servers: Sequence[str], now: datetime
) -> Checked:
    """Check certificates against each other, and against what running nodes show.

    Servers are shown the first certificate of a user, or else the first one; none if that or its
    key cannot be used. Raises `PkiError` or `ConfigError` for what cannot be asked.
    """
    parties, findings = load_parties(paths, ca_file)
    findings += check_parties(parties, now)
    by_preference = sorted(parties, key=lambda one: one.is_node)
    ours = by_preference[0] if by_preference else None
    trusted: tuple[x509.Certificate, ...] = ()
    if ca_file is not None:
        trusted = tuple(certificates_in(read(ca_file), str(ca_file)))
    elif ours is not None:
        trusted = ours.trusted
    shown = list[Shown]()
    if servers and trusted:
        try:
            context = _context(ours)
        except ConfigError as error:
            text = f"servers are asked without this certificate: {error}"
            findings.append(Finding("problem", ours.label if ours else "--servers", text))
            ours, context = None, _context(None)
        shown = ask_servers(servers, ours, context, now)
    elif servers:
        text = "no certificate can be read, so it is not known whom to trust: give --ca"
        findings.append(Finding("problem", "--servers", text))
    for one in shown:
        findings += check_shown(one, trusted, ours, now)
    return Checked(parties, shown, trusted, findings)


def _context(ours: Party | None) -> ssl.SSLContext:
    """Return the context of a client that shows our certificate, if there is one.

    What the server shows is not judged by it, but afterwards, in words. Raises `ConfigError` if
    certificate or key cannot be used.
    """
    if ours is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        certificate, key = map(str, ours.pair)
        context = client_context(str(ours.ca_file), certificate, key, OLDEST_VERSION)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def ask_servers(
    addresses: Sequence[str], ours: Party | None, context: ssl.SSLContext, now: datetime
) -> list[Shown]:
    """Do a handshake with each server; `ours`: whose certificate the context shows, if any.

    Raises `ConfigError` for what is no `host:port`, `PkiError` if there are too many.
    """
    if len(addresses) > SERVERS_MAX:
        raise PkiError(f"{counted(len(addresses), 'server')} at once; the most are {SERVERS_MAX}")
    for address in addresses:
        parse_address(address)
    with ThreadPoolExecutor(max(1, len(addresses))) as threads:
        return list(threads.map(lambda address: _ask(address, ours, context, now), addresses))


def _ask(address: str, ours: Party | None, context: ssl.SSLContext, now: datetime) -> Shown:
    host, port = parse_address(address)
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
            connection = context.wrap_socket(plain, server_hostname=host)
            try:
                return _shown(address, connection, ours, now)
            finally:
                close_socket(connection)
    except ssl.SSLError as error:
        return Shown(address, failure=f"no TLS there: {in_words(error, '', now.timestamp())}")
    except OSError as error:
        return Shown(address, failure=f"no answer ({reason_of(error)})")


def _shown(address: str, connection: ssl.SSLSocket, ours: Party | None, now: datetime) -> Shown:
    der = connection.getpeercert(binary_form=True)
    if der is None:
        return Shown(address, failure="it shows no certificate")
    certificate = x509.load_der_x509_certificate(der)
    return Shown(address, certificate, refusal=_refusal(connection, ours, now))


def _refusal(connection: ssl.SSLSocket, ours: Party | None, now: datetime) -> str:
    """Return why the server refuses our certificate, or that we have none; empty: it does not."""
    connection.settimeout(REFUSAL_SECONDS)
    try:
        connection.recv(1)
    except TimeoutError:
        return ""
    except ssl.SSLError as error:
        return in_words(error, str(ours.pair.certificate) if ours else "", now.timestamp())
    except OSError as error:
        return reason_of(error)
    return ""


def check_shown(
    shown: Shown, trusted: Sequence[x509.Certificate], ours: Party | None, now: datetime
) -> list[Finding]:
    """Return what keeps a client that trusts these authorities from talking to a server."""
    certificate = shown.certificate
    if certificate is None:
        return [Finding("problem", shown.address, shown.failure)]
    texts = [time_problem(certificate, now)]
    if not authority_of(certificate, trusted):
        known = ", ".join(common_name(one.subject) for one in trusted)
        issuer = common_name(certificate.issuer)
        texts.append(f"its certificate is signed by {issuer}, and trusted is {known}")
    cluster, own = cluster_id_of(certificate), {cluster_id_of(one) for one in trusted} - {""}
    if cluster and own and cluster not in own:
        texts.append(f"it is of cluster {cluster}, and trusted is {', '.join(sorted(own))}")
    host, _ = parse_address(shown.address)
    if not _names_host(certificate, host):
        names = ", ".join(hosts_of(certificate)) or "no host"
        texts.append(f"its certificate does not name {host}, only {names}")
    if shown.refusal and ours is not None:
        texts.append(shown.refusal)
    return [Finding("problem", shown.address, text) for text in texts if text]


def _names_host(certificate: x509.Certificate, host: str) -> bool:
    names = hosts_of(certificate)
    if address := address_in(host):
        return address in names
    wildcard = f"*.{host.partition('.')[2]}"
    return host.lower() in names or wildcard.lower() in names
