"""Makes TLS contexts of files. A context is never changed: newer files make a new one.

No tickets are given, so with TLS 1.3 no session is resumed. With 1.2 one may be, in the context in
which it began: it is not verified again. So a revocation list is never loaded into a context that
is in use, and whoever accepts connections checks a resumed session itself.
"""

import socket
import ssl
from contextlib import suppress
from typing import Final

from quorumlog.log_events import reason_of
from quorumlog.model.errors import ConfigError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.transport.private_files import (
    PRIVATE_BYTES_MAX,
    PUBLIC_BYTES_MAX,
    read_private,
    read_regular,
)

SYSTEM_CA: Final = "system"
"""In place of a file of authorities: those that this machine trusts."""
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(
    config: TlsConfig, *, serves_peers: bool = False, only_asks: bool = False
) -> ssl.SSLContext:
    """Return the context of a port that takes connections.

    `serves_peers`: peers connect to it, too, so a certificate is asked for in any case, and those
    of `peer_ca` are accepted. `only_asks`: nobody needs a certificate, whatever `client_auth` says.
    Raises `ConfigError` with the file and the reason.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, config.min_version)
    context.num_tickets = 0
    context.verify_mode = _CLIENT_AUTH[config.client_auth]
    if only_asks or (serves_peers and config.client_auth != "required"):
        context.verify_mode = ssl.CERT_OPTIONAL
    _load_key(context, config.certificate, config.key)
    _trust(context, config.ca)
    if serves_peers and config.peer_ca:
        _trust(context, config.peer_ca)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    _check_revoked(context, config.crl)
    return context


def client_context(
    ca: str, certificate: str = "", key: str = "", min_version: str = "1.3"
) -> ssl.SSLContext:
    """Return the context of whoever connects to a port; the server's name is checked by it.

    `ca`: a file of authorities, or `SYSTEM_CA`. `certificate` and `key`: what is shown to the
    server; empty: nothing. Raises `ConfigError` with the file and the reason.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, min_version)
    if certificate or key:
        if not (certificate and key):
            raise ConfigError(
                f"{certificate or key}: a certificate and its key are needed, each in a file"
            )
        _load_key(context, certificate, key)
    if ca == SYSTEM_CA:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, ca)
    return context


def peer_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the context with which a node connects to its peers.

    Names of hosts are not checked: the certificate says which member it is of, and addresses
    change. Raises `ConfigError` with the file and the reason.
    """
    context = client_context(
        config.peer_ca or config.ca, config.certificate, config.key, config.min_version
    )
    context.check_hostname = False
    if config.peer_ca:  # which may be an intermediate authority, whose root others have, too
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    _check_revoked(context, config.crl)
    return context


def _context(protocol: int, min_version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[min_version]
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _load_key(context: ssl.SSLContext, certificate: str, key: str) -> None:
    read_private(key, "key", PRIVATE_BYTES_MAX)
    _check_certificates("certificate", certificate)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"it does not belong to the certificate {certificate}"
        else:
            reason = f"it is no private key in PEM, or {certificate} no certificate ({_of(error)})"
        raise ConfigError(f"cannot use the key {key}: {reason}") from error
    except _EncryptedError as error:
        raise ConfigError(
            f"cannot use the key {key}: it is encrypted; nobody is there to enter its passphrase"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read the key {key}: {reason_of(error)}") from error


class _EncryptedError(Exception):
    """A key has a passphrase."""


def _no_password() -> str:
    raise _EncryptedError


def _trust(context: ssl.SSLContext, path: str) -> None:
    _check_certificates("authority", path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"cannot use the authority {path}: {_of(error)}") from error


def _check_revoked(context: ssl.SSLContext, path: str) -> None:
    """Have the certificate of the other side looked up in revocation lists, if there are any."""
    if not path:
        return
    if b"-----BEGIN X509 CRL-----" not in bytes_of("revocation list", path):
        raise ConfigError(f"cannot use the revocation list {path}: it is none in PEM")
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"cannot use the revocation list {path}: {_of(error)}") from error
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _check_certificates(what: str, path: str) -> None:
    if b"-----BEGIN " not in bytes_of(what, path):
        raise ConfigError(f"cannot use the {what} {path}: it is no certificate in PEM")


def bytes_of(what: str, path: str) -> bytes:
    """Return what is in a file of certificates or lists, which may be read by anybody.

    Raises `ConfigError`, with what it is, unless it is a regular file of at most
    `PUBLIC_BYTES_MAX` bytes.
    """
    try:
        return read_regular(path, PUBLIC_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error


def _of(error: OSError) -> str:
    """Return a reason of OpenSSL without the numbers around it."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else reason_of(error)


def say_close(connection: socket.socket) -> None:
    """Say over a socket that speaks TLS that it will be closed, so that nobody is cut off.

    The answer of the other side is not waited for. A socket without TLS is left as it is.
    """
    if isinstance(connection, ssl.SSLSocket):
        with suppress(OSError, ValueError):  # it is closed, broken, or waits for the answer
            connection.settimeout(0)
            connection.unwrap()


def close_socket(connection: socket.socket) -> None:
    """Close a socket; one that speaks TLS says so first."""
    say_close(connection)
    connection.close()
