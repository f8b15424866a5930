"""Passwords that were right lately, so that PBKDF2 is not computed for each connection."""

import hmac
from typing import Final

from quorumlog.auth.scram import Verifier

REMEMBERED_S: Final = 300.0
"""How long a password that was right is known to be, in seconds."""
REMEMBERED_MAX: Final = 10_000
"""Passwords that are known to be right; beyond, the oldest is forgotten."""


class Remembered:
    """Passwords that were right lately, as HMACs under a key that only this process has.

    A user whose password was changed has another verifier, and so is not known here any more.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._until: dict[bytes, float] = {}

    def mark_of(self, user: str, password: str, verifier: Verifier) -> bytes:
        """Return by what a password is known here."""
        parts = (user.encode(), password.encode(), verifier.salt, verifier.stored_key)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")

    def has(self, mark: bytes, now: float) -> bool:
        """Whether a password was found right within `REMEMBERED_S`."""
        return self._until.get(mark, now) > now

    def add(self, mark: bytes, now: float) -> None:
        """Note that a password was found right."""
        self._until.pop(mark, None)
        self._until[mark] = now + REMEMBERED_S
        if len(self._until) > REMEMBERED_MAX:
            del self._until[next(iter(self._until))]
