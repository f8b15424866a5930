"""Verifiers of users who do not exist, so that a login does not show who does."""

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from quorumlog.auth.scram import Verifier
from quorumlog.auth.verifiers import ITERATIONS, MECHANISMS, SALT_BYTES

SECRET_BYTES: Final = 32
"""Of the secret of a cluster's decoys."""


class Parameters(NamedTuple):
    """What a client is told of a verifier, beside the salt itself."""

    iterations: int = ITERATIONS
    salt_bytes: int = SALT_BYTES


NEW_USERS: Final = Parameters()
"""Those of users who were just made, unless somebody asks for others."""


class LikeUsers(NamedTuple):
    """What decoys are like. `secret`: of the cluster; empty: it has none yet. `parameters`: those
    that most users have, by mechanism.
    """

    secret: bytes = b""
    parameters: Mapping[str, Parameters] = {}


def usual_parameters(users: Iterable[Mapping[str, Verifier]]) -> dict[str, Parameters]:
    """Return what most verifiers of each mechanism have; of those as frequent, the largest."""
    found: dict[str, Counter[Parameters]] = {}
    for verifiers in users:
        for mechanism, one in verifiers.items():
            count = found.setdefault(mechanism, Counter())
            count[Parameters(one.iterations, len(one.salt))] += 1
    return {
        mechanism: max(count, key=lambda one: (count[one], one))
        for mechanism, count in found.items()
    }


class HmacDecoys:
    """See `scram.Decoys`. Secrets are known to nobody else: a salt could be told from others.

    `like` returns what decoys are like just now: all nodes of a cluster give a name the same one.
    `secret` counts until the cluster has one, which is when it gets its first user.
    """

    def __init__(self, secret: bytes, like: Callable[[], LikeUsers] = LikeUsers) -> None:
        self._secret = secret
        self._like = like

    def verifier(self, user: str, mechanism: str) -> Verifier:
        """Return a verifier that looks as those of most users do.

        No password leads to its keys, as none leads to a chosen hash.
        """
        like, made = self._like(), MECHANISMS[mechanism]
        of_user = hmac.digest(like.secret or self._secret, f"{mechanism} {user}".encode(), made)
        iterations, salt_bytes = like.parameters.get(mechanism, NEW_USERS)
        salt = hmac.digest(of_user, b"salt", made)
        while len(salt) < salt_bytes:
            salt += hmac.digest(of_user, b"salt" + salt, made)
        stored_key = hmac.digest(of_user, b"stored key", made)
        server_key = hmac.digest(of_user, b"server key", made)
        return Verifier(salt[:salt_bytes], stored_key, server_key, iterations)
