"""The same `Security` for Kafka's clients: settings of librdkafka and kafka-python, and sockets."""

import base64
import binascii
import socket
import ssl
import time
from typing import Any, Final

import msgspec

from quorumlog.client.kafka_login import log_in
from quorumlog.client.login_steps import LOGIN_TIMEOUT_S, Text
from quorumlog.client.outgoing_tls import check_server, outgoing_tls
from quorumlog.client.security import SYSTEM_CA, Security
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError, NetworkError, RemoteProtocolError
from quorumlog.transport.tls_contexts import close_socket
from quorumlog.transport.tls_words import CUT_OFF, TlsError, in_words

TOKEN_S: Final = 3_600.0
"""For so long librdkafka takes a token for valid that does not say how long it is, before it asks
for it again; the brokers say when it has expired."""
CHECK_S: Final = 5.0
"""A broker that does not answer for so long is not the one whose cluster is looked at."""
_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
"""Errors of TLS for which nobody gave a reason: the other side may have been killed."""


def _check_names(security: Security) -> None:
    """Raise `ConfigError` if a library of Kafka could be deceived about whom it speaks to."""
    if security.verify_name == "cluster" and security.ca == SYSTEM_CA:
        raise ConfigError(
            "verifyName=cluster needs the cluster's own ca for Kafka's clients: they cannot check "
            "which cluster a certificate names, and the machine trusts many authorities"
        )


def librdkafka_settings(security: Security | None) -> dict[str, Any]:
    """Return what librdkafka is told, its secrets included; nothing for plain.

    It does not know `cluster_id`: see `check_cluster`. Raises `ConfigError`.
    """
    if security is None:
        return {}
    _check_names(security)
    outgoing_tls(security)  # its errors name the file and the reason
    found: dict[str, Any] = {
        "security.protocol": "SASL_SSL" if security.mechanism else "SSL",
        "ssl.endpoint.identification.algorithm": (
            "https" if security.verify_name == "host" else "none"
        ),
    }
    if security.ca != SYSTEM_CA:
        found["ssl.ca.location"] = security.ca
    if security.certificate:
        found["ssl.certificate.location"] = security.certificate
        found["ssl.key.location"] = security.key
    if security.mechanism:
        found["sasl.mechanism"] = security.mechanism
    if security.password is not None:
        found["sasl.username"] = security.user
        found["sasl.password"] = security.password.reveal()
    if security.token is not None:
        token = security.token

        def newest(_config: str) -> tuple[str, float]:
            text = token.reveal()
            return text, _expiry_of(text) or time.time() + TOKEN_S

        found["oauth_cb"] = newest
    return found


class _Claims(msgspec.Struct):
    """What is read of a token here; `exp`: Unix time, in seconds, until which it holds."""

    exp: float = 0


_CLAIMS: Final = msgspec.json.Decoder(_Claims)


def _expiry_of(token: str) -> float:
    """Return until when a token says that it holds; 0 if it does not say it (it is no JWT)."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return _CLAIMS.decode(raw).exp
    except (binascii.Error, ValueError):  # msgspec's errors are ValueErrors, too
        return 0


def kafka_python_settings(security: Security | None) -> dict[str, Any]:
    """Return what kafka-python is told, its secrets included; nothing for plain.

    It does not know `cluster_id`: see `check_cluster`. Raises `ConfigError`.
    """
    if security is None:
        return {}
    _check_names(security)
    found: dict[str, Any] = {
        "security_protocol": "SASL_SSL" if security.mechanism else "SSL",
        "ssl_context": outgoing_tls(security).context,
        "ssl_check_hostname": security.verify_name == "host",
    }
    if security.mechanism:
        found["sasl_mechanism"] = security.mechanism
    if security.password is not None:
        found["sasl_plain_username"] = security.user
        found["sasl_plain_password"] = security.password.reveal()
    if security.token is not None:
        found["sasl_oauth_token_provider"] = _token_provider(security.token)
    return found


def _token_provider(token: Text) -> Any:
    """Return what kafka-python asks for a token at each login: it takes its own kind only."""
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415  (loaded by need)

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token.reveal()

    return TokenProvider()


def secured(plain: socket.socket, host: str, security: Security | None) -> socket.socket:
    """Return a connected socket that speaks TLS, logged in; the same one without `security`.

    If that fails, it is closed. Raises `TlsError` (an `OSError`) saying why, if trying again would
    not help; other `OSError`s if the connection breaks; `LoginError` if the login is refused;
    `ConfigError`.
    """
    if security is None:
        return plain
    made = plain
    try:
        tls = outgoing_tls(security).to(host)
        made = tls.context.wrap_socket(plain, server_hostname=tls.server_hostname)
        check_server(security.cluster_id, made.getpeercert() or {})
        if security.mechanism:
            timeout_s = made.gettimeout()
            made.settimeout(LOGIN_TIMEOUT_S)
            log_in(made, security)
            made.settimeout(timeout_s)
    except OSError as error:
        made.close()
        raise in_words_of_tls(error, security) from None
    except RemoteProtocolError as error:
        close_socket(made)
        raise TlsError(str(error)) from None
    except BaseException:
        close_socket(made)
        raise
    return made


def end(connection: socket.socket) -> None:
    """Close what `secured` has returned: with a word, so that it is not taken for cut off.

    Spark's modules call this, as they import nothing of `transport`.
    """
    close_socket(connection)


def check_cluster(brokers: str, security: Security | None, check_s: float = CHECK_S) -> None:
    """See that brokers are of the cluster of `security`, for libraries that do not check it.

    The first broker that answers is asked; one that says nothing for `check_s` is not. If none
    does, nothing is raised: the library will say so. Raises `NetworkError` if a certificate does
    not fit; `ConfigError`.
    """
    if security is None or not security.cluster_id:
        return
    without_login = msgspec.structs.replace(
        security, mechanism="", user="", password=None, token=None
    )
    for broker in brokers.split(","):
        host, port = parse_address(broker)
        try:
            plain = socket.create_connection((host, port), check_s)
            close_socket(secured(plain, host, without_login))
        except TlsError as error:
            raise NetworkError(f"{broker}: {error}") from None
        except OSError:
            continue
        return


def is_final(error: Exception) -> bool:
    """Whether an error of `secured` or `in_words_of_tls` would be the same the next time."""
    return isinstance(error, TlsError)


def in_words_of_tls(error: OSError, security: Security | None) -> OSError:
    """Return an error of a connection that `secured` has made, in words.

    It is final if the other side says that it does not accept what it was shown, which TLS 1.3 has
    it say after the handshake.
    """
    if security is None or not isinstance(error, ssl.SSLError):
        return error
    if isinstance(error, _CUT_OFF):
        return ConnectionResetError(CUT_OFF)
    return TlsError(in_words(error, security.certificate, time.time()))
