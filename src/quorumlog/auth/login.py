"""Logins of a node, by either port: what is offered, who is in, and how refusals are answered."""

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.failure_delays import FailureDelays
from quorumlog.auth.hosts import without_port
from quorumlog.auth.oauthbearer import OauthbearerExchange, TokenRules
from quorumlog.auth.plain import PlainExchange
from quorumlog.auth.principals import USER, principal_of
from quorumlog.auth.remembered import Remembered
from quorumlog.auth.sasl import (
    MESSAGE_BYTES_MAX,
    STEPS_MAX,
    Compute,
    Continue,
    Done,
    Exchange,
    Failed,
    Reason,
    Step,
)
from quorumlog.auth.scram import Decoys, Verifier, Verifiers
from quorumlog.model.bounds import NAME_LENGTH_MAX
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.messages.login import REFUSED_TEXT
from quorumlog.model.security_config import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    SecurityConfig,
)

COMPUTED_MAX: Final = 100
"""Logins by PLAIN of a node whose passwords wait to be checked on threads; more are refused."""
CHANGE_S: Final = 10.0
"""How long the answer to a client that changes users is waited for, in seconds."""
CHANGE_GRACE_S: Final = 1.0
"""Such a client whose own password has changed has this time for the answer, in seconds."""
AGAIN_S: Final = 1.0
"""A client that is in begins no other login sooner than this after the last one, in seconds."""
SESSION_MS_MAX: Final = 24 * 3_600_000
"""A client that is in by a token logs in again after a day, though that token may hold for years:
a key that is removed ends no connections."""
REVOKED_TEXT: Final = (
    "the password that this client has logged in with was changed, or the user removed"
)
BUSY_TEXT: Final = "too many logins at once, or this node has just started; try again"
_BY_CERTIFICATE: Final = "a super user comes by a certificate"
_OF_USER: Final = (Reason.UNKNOWN_USER, Reason.PASSWORD)
_SCRAM: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
Result = TypeVar("Result")


class Origin(NamedTuple):
    """Where a login comes from. `address`: the client's host, without its port.

    `remote`: both, for the log; empty: the port is not known.
    """

    address: str
    is_encrypted: bool
    is_loopback: bool
    remote: str = ""


def origin_of(address: str, *, is_encrypted: bool) -> Origin:
    """Return where a login comes from. `address`: host and port of the client."""
    host = without_port(address)
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    return Origin(host, is_encrypted, is_loopback, address)


class LoggedIn(NamedTuple):
    """The client is `principal`, as `mechanism` has shown. `lifetime_ms`: how long that holds; 0:
    no end."""

    principal: str
    data: bytes
    lifetime_ms: int
    mechanism: str = ""


class Refused(NamedTuple):
    """The client is not let in, and the connection is to be closed; `text` is for the client.

    `is_busy`: it may try again at once.
    """

    text: str = REFUSED_TEXT
    is_busy: bool = False


Answer: TypeAlias = Continue | LoggedIn | Refused


class LoginEvent(NamedTuple):
    """A login that has ended, for the log of a node. `address`: of the client, with its port.

    `reason`: why it was refused; None: it was not.
    """

    address: str
    mechanism: str
    user: str
    reason: Reason | None
    text: str = ""


class Cancellable(Protocol):
    """A call that waits for its time."""

    def cancel(self) -> None:
        """Do not make it."""
        ...


class WorkerThreads(Protocol):
    """Runs what takes long."""

    def run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        failed: Callable[[Exception], None],
        client: object,
    ) -> None:
        """Run `work` on a thread, then `done` or `failed` on the loop."""
        ...

    def forget(self, client: object) -> None:
        """Neither run nor report what is for this client."""
        ...


class LoginEnvironment(NamedTuple):
    """What logins need from outside.

    `now` reads a clock that never goes back, in seconds, `wall_ms` Unix time in milliseconds.
    `later` makes a call after some seconds. `nonce` returns text that was not there before.
    `is_ready`: whether the node knows yet which users there are. `spent` is told the seconds that
    each step of a login took.
    """

    now: Callable[[], float]
    wall_ms: Callable[[], int]
    later: Callable[[float, Callable[[], None]], Cancellable]
    threads: WorkerThreads
    nonce: Callable[[], str]
    is_ready: Callable[[], bool]
    told: Callable[[LoginEvent], None]
    spent: Callable[[float], None]


