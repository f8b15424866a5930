"""The certificates of a local cluster that speaks TLS: where they are, and how its own are used.

Who makes them is not its business: `quorumlog cluster up --secure` does.
"""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.local.errors import LocalClusterError
from quorumlog.log_events import reason_of
from quorumlog.model.security_config import USER_PREFIX, SecurityConfig
from quorumlog.model.tls_config import TlsConfig

TLS_NAME: Final = "tls"
ADMIN: Final = "admin"
"""The user whose certificate the commands of a local cluster show."""


class ClientFiles(NamedTuple):
    """What a client of a cluster needs: its authority, and a certificate with its key."""

    ca: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return what connects to admin ports. Raises `LocalClusterError`."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            made.load_verify_locations(self.ca)
            made.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # as an error of OpenSSL is, too
            raise LocalClusterError(
                f"the certificates in {self.ca.parent} cannot be used ({reason_of(error)}); "
                f"'quorumlog cluster up --dir {self.ca.parent.parent}' makes those that are missing"
            ) from error
        return made


def client_files(tls_directory: Path) -> ClientFiles:
    """Return the files of the user admin."""
    return ClientFiles(
        tls_directory / "ca.pem", tls_directory / f"{ADMIN}.pem", tls_directory / f"{ADMIN}.key"
    )


def node_tls(node_id: str) -> TlsConfig:
    """Return what a node's configuration says; paths begin at its file."""
    return TlsConfig(
        certificate=f"{TLS_NAME}/{node_id}.pem",
        key=f"{TLS_NAME}/{node_id}.key",
        ca=f"{TLS_NAME}/ca.pem",
    )


def node_security() -> SecurityConfig:
    """Return what a node's configuration says of logins: who shows no certificate logs in."""
    return SecurityConfig(super_users=[f"{USER_PREFIX}{ADMIN}"])
