"""SCRAM (RFC 5802, RFC 7677): what the server keeps of a password, and how a login goes."""

from typing import NamedTuple


class Verifier(NamedTuple):
    """What is kept of a password: enough to check it, not to log in with it (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
