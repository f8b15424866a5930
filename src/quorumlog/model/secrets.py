"""A password or token in memory."""

import hmac
from typing import Any, Final, NoReturn

from quorumlog.model.errors import ConfigError

SECRET_BYTES_MAX: Final = 64 * 1024
"""Bytes of a password or token: far more than any has."""
SHOWN: Final = "***"
"""What is shown in place of a secret."""


class Secret:
    """A password or token. It is shown as `***`, and neither pickled, copied nor encoded.

    So it does not get into logs, tracebacks, answers or the plans of Spark unless somebody asks for
    it by `reveal`. Two are compared in a time that does not say where they differ.
    """

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        """Raises `ConfigError`, without the value, if it is empty, too long or not of UTF-8."""
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            # the error that is being handled has the value in it
            encoded = b""
        if not encoded:
            raise ConfigError("a secret is text that UTF-8 can encode, and not empty")
        if len(encoded) > SECRET_BYTES_MAX:
            raise ConfigError(f"a secret has at most {SECRET_BYTES_MAX} bytes")
        self.__value = encoded

    def reveal(self) -> str:
        """Return the secret itself, to be sent or compared and not to be kept."""
        return self.__value.decode()

    def __repr__(self) -> str:
        return SHOWN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__value, other.__value)

    def __hash__(self) -> int:
        return hash(self.__value)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(
            "a secret is neither pickled nor copied; send the name of the file that has it, and "
            "read that where it is needed"
        )
