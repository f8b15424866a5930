"""The same `Security` for Kafka's clients: settings of librdkafka and kafka-python, and sockets."""

import socket
import ssl
import time
from typing import Any, Final

from quorumlog.client.outgoing_tls import check_server, outgoing_tls
from quorumlog.client.security import SYSTEM_CA, Security
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.transport.tls_words import TlsError, in_words

TOKEN_S: Final = 3_600.0
"""For so long librdkafka takes a token for valid before it asks for it again; the brokers say when
it has expired."""


def _check_names(security: Security) -> None:
    """Raise `ConfigError` if a library of Kafka could be deceived about whom it speaks to."""
    if security.verify_name == "cluster" and security.ca == SYSTEM_CA:
        raise ConfigError(
            "verifyName=cluster needs the cluster's own ca for Kafka's clients: they cannot check "
            "which cluster a certificate names, and the machine trusts many authorities"
        )


def librdkafka_settings(security: Security | None) -> dict[str, Any]:
    """Return what librdkafka is told, its secrets included; nothing for plain.

    Raises `ConfigError`.
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
        found["oauth_cb"] = lambda _config: (token.reveal(), time.time() + TOKEN_S)
    return found


def kafka_python_settings(security: Security | None) -> dict[str, Any]:
    """Return what kafka-python is told, its secrets included; nothing for plain."""
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
        found["sasl_oauth_token_provider"] = _TokenProvider(security)
    return found


class _TokenProvider:
    """What kafka-python asks for a token; it has `token` and `extensions`."""

    def __init__(self, security: Security) -> None:
        self._security = security

    def token(self) -> str:
        return self._security.token.reveal() if self._security.token is not None else ""

    def extensions(self) -> dict[str, str]:
        return {}


def secured(plain: socket.socket, host: str, security: Security | None) -> socket.socket:
    """Return a connected socket that speaks TLS; the same one without `security`.

    If that fails, it is closed. Raises `TlsError` (an `OSError`) saying why, `ConfigError`.
    """
    if security is None:
        return plain
    try:
        if security.mechanism:
            raise ConfigError(
                f"a login by {security.mechanism} is not known to readers of topics; show who you "
                "are by certificate and key instead"
            )
        tls = outgoing_tls(security).to(host)
        made = tls.context.wrap_socket(plain, server_hostname=tls.server_hostname)
        plain = made
        check_server(security.cluster_id, made.getpeercert() or {})
    except ssl.SSLError as error:
        plain.close()
        raise TlsError(in_words(error, security.certificate, time.time())) from None
    except RemoteProtocolError as error:
        plain.close()
        raise TlsError(str(error)) from None
    except BaseException:
        plain.close()
        raise
    return made
