"""Verifiers of users who do not exist, so that a login does not show who does."""

import hmac

from quorumlog.auth.scram import Verifier
from quorumlog.auth.verifiers import ITERATIONS, MECHANISMS, SALT_BYTES


class HmacDecoys:
    """See `scram.Decoys`. `secret` is known to nobody else: a salt could be told from others."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def verifier(self, user: str, mechanism: str) -> Verifier:
        """Return a verifier with the salt and the iterations of users who were just made.

        No password leads to its keys, as none leads to a chosen hash.
        """
        made = MECHANISMS[mechanism]
        of_user = hmac.digest(self._secret, f"{mechanism} {user}".encode(), made)
        salt = hmac.digest(of_user, b"salt", made)[:SALT_BYTES]
        stored_key = hmac.digest(of_user, b"stored key", made)
        server_key = hmac.digest(of_user, b"server key", made)
        return Verifier(salt, stored_key, server_key, ITERATIONS)
