"""Who may see what at the admin port: strangers, and whoever has shown or said who they are.

Pages are served by threads. Logins and rights belong to the event loop, so they are looked at
there, while the thread waits.
"""

import asyncio
import base64
import binascii
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from quorumlog.auth.acls import CLUSTER, Operation
from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.hosts import host_of, without_port
from quorumlog.auth.login import (
    BUSY_TEXT,
    Answer,
    ConnectionLogin,
    LoggedIn,
    Logins,
    Origin,
    Refused,
    origin_of,
)
from quorumlog.auth.permits import Authorizer, Right, refusal_text
from quorumlog.auth.principals import USER
from quorumlog.model.audit_events import BY_CERTIFICATE
from quorumlog.model.config import NodeConfig, is_loopback, parse_address
from quorumlog.model.messages.login import REFUSED_TEXT
from quorumlog.model.security_config import OAUTHBEARER, PLAIN

NO_CERTIFICATE: Final = "show a client certificate of this cluster"
PENDING_MAX: Final = 16
"""Threads that wait for the event loop at a time; whoever comes then is to try again."""
HOST_LOGINS_MAX: Final = 4
"""Logins of one host among these: a refused one is answered seconds later."""
ANSWER_S: Final = 10.0
"""A loop that says nothing for so long is blocked."""
NOT_READY: Final = "this node has just started and does not know yet who may do what; try again"
_SCHEMES: Final = {
    PLAIN: 'Basic realm="quorumlog", charset="UTF-8"',
    OAUTHBEARER: 'Bearer realm="quorumlog"',
}
"""Challenges of RFC 7617 and RFC 6750, by the mechanism of SASL that stands behind each."""
_MALFORMED: Final = "this header Authorization is neither Basic (user:password) nor Bearer (token)"
_DESCRIBE: Final = Right(Operation.DESCRIBE, CLUSTER.type, CLUSTER.name)


class Access(Enum):
    """How much of the pages somebody may see."""

    ALL = "all"
    HEALTH = "health"
    """Whether the node is healthy, and no more."""
    NONE = "none"


class AdminRequest(NamedTuple):
    """What somebody asks of the admin port.

    `principal`: who that is, as a certificate says. `authorization`: the header of this name.
    """

    method: str
    path: str
    address: str
    principal: str
    authorization: str = ""
    is_encrypted: bool = False


class Verdict(NamedTuple):
    """What somebody may see, and what they are told of all else.

    `challenges`: how they may say who they are. `is_recorded`: the audit log has it already.
    """

    access: Access
    status: str = "403 Forbidden"
    text: str = NO_CERTIFICATE
    challenges: tuple[str, ...] = ()
    is_recorded: bool = False


_ALL: Final = Verdict(Access.ALL)


def see_all(request: AdminRequest) -> Verdict:
    """Let everybody see all."""
    return _ALL


def access_of(
    config: NodeConfig, members: "AdminMembers | None" = None
) -> Callable[[AdminRequest], Verdict]:
    """Return what says how much somebody may see.

    Without TLS, or at a loopback address, everybody who can reach the port sees all. `members`
    says who others are, and what they may do; None: whoever shows a certificate sees all.
    """
    host, _ = parse_address(config.admin_listen)
    if config.tls is None or is_loopback(host):
        return see_all
    anonymous = Access(config.admin_anonymous)
    if anonymous is Access.ALL:
        return see_all
    if members is None:
        return lambda asked: Verdict(anonymous) if asked.principal == ANONYMOUS else _ALL
    return partial(members.verdict, anonymous=anonymous)


class _Client(NamedTuple):
    """See `auth.permits.Client`."""

    principal: str
    login_mechanism: str
    remote_address: str

    @property
    def mechanism(self) -> str:
        """See `auth.permits.Client`."""
        return self.login_mechanism or BY_CERTIFICATE


