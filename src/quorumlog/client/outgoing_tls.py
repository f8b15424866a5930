"""What the connections of a client need for TLS, made of the newest files of its `Security`."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from quorumlog.auth.certificates import certified_of
from quorumlog.client.security import Security
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.transport.tls import OutgoingTls
from quorumlog.transport.tls_contexts import client_context


class TlsOfClient:
    """Makes an `OutgoingTls` of files, and again when one of them is another than before.

    So certificates can be renewed while a client has them: connections that are open go on.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        self._made: OutgoingTls | None = None
        self._made_of: list[tuple[int, ...]] = []

    def newest(self) -> OutgoingTls:
        """Return what the next connection needs. Raises `ConfigError` for files of no use."""
        found = [_version_of(path) for path in self._security.paths]
        if self._made is None or found != self._made_of:
            self._made, self._made_of = outgoing_tls(self._security), found
        return self._made


def outgoing_tls(security: Security) -> OutgoingTls:
    """Return what a connection needs. Raises `ConfigError` with the file and the reason."""
    context = client_context(security.ca, security.certificate, security.key)
    context.check_hostname = security.verify_name == "host"
    return OutgoingTls(
        context,
        partial(check_server, security.cluster_id),
        certificate=security.certificate,
    )


def check_server(cluster_id: str, certificate: Mapping[str, Any]) -> None:
    """Raise `RemoteProtocolError` unless a certificate is of a node of the cluster; "": of any."""
    certified = certified_of(certificate)
    if not cluster_id:
        return
    if certified is None or certified.kind != "node":
        whose = "nobody" if certified is None else f"the user {certified.name}"
        raise RemoteProtocolError(
            f"its certificate is of {whose}, not of a node of cluster {cluster_id}"
        )
    if certified.cluster_id != cluster_id:
        raise RemoteProtocolError(
            f"its certificate is of node {certified.name} of cluster {certified.cluster_id}, not "
            f"of cluster {cluster_id}"
        )


def _version_of(path: str) -> tuple[int, ...]:
    """Return numbers that change when a file does."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns
