"""What a node's TLS files say, read again when they change."""

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from quorumlog.auth.certificates import (
    Certified,
    certified_of,
    check_member,
    principal_of,
)
from quorumlog.log_events import describe_error, log_event
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.model.name_rules import parse_member_rule, parse_principal_rule
from quorumlog.model.tls_config import FILES, TlsConfig
from quorumlog.transport.handshake_turns import HandshakeTurns
from quorumlog.transport.member_hosts import MemberHosts
from quorumlog.transport.tls import Identity, IncomingTls, OutgoingTls
from quorumlog.transport.tls_contexts import bytes_of, peer_context, server_context
from quorumlog.transport.tls_words import in_words

if TYPE_CHECKING:
    from cryptography.x509 import CertificateRevocationList

logger = logging.getLogger(__name__)

RELOAD_MS: Final = 10_000
"""Pause between looks at the files."""
WARN_BEFORE_S: Final = 30 * 86_400.0
"""A certificate that expires within this time is warned of, once a day."""
WARN_OF_CRL_BEFORE_S: Final = 7 * 86_400.0
"""The same for revocation lists, which are made anew more often."""
WARN_EVERY_S: Final = 86_400.0
IsRevoked: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether a certificate is revoked; see `ssl.SSLSocket.getpeercert`."""
_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----"
_HANDSHAKE_STEPS: Final = 10
"""Steps in which a handshake in memory ends; three are enough."""
_REVOKED: Final = 23
"""OpenSSL's code (x509_vfy.h): the list is good, and the certificate is on it."""


