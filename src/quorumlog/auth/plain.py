"""PLAIN (RFC 4616): the password itself, which only a connection with TLS may carry."""

import hmac
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.auth.principals import user_name
from quorumlog.auth.remembered import Remembered
from quorumlog.auth.sasl import Compute, Done, Failed, Reason, Step
from quorumlog.auth.scram import Decoys, Verifier, Verifiers
from quorumlog.auth.verifiers import MECHANISMS, prepared_password, verifier_of
from quorumlog.model.errors import UnexpectedArgumentError

PLAIN_BYTES_MAX: Final = 2 * 1024
"""Bytes of a client's message; preparing a longer password would take milliseconds."""


class PlainExchange:
    """A login by PLAIN: one message of the client. `now`: seconds of a clock that never goes back.

    The server computes PBKDF2, which is what SCRAM leaves to clients. It is computed for a user who
    does not exist, too.
    """

    def __init__(
        self,
        verifiers: Verifiers,
        decoys: Decoys,
        remembered: Remembered,
        now: Callable[[], float],
    ) -> None:
        self._verifiers = verifiers
        self._decoys = decoys
        self._remembered = remembered
        self._now = now
        self.user = ""

    def step(self, data: bytes) -> Step:
        """See `sasl.Exchange`."""
        if len(data) > PLAIN_BYTES_MAX:
            return Failed(Reason.MALFORMED, f"a message of {len(data)} bytes")
        try:
            authorized, name, password = data.decode().split("\0")
        except ValueError:  # no UTF-8, or not three parts
            return Failed(Reason.MALFORMED, "a message that is not two NUL between three texts")
        try:
            user, password = user_name(name), prepared_password(password)
        except UnexpectedArgumentError as error:
            return Failed(Reason.MALFORMED, str(error))
        self.user = user
        if authorized not in ("", name):
            return Failed(Reason.OTHER_USER, "it would act for another user")
        return self._check(user, password)

    def _check(self, user: str, password: str) -> Step:
        mechanism, found = self._find(user)
        decoy = self._decoys.verifier(user, mechanism)
        verifier = decoy if found is None else found
        mark = self._remembered.mark_of(user, password, verifier)
        if self._remembered.has(mark, self._now()):
            return Done(user)

        def then(is_right: bool) -> Done | Failed:
            if found is None:
                return Failed(Reason.UNKNOWN_USER)
            if not is_right:
                return Failed(Reason.PASSWORD)
            self._remembered.add(mark, self._now())
            return Done(user)

        return Compute(partial(fits, password, mechanism, verifier), then)

    def _find(self, user: str) -> tuple[str, Verifier | None]:
        """Return the verifier of a user, and the mechanism that it is of."""
        found = [(one, self._verifiers.verifier(user, one)) for one in MECHANISMS]
        return next((pair for pair in found if pair[1] is not None), found[0])


def fits(password: str, mechanism: str, verifier: Verifier) -> bool:
    """Whether a prepared password is the one of a verifier; it takes as long as its iterations."""
    given = verifier_of(password, mechanism, verifier.salt, verifier.iterations)
    return hmac.compare_digest(given.stored_key, verifier.stored_key)
