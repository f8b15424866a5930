"""SCRAM (RFC 5802, RFC 7677): what the server keeps of a password."""

from typing import NamedTuple, Protocol


class Verifier(NamedTuple):
    """What is kept of a password: enough to check it, not to log in with it (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class Verifiers(Protocol):
    """The users who have passwords."""

    def verifier(self, user: str, mechanism: str) -> Verifier | None:
        """Return by what the password of a user is checked; None: there is nothing."""
        ...


class Decoys(Protocol):
    """What users who do not exist have instead of a verifier."""

    def verifier(self, user: str, mechanism: str) -> Verifier:
        """Return the same for the same name each time; no password fits it."""
        ...