class TlsState:
    """What the files said at one time: a context for each use, and who this node is.

    Raises `ConfigError`, with the file and the reason, if the node could not use them, or if its
    peers would not accept its certificate. `is_revoked_now` looks a certificate up in the newest
    lists: a handshake may have begun before there were these. `may_be_revoked`: the node's own
    certificate may be on a list (`is_own_revoked`), which then counts for everybody else.
    """

    def __init__(
        self,
        config: TlsConfig,
        self_id: str,
        now_s: Callable[[], float],
        is_revoked_now: IsRevoked,
        *,
        may_be_revoked: bool = False,
    ) -> None:
        self._config = config
        self._now_s = now_s
        self._is_revoked_now = is_revoked_now
        self._rule = parse_member_rule(config.member_rule) if config.member_rule else None
        self._principals = [parse_principal_rule(rule) for rule in config.principal_rules]
        listed = bytes_of("revocation list", config.crl) if config.crl else b""
        self._lists = _lists_of(listed, config.crl)
        self._native = server_context(config, serves_peers=True)
        self._kafka = server_context(config)
        self._admin = server_context(config, serves_peers=True, only_asks=True)
        self._peer = peer_context(config)
        self._peer_authorities = frozenset(self._peer.get_ca_certs(binary_form=True))
        if config.member_rule and not self._peer_authorities.isdisjoint(
            self._kafka.get_ca_certs(binary_form=True)
        ):
            raise ConfigError(
                "[tls] memberRule: an authority is in both ca and peerCa, so that each client that "
                "it certifies could be a member; members need one of their own in peerCa"
            )
        if config.crl and bytes_of("revocation list", config.crl) != listed:
            raise ConfigError(f"the revocation list {config.crl} changed while it was read")
        shown, self.is_own_revoked = self._shown(may_be_revoked=may_be_revoked)
        self.own = self._own(shown, self_id)
        self.expires = self._expiries(shown)
        """When what is in a file expires, by its key; the earliest if several are in it."""

    def _shown(self, *, may_be_revoked: bool) -> tuple[Mapping[str, Any], bool]:
        """Return the node's certificate as its peers see it, and whether it is revoked."""
        file, sides = self._config.certificate, (self._native, self._peer)
        try:
            return _shake_hands(file, *sides), False
        except ssl.SSLError as error:
            is_revoked = getattr(error, "verify_code", 0) == _REVOKED
            if not (is_revoked and may_be_revoked):
                raise self._refused_by_peers(error) from error
        for context in sides:  # nobody else uses them yet
            context.verify_flags &= ~ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        try:
            return _shake_hands(file, *sides), True
        except ssl.SSLError as error:
            raise self._refused_by_peers(error) from error
        finally:
            for context in sides:
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    def _refused_by_peers(self, error: ssl.SSLError) -> ConfigError:
        return ConfigError(
            f"[tls] certificate {self._config.certificate}: this node's peers would refuse it: "
            f"{in_words(error, '', self._now_s())}"
        )

    def _own(self, shown: Mapping[str, Any], self_id: str) -> Certified:
        file = self._config.certificate
        try:
            own = certified_of(shown, self._rule)
            check_member(own, self_id, own.cluster_id if own is not None else "CLUSTER-ID")
        except RemoteProtocolError as error:
            raise ConfigError(f"[tls] certificate {file}: {error}") from error
        if own is None:  # which check_member does not let pass
            raise ConfigError(f"[tls] certificate {file} names no node")
        return own

    def _expiries(self, shown: Mapping[str, Any]) -> dict[str, float]:
        config = self._config
        found: dict[str, float] = {"certificate": ssl.cert_time_to_seconds(shown["notAfter"])}
        authorities = {"ca": self._kafka, "peerCa": self._peer}
        if not config.peer_ca:
            del authorities["peerCa"]
        for key, context in authorities.items():
            ends = [
                ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs()
            ]
            if ends:
                found[key] = min(ends)
        if config.crl:
            found["crl"] = self._lists.end_s
        return found

    @property
    def native(self) -> IncomingTls:
        """For connections to the node's own port."""
        return IncomingTls(self._native, self._identify_or_refuse, self._config.certificate)

    @property
    def kafka(self) -> IncomingTls:
        """For connections of Kafka's clients."""
        return IncomingTls(self._kafka, self._identify_client, self._config.certificate)

    @property
    def admin(self) -> IncomingTls:
        """For connections to the admin port, whose pages say themselves who may see them."""
        return IncomingTls(self._admin, self._identify_or_refuse, self._config.certificate)

    def is_revoked(self, certificate: Mapping[str, Any]) -> bool:
        """Whether a certificate is in a revocation list; see `ssl.SSLSocket.getpeercert`."""
        issuer = [value for part in certificate["issuer"] for _, value in part]
        return (tuple(issuer), int(certificate["serialNumber"], 16)) in self._lists.revoked

    def has_older_lists_than(self, before: "TlsState") -> bool:
        """Whether an authority's revocation list has taken the place of a newer one."""
        editions = before._lists.editions
        return any(
            edition.is_older_than(editions[issuer])
            for issuer, edition in self._lists.editions.items()
            if issuer in editions
        )

    def to_peer(self, peer_id: str, when_plain: Callable[[], object] | None) -> OutgoingTls:
        """For connections to a peer; see `OutgoingTls` for `when_plain`."""

        def check(certificate: Mapping[str, Any]) -> None:
            self._check_revoked(certificate)
            check_member(certified_of(certificate, self._rule), peer_id, self.own.cluster_id)

        return OutgoingTls(
            self._peer, check, certificate=self._config.certificate, when_plain=when_plain
        )

    def _check_revoked(self, certificate: Mapping[str, Any]) -> None:
        if self._is_revoked_now(certificate):
            raise RemoteProtocolError("its certificate was revoked during the handshake")

    def _check_resumed(self, certificate: Mapping[str, Any]) -> None:
        """Check what OpenSSL has checked only when the session began, as time has passed."""
        ends = ssl.cert_time_to_seconds(certificate["notAfter"]), self._lists.end_s
        if self._now_s() > min(ends):
            raise RemoteProtocolError("its session was resumed, but its certificate has expired")

    def _identify(self, ssl_object: ssl.SSLObject) -> Identity:
        """Return who has connected; raises `RemoteProtocolError` if that may not be here."""
        certificate = ssl_object.getpeercert()
        if not certificate:
            return Identity()
        self._check_revoked(certificate)
        if ssl_object.session_reused:
            self._check_resumed(certificate)
        is_of_peers = not self._peer_authorities.isdisjoint(_chain_of(ssl_object))
        certified = certified_of(certificate, self._rule if is_of_peers else None)
        if certified is not None and certified.kind == "node" and not is_of_peers:
            raise RemoteProtocolError(
                f"the certificate of node {certified.name} is not of an authority in peerCa"
            )
        is_node = certified is not None and certified.kind == "node"
        if self._config.client_auth == "none" and not is_node:
            return Identity()
        own_cluster = self.own.cluster_id
        if certified is not None and own_cluster and certified.cluster_id != own_cluster:
            raise RemoteProtocolError(
                f"the certificate of {certified.name} is of cluster "
                f"{certified.cluster_id or '(none)'}, this is {own_cluster}"
            )
        return Identity(certified, principal_of(certificate, certified, self._principals))

    def _identify_or_refuse(self, ssl_object: ssl.SSLObject) -> Identity:
        try:
            return self._identify(ssl_object)
        except RemoteProtocolError as error:
            return Identity(refusal=str(error))

    def _identify_client(self, ssl_object: ssl.SSLObject) -> Identity:
        found = self._identify(ssl_object)
        if found.certified is not None and found.certified.kind == "node":
            raise RemoteProtocolError(refused_node(found.certified))
        return found