class AdminMembers:
    """Who asks at the admin port, by `logins`, and what they may do, by `authorizer`.

    `logins`: None: nobody logs in. `authorizer`: None: whoever is somebody may see all. `loop` is
    where both belong to. Threads call `verdict`, and `stop` ends what they wait for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logins: Logins | None,
        authorizer: Authorizer | None,
    ) -> None:
        self._loop = loop
        self._logins = logins
        self._authorizer = authorizer
        self._lock = threading.Lock()
        self._pending: set[Future[Verdict]] = set()
        self._by_host: Counter[str] = Counter()
        """Logins under way."""
        self._is_stopped = False

    def verdict(self, request: AdminRequest, *, anonymous: Access) -> Verdict:
        """Return what somebody may see; `anonymous`: what those see who do not say who they are."""
        if request.authorization and not self._challenges(request):
            request = request._replace(authorization="")  # of a proxy: nobody logs in here
        if not request.authorization:
            if request.principal == ANONYMOUS:
                return self._for_strangers(request, anonymous)
            if not self._is_judged(request.principal):
                return _ALL  # even if the loop is blocked, which is when it is needed most
        host = host_of(without_port(request.address)) if request.authorization else ""
        with self._lock:
            is_full = len(self._pending) >= PENDING_MAX
            if self._is_stopped or is_full or self._by_host[host] >= HOST_LOGINS_MAX:
                return _busy(anonymous)
            waiting = asyncio.run_coroutine_threadsafe(self._judge(request, anonymous), self._loop)
            self._pending.add(waiting)
            if host:
                self._by_host[host] += 1
        try:
            return waiting.result(ANSWER_S)
        except (TimeoutError, CancelledError):
            waiting.cancel()
            return _busy(anonymous)
        finally:
            with self._lock:
                self._pending.discard(waiting)
                if host:
                    self._by_host[host] -= 1
                    self._by_host += Counter()  # without those that have none any more

    def stop(self) -> None:
        """Answer all that waits, and whoever comes from now on: not now."""
        with self._lock:
            self._is_stopped = True
            pending = list(self._pending)
        for one in pending:
            one.cancel()

    def _for_strangers(self, request: AdminRequest, anonymous: Access) -> Verdict:
        challenges = self._challenges(request)
        if not challenges:
            return Verdict(anonymous)
        return Verdict(anonymous, "401 Unauthorized", f"log in, or {NO_CERTIFICATE}", challenges)

    def _challenges(self, request: AdminRequest) -> tuple[str, ...]:
        if self._logins is None:
            return ()
        offered = self._logins.offered(_origin(request))
        return tuple(text for mechanism, text in _SCHEMES.items() if mechanism in offered)

    def _is_judged(self, principal: str) -> bool:
        """Whether somebody needs a right: nodes of the cluster do not."""
        return self._authorizer is not None and principal.startswith(USER)

    async def _judge(self, request: AdminRequest, anonymous: Access) -> Verdict:
        client = _Client(request.principal, "", request.address)
        if request.authorization:
            found = await self._log_in(request, anonymous)
            if isinstance(found, Verdict):
                return found
            client = _Client(*found, request.address)
        if self._authorizer is None or not self._is_judged(client.principal):
            return _ALL
        permit = self._authorizer.permit(client)
        if not permit.is_ready:
            return Verdict(anonymous, "503 Service Unavailable", NOT_READY, is_recorded=True)
        if permit.may(*_DESCRIBE):
            return _ALL
        text = refusal_text(client.principal, _DESCRIBE)
        return Verdict(anonymous, text=text, is_recorded=True)

    async def _log_in(self, request: AdminRequest, anonymous: Access) -> tuple[str, str] | Verdict:
        """Return the principal that logs in and its mechanism, or why it does not."""
        if self._logins is None:
            return Verdict(anonymous)
        challenges = self._challenges(request)
        said = message_of(request.authorization)
        if said is None:
            return Verdict(Access.NONE, "400 Bad Request", _MALFORMED, is_recorded=True)
        mechanism, data = said
        login = ConnectionLogin(self._logins, _origin(request))
        refused = Verdict(Access.NONE, "401 Unauthorized", REFUSED_TEXT, challenges, True)
        if not login.begin(mechanism):
            return refused
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def answer_now(answer: Answer) -> None:
            if not answered.done():  # the thread may have given up
                answered.set_result(answer)

        login.step(data, answer_now)
        try:
            answer = await answered
        finally:
            login.end()
        if isinstance(answer, LoggedIn):
            return answer.principal, answer.mechanism
        is_busy = isinstance(answer, Refused) and answer.is_busy
        return _busy(Access.NONE) if is_busy else refused


def _origin(request: AdminRequest) -> Origin:
    return origin_of(request.address, is_encrypted=request.is_encrypted)


def _busy(anonymous: Access) -> Verdict:
    return Verdict(anonymous, "503 Service Unavailable", BUSY_TEXT, is_recorded=True)


def message_of(authorization: str) -> tuple[str, bytes] | None:
    """Return a mechanism of SASL, and the message of it that says what a header Authorization does.

    None: it is not of a scheme that is known, or not well formed.
    """
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    if scheme.lower() == "bearer" and credentials:
        return OAUTHBEARER, b"n,,\x01auth=Bearer " + credentials.encode("latin-1") + b"\x01\x01"
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (PLAIN, b"\0" + user + b"\0" + password) if colon else None