@dataclass(slots=True)
class LoginCounters:
    """Totals since the start; `refused` by reason. `computed`: passwords on threads just now.

    `are_keys_refused` returns whether a newer file with the keys of tokens cannot be used.
    """

    accepted: int = 0
    refused: dict[Reason, int] = field(default_factory=dict)
    busy: int = 0
    computed: int = 0
    are_keys_refused: Callable[[], bool] = lambda: False


class Logins:
    """What all logins of a node share.

    `tokens`: what tokens must say; None: OAUTHBEARER is not offered.
    """

    def __init__(
        self,
        config: SecurityConfig,
        verifiers: Verifiers,
        decoys: Decoys,
        remembered: Remembered,
        tokens: TokenRules | None,
        environment: LoginEnvironment,
        counters: LoginCounters,
    ) -> None:
        self.config = config
        self.environment = environment
        self.counters = counters
        self.delays = FailureDelays()
        self._verifiers = verifiers
        self._decoys = decoys
        self._remembered = remembered
        self._tokens = tokens
        self._by_password: dict[str, dict[ConnectionLogin, None]] = {}
        """Those of open connections by which somebody is in with a password, by principal."""

    def note(self, login: "ConnectionLogin") -> None:
        """Somebody is in with a password: until that counts no more, or the connection ends."""
        self._by_password.setdefault(login.principal, {})[login] = None

    def forget(self, login: "ConnectionLogin") -> None:
        """The connection of a login has ended."""
        of_user = self._by_password.get(login.principal, {})
        of_user.pop(login, None)
        if not of_user:
            self._by_password.pop(login.principal, None)

    def users_changed(self, users: Iterable[str]) -> None:
        """End the connections of those of some users who are gone, or have another password."""
        for user in users:
            for login in list(self._by_password.get(USER + user, ())):
                if login.is_revoked:
                    login.revoke()

    @property
    def are_required(self) -> bool:
        """Whether clients have to say who they are."""
        return self.config.login == "required"

    def offered(self, origin: Origin) -> list[str]:
        """Return the mechanisms that a client may use on a connection.

        What carries a secret needs TLS. Without it SCRAM may be used within one machine only.
        """
        if self.config.login == "none":
            return []
        known = self.config.mechanisms
        if origin.is_encrypted:
            return list(known)
        return [one for one in known if one in _SCRAM] if origin.is_loopback else []

    def verifier(self, user: str, mechanism: str) -> Verifier | None:
        """Return by what the password of a user is checked now; None: there is nothing."""
        return self._verifiers.verifier(user, mechanism)

    def exchange(self, mechanism: str, verifiers: Verifiers) -> Exchange | None:
        """Return a new login by a mechanism; None: there is no such one.

        It looks in `verifiers` for those of this object, which may note what was used.
        """
        # scramp takes 0.1 s and 9 MiB: only nodes where somebody logs in pay for it
        from quorumlog.auth.scram_exchange import ScramExchange  # noqa: PLC0415

        environment = self.environment
        if mechanism in _SCRAM:
            return ScramExchange(mechanism, verifiers, self._decoys, environment.nonce())
        if mechanism == PLAIN:
            return PlainExchange(verifiers, self._decoys, self._remembered, environment.now)
        if mechanism == OAUTHBEARER and self._tokens is not None:
            return OauthbearerExchange(self._tokens)
        return None


class UsedVerifiers:
    """The verifiers that one login has looked at."""

    def __init__(self, verifiers: Verifiers) -> None:
        self._verifiers = verifiers
        self._used: dict[tuple[str, str], Verifier] = {}

    def verifier(self, user: str, mechanism: str) -> Verifier | None:
        """See `Verifiers`."""
        found = self._verifiers.verifier(user, mechanism)
        if found is not None:
            self._used[user, mechanism] = found
        return found

    @property
    def are_any(self) -> bool:
        """Whether anything was found, as for a login with a password."""
        return bool(self._used)

    @property
    def have_changed(self) -> bool:
        """Whether the user is gone, or has another password by now."""
        return any(self._verifiers.verifier(*who) != one for who, one in self._used.items())


