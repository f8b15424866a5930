"""SCRAM verifiers: made where the password is, so that no password reaches a server's log."""

import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

from quorumlog.auth.scram import Verifier
from quorumlog.model.errors import UnexpectedArgumentError

MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanisms that have verifiers, and the hash function of each."""
ITERATIONS: Final = 15_000
"""Of PBKDF2, unless others are asked for."""
ITERATIONS_MIN: Final = 4_096
"""Kafka's least, and that of RFC 7677."""
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
"""Of a salt that is made here."""
SALT_BYTES_MIN: Final = 12
"""With less nobody could log in: the library scramp takes none that is shorter."""
SALT_BYTES_MAX: Final = 256
PASSWORD_MAX: Final = 1_024
"""Characters, as they are given and as they are hashed."""
_LENGTHS: Final = f"a password has 1 to {PASSWORD_MAX} characters"
_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def prepared_password(password: str) -> str:
    """Return a password as SCRAM hashes it (SASLprep, RFC 4013).

    Characters that look alike are one then: spaces, and those that NFKC composes. Raises
    `UnexpectedArgumentError` for a password that no client could send, such as an empty one.
    """
    if len(password) > PASSWORD_MAX:  # looking characters up would take milliseconds
        raise UnexpectedArgumentError(_LENGTHS)
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one
        for one in password
        if not stringprep.in_table_b1(one)
    )
    found = unicodedata.normalize("NFKC", mapped)
    if not 0 < len(found) <= PASSWORD_MAX:
        raise UnexpectedArgumentError(_LENGTHS)
    if any(is_in(one) for one in found for is_in in _PROHIBITED):
        raise UnexpectedArgumentError("a password has no control characters")
    if any(map(stringprep.in_table_d1, found)):  # the rule on right-to-left text, RFC 3454
        ends = stringprep.in_table_d1(found[0]) and stringprep.in_table_d1(found[-1])
        if not ends or any(map(stringprep.in_table_d2, found)):
            raise UnexpectedArgumentError(
                "a password with right-to-left characters begins and ends with one, and has no "
                "left-to-right letters"
            )
    return found


def verifier_of(password: str, mechanism: str, salt: bytes, iterations: int) -> Verifier:
    """Return the verifier of a password; it takes as long as its `iterations` do.

    Raises `UnexpectedArgumentError`.
    """
    check_parameters(mechanism, salt, iterations)
    secret = prepared_password(password).encode()
    salted = hashlib.pbkdf2_hmac(MECHANISMS[mechanism], secret, salt, iterations)
    return verifier_of_salted(salted, mechanism, salt, iterations)


def verifier_of_salted(salted: bytes, mechanism: str, salt: bytes, iterations: int) -> Verifier:
    """Return the verifier of a salted password, as Kafka's clients send it (KIP-554).

    Raises `UnexpectedArgumentError`.
    """
    check_parameters(mechanism, salt, iterations)
    name = MECHANISMS[mechanism]
    size = hashlib.new(name).digest_size
    if len(salted) != size:
        text = f"a salted password of {mechanism} has {size} bytes, not {len(salted)}"
        raise UnexpectedArgumentError(text)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", name)
    return Verifier(salt, stored_key, server_key, iterations)


def check_verifier(verifier: Verifier, mechanism: str) -> None:
    """Raise `UnexpectedArgumentError` unless it can be one of this mechanism."""
    check_parameters(mechanism, verifier.salt, verifier.iterations)
    size = hashlib.new(MECHANISMS[mechanism]).digest_size
    if not len(verifier.stored_key) == len(verifier.server_key) == size:
        text = f"the keys of a verifier of {mechanism} have {size} bytes"
        raise UnexpectedArgumentError(text)


def check_parameters(mechanism: str, salt: bytes, iterations: int) -> None:
    """Raise `UnexpectedArgumentError` unless verifiers can be made with these."""
    if mechanism not in MECHANISMS:
        known = " and ".join(MECHANISMS)
        text = f"there is no mechanism {mechanism!a} with a password; there are {known}"
        raise UnexpectedArgumentError(text)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UnexpectedArgumentError(
            f"a verifier has {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {iterations}"
        )
    if not SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        raise UnexpectedArgumentError(
            f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not {len(salt)}"
        )
