"""The logins of a node: what they need from its configuration, its files and its clock."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from quorumlog.auth.decoys import HmacDecoys
from quorumlog.auth.login import LoginEnvironment, LoginEvent, Logins
from quorumlog.auth.oauthbearer import TokenKey, TokenRules, keys_of
from quorumlog.auth.remembered import Remembered
from quorumlog.auth.sasl import Reason
from quorumlog.auth.scram import Verifier
from quorumlog.log_events import log_event, reason_of
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.audit_events import AuditedEvent, AuditEvent
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.model.security_config import OAUTHBEARER, SecurityConfig
from quorumlog.node.executor import ThreadExecutor
from quorumlog.node.node import Node, wall_ms
from quorumlog.transport.client_lines import ClientLines
from quorumlog.transport.private_files import read_regular

logger = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
"""Bytes of a key of this process."""
NONCE_BYTES: Final = 24
PASSWORD_THREADS: Final = 2
"""Passwords of PLAIN that are computed at the same time: 4 to 8 ms of a processor each."""
JWKS_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a file of keys."""
JWKS_CHECK_S: Final = 10.0
"""A file of keys is looked at again after this time, if there are logins, in seconds."""


def load_logins(config: NodeConfig) -> None:
    """Import what checks passwords and tokens, where the configuration has somebody log in.

    It takes 0.1 s and more, so it is done before the event loop runs.
    """
    security = _security_of(config)
    if security is None:
        return
    import_module("quorumlog.auth.scram_exchange")
    if OAUTHBEARER in security.mechanisms:
        import_module("jwt")


class _UsersOfCluster:
    """See `auth.scram.Verifiers`: the users that `__cluster` holds just now."""

    def __init__(self, view: Callable[[], ClusterView]) -> None:
        self._view = view

    def verifier(self, user: str, mechanism: str) -> Verifier | None:
        """Return by what the password of a user is checked; None: there is nothing."""
        return self._view().security.verifier(user, mechanism)