class ConnectionLogin:
    """Who the client of one connection is. `principal`: who it is by its certificate.

    It may log in again, to be in for longer (KIP-368), as the same user only. `on_revoked` is
    called once the password by which it is in counts no more: the connection is to end at once.
    """

    def __init__(
        self,
        logins: Logins,
        origin: Origin,
        principal: str = ANONYMOUS,
        on_revoked: Callable[[], None] = lambda: None,
    ) -> None:
        self._logins = logins
        self._on_revoked = on_revoked
        self._changes_until: float | None = None
        self._origin = origin
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._steps = 0
        self._since = 0.0
        self._timer: Cancellable | None = None
        self._is_waiting = self._is_computed = self._is_over = self._is_held = False
        self._in_since: float | None = None
        self._until: float | None = None
        self._tried = self._used = UsedVerifiers(logins)
        """What the login under way has looked at, and the one that has let the client in."""
        self.principal = principal

    @property
    def is_needed(self) -> bool:
        """Whether the client has to log in before it may ask for anything."""
        return self._logins.are_required and self.principal == ANONYMOUS

    @property
    def is_possible(self) -> bool:
        """Whether the client has not said who it is, and may still log in."""
        return self.principal == ANONYMOUS and bool(self.offered)

    @property
    def is_expired(self) -> bool:
        """Whether the client has to log in again before it may ask for anything."""
        return self._until is not None and self._logins.environment.now() >= self._until

    @property
    def is_revoked(self) -> bool:
        """Whether the user by whose password the client is in is gone, or has another password.

        As long as the node does not know which users there are, nobody is.
        """
        return self._used.have_changed and self._logins.environment.is_ready()

    def changes_users(self) -> None:
        """The client asks for a change of users, which may be that of its own password."""
        self._changes_until = self._logins.environment.now() + CHANGE_S

    def revoke(self) -> None:
        """End the connection, as `is_revoked`: at once, or when the client can know why."""
        environment, until = self._logins.environment, self._changes_until
        if until is None or environment.now() >= until:
            self._on_revoked()
            return
        self._changes_until = None
        environment.later(CHANGE_GRACE_S, lambda: self._on_revoked() if self.is_revoked else None)

    @property
    def is_under_way(self) -> bool:
        """Whether a login has begun that has not ended."""
        return self._exchange is not None

    @property
    def is_over(self) -> bool:
        """Whether a login was refused: the connection ends once that is answered."""
        return self._is_over

    @property
    def is_decided(self) -> bool:
        """Whether a login was refused or let in, and only the time of its answer has to come."""
        return self._is_over or self._is_held

    @property
    def offered(self) -> list[str]:
        """The mechanisms that the client may use."""
        return self._logins.offered(self._origin)

    def begin(self, mechanism: str) -> bool:
        """Begin a login; return whether the mechanism is offered."""
        is_offered = not self._is_over and mechanism in self.offered
        self._mechanism, self._steps = mechanism, 0
        self._tried = UsedVerifiers(self._logins)
        self._exchange = self._logins.exchange(mechanism, self._tried) if is_offered else None
        if self._exchange is None:
            self._count(Reason.MECHANISM, f"offered are {', '.join(self.offered) or 'none'}")
        return self._exchange is not None

    @property
    def _is_too_soon(self) -> bool:
        """Whether the client begins a login just after the last one, which counts (KIP-368)."""
        if self._in_since is None or self._steps > 1:
            return False
        return self._since < self._in_since + AGAIN_S and not self.is_revoked

    def step(self, data: bytes, done: Callable[[Answer], None]) -> None:
        """Take a message of the client; `done` is called with the answer, now or later.

        It is not called any more after `end`, and once only for a login that was refused.
        """
        if self._is_over:  # the answer is on its way, in its time
            return
        environment = self._logins.environment
        self._since = environment.now()
        exchange = self._exchange
        self._steps += 1
        if exchange is None or self._is_waiting:
            self._refuse(Failed(Reason.MALFORMED, "a message outside of a login"), done)
        elif self._steps > STEPS_MAX or len(data) > MESSAGE_BYTES_MAX:
            self._refuse(Failed(Reason.MALFORMED, "too many or too long messages"), done)
        elif self._is_too_soon:
            self._refuse(Failed(Reason.MALFORMED, "it logs in again and again"), done)
        elif not environment.is_ready():
            self._busy(done)
        else:
            self._take(exchange.step(data), done)
        environment.spent(environment.now() - self._since)

    def _take(self, step: Step, done: Callable[[Answer], None]) -> None:
        if isinstance(step, Compute):
            self._compute(step, done)
        elif isinstance(step, Continue):
            done(step)
        elif isinstance(step, Failed):
            self._refuse(step, done)
        else:
            self._accept(step, done)

    def _compute(self, step: Compute, done: Callable[[Answer], None]) -> None:
        counters = self._logins.counters
        if counters.computed >= COMPUTED_MAX:
            self._busy(done)
            return
        counters.computed += 1
        self._is_waiting = self._is_computed = True

        def ended() -> None:
            self._is_waiting = self._is_computed = False
            counters.computed -= 1

        def computed(value: bool) -> None:
            ended()
            if not self._is_over:
                self._take(step.then(value), done)

        def failed(error: Exception) -> None:
            ended()
            if not self._is_over:
                self._busy(done)

        self._logins.environment.threads.run(step.work, computed, failed, self)

    def _accept(self, step: Done, done: Callable[[Answer], None]) -> None:
        logins = self._logins
        try:
            principal = principal_of(step.user)
        except UnexpectedArgumentError as error:
            self._refuse(Failed(Reason.MALFORMED, str(error)), done)
            return
        refused = self._why_not(principal)
        if refused is not None:
            self._refuse(refused, done)
            return
        left = logins.delays.until(self._origin.address, self._user) - logins.environment.now()
        if left <= 0:
            self._admit(step, principal, done)
            return
        self._is_waiting = self._is_held = True
        held = partial(self._admit, step, principal, done)
        self._timer = logins.environment.later(left, held)

    def _admit(self, step: Done, principal: str, done: Callable[[Answer], None]) -> None:
        logins = self._logins
        self._is_waiting = self._is_held = False
        if self._tried.have_changed:  # while it was computed, or its answer was held back
            self._refuse(Failed(Reason.PASSWORD, "it was changed meanwhile"), done)
            return
        environment, lifetime_ms = logins.environment, 0
        self._until = None
        if step.expires_ms:
            lifetime_ms = max(1, min(step.expires_ms - environment.wall_ms(), SESSION_MS_MAX))
            self._until = environment.now() + lifetime_ms / 1000
        self.principal, self._exchange, self._in_since = principal, None, environment.now()
        self._used = self._tried
        if self._used.are_any:
            logins.note(self)
        self._count(None, user=step.user)
        done(LoggedIn(principal, step.data, lifetime_ms, self._mechanism))

    def _why_not(self, principal: str) -> Failed | None:
        if principal == ANONYMOUS:
            return Failed(Reason.OTHER_USER, "the name of those who have not logged in")
        if principal in self._logins.config.super_users:
            return Failed(Reason.SUPER_USER, _BY_CERTIFICATE)
        if self._in_since is not None and principal != self.principal:
            return Failed(Reason.OTHER_USER, f"the connection is that of {self.principal}")
        return None

    def _refuse(self, failed: Failed, done: Callable[[Answer], None]) -> None:
        """Answer later, counted from when the message came: how long it took says nothing then."""
        logins, environment = self._logins, self._logins.environment
        user = self._user
        if failed.reason in _OF_USER and USER + user in logins.config.super_users:
            failed = Failed(Reason.SUPER_USER, _BY_CERTIFICATE)
        self._count(failed.reason, failed.text, user)
        delay = logins.delays.failed(self._origin.address, user, self._since)
        self._exchange, self._is_over, self._is_waiting = None, True, True
        if self._timer is not None:
            self._timer.cancel()
        left = max(0.0, self._since + delay - environment.now())
        self._timer = environment.later(left, lambda: done(Refused()))

    def _busy(self, done: Callable[[Answer], None]) -> None:
        self._logins.counters.busy += 1
        self._exchange, self._is_over = None, True
        done(Refused(BUSY_TEXT, is_busy=True))

    @property
    def _user(self) -> str:
        return "" if self._exchange is None else self._exchange.user[:NAME_LENGTH_MAX]

    def _count(self, reason: Reason | None, text: str = "", user: str = "") -> None:
        counters = self._logins.counters
        if reason is None:
            counters.accepted += 1
        else:
            counters.refused[reason] = counters.refused.get(reason, 0) + 1
        event = LoginEvent(
            self._origin.remote or self._origin.address, self._mechanism, user, reason, text
        )
        self._logins.environment.told(event)

    def end(self) -> None:
        """The connection has ended: nothing is answered any more."""
        self._logins.forget(self)
        self._is_over, self._exchange = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_computed:
            self._is_computed = False
            self._logins.counters.computed -= 1
            self._logins.environment.threads.forget(self)
