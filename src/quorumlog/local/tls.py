"""The certificates of a local cluster that speaks TLS: where they are, and how its own are used.

Who makes them is not its business: `quorumlog cluster up --secure` does.
"""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.client.outgoing_tls import TlsOfClient
from quorumlog.client.security import Security
from quorumlog.local.errors import LocalClusterError
from quorumlog.model.errors import ConfigError
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


class AdminPortTls:
    """What connects to the admin ports of a cluster, made of its newest files."""

    def __init__(self, tls_directory: Path) -> None:
        self._directory = tls_directory
        files = client_files(tls_directory)
        security = Security(
            ca=str(files.ca), certificate=str(files.certificate), key=str(files.key)
        )
        self._tls = TlsOfClient(security)

    def newest(self) -> ssl.SSLContext:
        """Return what the next connection needs. Raises `LocalClusterError`."""
        try:
            return self._tls.newest().context
        except ConfigError as error:
            raise LocalClusterError(
                f"the certificates in {self._directory} cannot be used ({error}); 'quorumlog "
                f"cluster up --dir {self._directory.parent}' makes those that are missing"
            ) from error


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