def refused_node(certified: Certified) -> str:
    """Return why a client may not show the certificate of a node."""
    return (
        f"the certificate of node {certified.name} was shown by a client, which needs a user's "
        "certificate or none"
    )


def _chain_of(ssl_object: ssl.SSLObject) -> list[bytes]:
    """Return the verified chain of the other side's certificate, in DER."""
    if hasattr(ssl_object, "get_verified_chain"):  # from Python 3.13
        return list(ssl_object.get_verified_chain())
    inner: Any = vars(ssl_object)["_sslobj"]  # what 3.13 has made public
    return [
        ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in inner.get_verified_chain() or ()
    ]


def _shake_hands(file: str, server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """Let a node connect to itself in memory; return its certificate as its peers see it.

    `file`: that of the certificate. Raises `ssl.SSLError` if one side refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(_HANDSHAKE_STEPS):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                continue
        if all(done):
            return sides[0].getpeercert() or {}
    raise ConfigError(f"[tls] certificate {file}: no handshake in memory ends")


_Issuer: TypeAlias = tuple[str, ...]
"""The values in the name of an authority."""


class _Edition(NamedTuple):
    """Which of an authority's revocation lists one is; not all authorities number them."""

    number: int | None
    begin_s: float

    def is_older_than(self, other: "_Edition") -> bool:
        if self.number is not None and other.number is not None:
            return self.number < other.number
        return self.begin_s < other.begin_s


class _Lists(NamedTuple):
    """What revocation lists say: certificates, by their issuer and number, and the earliest end.

    `editions`: the newest list of each issuer.
    """

    revoked: frozenset[tuple[_Issuer, int]] = frozenset()
    end_s: float = float("inf")
    editions: Mapping[_Issuer, _Edition] = MappingProxyType({})


def _lists_of(data: bytes, path: str) -> _Lists:
    """Return what revocation lists in a file say. Raises `ConfigError`."""
    blocks = _blocks_of(data, path)
    if not blocks:
        return _Lists()
    from cryptography import x509  # noqa: PLC0415  (it takes time, and few nodes have such lists)

    revoked: set[tuple[_Issuer, int]] = set()
    editions: dict[_Issuer, _Edition] = {}
    ends = []
    try:
        for block in blocks:
            found = x509.load_pem_x509_crl(block)
            issuer = tuple(str(attribute.value) for attribute in found.issuer)
            revoked.update((issuer, one.serial_number) for one in found)
            edition = _edition_of(found)
            if issuer not in editions or editions[issuer].is_older_than(edition):
                editions[issuer] = edition
            if found.next_update_utc is not None:
                ends.append(found.next_update_utc.timestamp())
    except Exception as error:  # it is stricter than OpenSSL, with exceptions of many kinds
        raise ConfigError(
            f"cannot use the revocation list {path}: {describe_error(error)}"
        ) from error
    return _Lists(frozenset(revoked), min(ends, default=float("inf")), editions)


def _edition_of(found: "CertificateRevocationList") -> _Edition:
    from cryptography import x509  # noqa: PLC0415

    number = None
    with suppress(Exception):  # there is none, or extensions are odd, which OpenSSL judges
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    return _Edition(number, found.last_update_utc.timestamp())


def _blocks_of(data: bytes, path: str) -> list[bytes]:
    """Return the revocation lists in a file, each in PEM. Raises `ConfigError`.

    It takes time in proportion to the file, whatever is in it: nothing is looked at twice.
    """
    blocks = []
    begin = data.find(_BEGIN)
    while begin >= 0:
        last = data.find(_END, begin + len(_BEGIN))
        if last < 0:
            raise ConfigError(f"cannot use the revocation list {path}: a list in it has no end")
        end = last + len(_END)
        blocks.append(data[begin:end])
        begin = data.find(_BEGIN, end)
    return blocks


_Stats: TypeAlias = list[tuple[int, int, int] | None]
"""What files were like: when they were changed, which, and how large; None: there is none."""
Run: TypeAlias = Callable[
    [Callable[[], TlsState], Callable[[TlsState], None], Callable[[Exception], None]], None
]
"""Calls the first, maybe on a thread, and one of the others with what came of it, on the loop."""


@dataclass(slots=True)
class _Seen:
    """The files as they were when they were read, and what came of it."""

    stats: _Stats
    failure: str = ""


class NodeTls:
    """The TLS of a node. `current` is what the newest files say that can be used.

    A connection uses what was current when it began. `now_s` is the time of the wall clock.
    """

    def __init__(self, config: TlsConfig, self_id: str, now_s: Callable[[], float]) -> None:
        self.config = config
        self._self_id = self_id
        self._now_s = now_s
        self.members = MemberHosts()
        self.handshakes = HandshakeTurns(time.monotonic, time.thread_time, self.members)
        self._seen = _Seen(self._stats())
        self._is_reading = False
        self.when_revoked: list[Callable[[IsRevoked], None]] = []
        """Called when newer revocation lists may have more certificates."""
        self.current = TlsState(config, self_id, now_s, self._is_revoked)
        self._warned_at = -WARN_EVERY_S
        self._warn()

    def _is_revoked(self, certificate: Mapping[str, Any]) -> bool:
        """Look a certificate up in the newest lists."""
        return self.current.is_revoked(certificate)

    @property
    def is_optional(self) -> bool:
        """Whether plain connections are served, too."""
        return self.config.mode == "optional"

    @property
    def has_failed(self) -> bool:
        """Whether the files are newer than what is used, as they cannot be used."""
        return bool(self._seen.failure)

    @cached_property
    def _paths(self) -> list[str]:
        return [path for name in FILES if (path := getattr(self.config, name))]

    @property
    def seconds_left(self) -> dict[str, float]:
        """Seconds until what is in a file expires, by the file's key; negative: it has."""
        now = self._now_s()
        return {key: end - now for key, end in self.current.expires.items()}

    def _stats(self) -> _Stats:
        found: _Stats = []
        for path in self._paths:
            try:
                stat = os.stat(path)
                found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
            except OSError:
                found.append(None)
        return found

    def check(self, run: Run) -> None:
        """Use the files anew if they have changed and can be used; else keep what there is.

        It raises nothing, whatever is in a file: the node goes on. `run` has the files read, on a
        thread where others wait, as long revocation lists take half a second.
        """
        if self._is_reading:  # what has changed since then is found at the next look
            return
        stats = self._stats()
        if stats == self._seen.stats and not self._seen.failure:
            self._warn()
            return
        self._is_reading = True
        run(self._read, partial(self._use, stats), partial(self._fail, stats))

    def _read(self) -> TlsState:
        """Read the files; on any thread."""
        return TlsState(
            self.config, self._self_id, self._now_s, self._is_revoked, may_be_revoked=True
        )

    def _use(self, stats: _Stats, state: TlsState) -> None:
        try:
            self._install(state)
        except Exception as error:
            self._fail(stats, error)
            return
        self._is_reading = False
        self._seen = _Seen(stats)
        self._warn()

    def _fail(self, stats: _Stats, error: Exception) -> None:
        """Have the files tried again; a reason is logged once."""
        self._is_reading = False
        is_expected = isinstance(error, ConfigError)
        reason = str(error) if is_expected else describe_error(error)
        before, self._seen = self._seen, _Seen(stats, reason)
        if reason != before.failure:
            log_event(
                logger,
                logging.ERROR,
                "TLS files cannot be used; those from before still are",
                exc_info=None if is_expected else error,
                node=self._self_id,
                reason=reason,
            )
        self._warn()

    def _install(self, state: TlsState) -> None:
        before, self.current = self.current, state
        self._warned_at = -WARN_EVERY_S
        log_event(
            logger,
            logging.INFO,
            "TLS files read again",
            node=self._self_id,
            serial=self.current.own.serial,
        )
        if self.current.has_older_lists_than(before):
            log_event(
                logger,
                logging.WARNING,
                "an older revocation list has taken the place of a newer one",
                node=self._self_id,
                crl=self.config.crl,
                text="certificates that were revoked meanwhile count again",
            )
        if self.current.is_own_revoked:
            log_event(
                logger,
                logging.ERROR,
                "this node's own certificate is revoked and has to be replaced",
                node=self._self_id,
                certificate=self.config.certificate,
                serial=self.current.own.serial,
            )
        if self.config.crl:
            for end_revoked in self.when_revoked:
                end_revoked(self.current.is_revoked)

    def _warn(self) -> None:
        """Say which certificates expire soon, once a day."""
        now = self._now_s()
        if now - self._warned_at < WARN_EVERY_S:
            return
        self._warned_at = now
        for key, left in self.seconds_left.items():
            if left < (WARN_OF_CRL_BEFORE_S if key == "crl" else WARN_BEFORE_S):
                log_event(
                    logger,
                    logging.WARNING,
                    "a TLS file expires soon" if left > 0 else "a TLS file has expired",
                    node=self._self_id,
                    key=key,
                    days_left=round(left / 86_400, 1),
                )