class TokenKeys:
    """The keys of a file, read again when it changes; one that cannot be used changes nothing.

    Raises `ConfigError` if it cannot be used when it is first read. `now`: seconds.
    """

    def __init__(self, path: str, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._seen = self._stamp()
        self._looked_at = now()
        self.has_failed = False
        """Whether the file could not be used when it was looked at last."""
        self._keys = keys_of(self._read(), path)

    def __call__(self) -> list[TokenKey]:
        """Return the keys."""
        now = self._now()
        if now - self._looked_at >= JWKS_CHECK_S:
            self._looked_at = now
            self.has_failed = False
            try:
                self._look()
            except ConfigError as error:
                self.has_failed = True
                log_event(
                    logger,
                    logging.ERROR,
                    "goes on with the keys of tokens that it has",
                    reason=str(error),
                )
        return self._keys

    def is_refused(self) -> bool:
        """Whether the file as it is now cannot be used."""
        self()
        return self.has_failed

    def _look(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._keys = keys_of(self._read(), self._path)
            self._seen = stamp  # not before: a file that could not be used is tried again

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = Path(self._path).stat()
        except OSError as error:
            raise self._unreadable(reason_of(error)) from error
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> bytes:
        try:
            return read_regular(self._path, JWKS_BYTES_MAX)
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from error

    def _unreadable(self, reason: str) -> ConfigError:
        return ConfigError(f"oauthJwksFile {self._path} cannot be read: {reason}")


def token_rules(config: NodeConfig) -> TokenRules | None:
    """Return what tokens must say; None: none are taken.

    Raises `ConfigError` if the file of keys cannot be used.
    """
    security = _security_of(config)
    if security is None or OAUTHBEARER not in security.mechanisms:
        return None
    return TokenRules(
        TokenKeys(security.oauth_jwks_file, time.monotonic),
        security.oauth_issuer,
        security.oauth_audience,
        security.oauth_principal_claim,
        wall_ms,
    )


def _security_of(config: NodeConfig) -> SecurityConfig | None:
    """Return how clients log in; None: they do not."""
    security = config.security
    return None if security is None or security.login == "none" else security


def password_threads() -> ThreadExecutor:
    """Return the threads that compute passwords of PLAIN: reads never wait for these.

    They do not run before there is one. `auth.login.COMPUTED_MAX` bounds what waits for them.
    """
    loop = asyncio.get_running_loop()
    return ThreadExecutor(loop, threads=PASSWORD_THREADS, name="quorumlog-password")


def make_logins(
    node: Node,
    passwords: ThreadExecutor,
    view: Callable[[], ClusterView],
    is_ready: Callable[[], bool],
    tokens: TokenRules | None,
) -> Logins | None:
    """Return the logins of a node; None: nobody can log in.

    `passwords`: threads of their own. `view` returns what `__cluster` holds, `is_ready` whether
    that is known here yet.
    """
    warn_of_plain_peers(node.config)
    warn_of_no_super_user(node.config)
    security = _security_of(node.config)
    if security is None:
        return None
    if tokens is not None and isinstance(keys := tokens.keys, TokenKeys):
        node.instruments.logins.are_keys_refused = keys.is_refused
    lines = ClientLines(logger, time.monotonic)

    def told(event: LoginEvent) -> None:
        write_line(lines, event)
        if event.reason is not None:
            node.instruments.audit.record(_audited(event, event.reason))

    environment = LoginEnvironment(
        now=time.monotonic,
        wall_ms=wall_ms,
        later=lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call),
        threads=passwords,
        nonce=lambda: secrets.token_urlsafe(NONCE_BYTES),
        is_ready=is_ready,
        told=told,
        spent=(lambda _seconds: None) if node.tls is None else node.tls.handshakes.spend,
    )
    return Logins(
        security,
        _UsersOfCluster(view),
        HmacDecoys(secrets.token_bytes(SECRET_BYTES), lambda: view().security.decoys),
        Remembered(secrets.token_bytes(SECRET_BYTES)),
        tokens,
        environment,
        node.instruments.logins,
    )


def warn_of_no_super_user(config: NodeConfig) -> None:
    """Say that nobody can give the first rights, if no super user could ever come.

    It is no reason not to start: others may have been given rights before.
    """
    security, tls = config.security, config.tls
    if security is None or security.authorization != "on":
        return
    if not security.super_users:
        lacks = "superUsers in [security] names nobody"
    elif tls is None or tls.client_auth == "none":
        lacks = "super users come by a certificate, and no client can show one here"
    else:
        return
    log_event(
        logger,
        logging.WARNING,
        "no super user can ever come: nobody can give the first rights",
        node=config.self_id,
        reason=lacks,
        text="name one in superUsers, with [tls] and clientAuth optional or required, or begin "
        'with authorization = "log"; until then only those may change users and rights who were '
        "given the right to alter the cluster before",
    )


def warn_of_plain_peers(config: NodeConfig) -> None:
    """Say that rights bind clients only, where nobody proves that he is a peer."""
    tls = config.tls
    if config.security is None or (tls is not None and tls.mode == "required"):
        return
    log_event(
        logger,
        logging.WARNING,
        "whoever reaches the node's port is believed to be a peer, whatever [security] says",
        node=config.self_id,
        text="set [tls] with mode required, or let nobody but the nodes reach the port",
    )


def _audited(event: LoginEvent, reason: Reason) -> AuditEvent:
    return AuditEvent(
        event=AuditedEvent.LOGIN_REFUSED,
        mechanism=event.mechanism,
        address=event.address,
        resource=f"user:{event.user}" if event.user else "",
        allowed=False,
        reason=f"{reason.value}: {event.text}" if event.text else reason.value,
    )


def write_line(lines: ClientLines, event: LoginEvent) -> None:
    """Write a line about a refused login: an address has one a minute."""
    if event.reason is None:
        return
    lines.warn(
        "refused a login",
        "",
        event.address,
        user=event.user,
        mechanism=event.mechanism,
        why=event.reason.value,
        reason=event.text,
    )
