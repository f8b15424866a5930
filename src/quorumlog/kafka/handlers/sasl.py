"""SaslHandshake and SaslAuthenticate: a client says who it is (KIP-43, KIP-152, KIP-368)."""

from typing import Any

from quorumlog.auth.login import LoggedIn, Refused
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode

_NO_LOGIN = "this node takes no login: [security] of its configuration says none"


async def handle_sasl_handshake(context: RequestContext, request: Any) -> Answer:
    """Answer SaslHandshake: whether the mechanism is offered, and which are."""
    login = context.login
    if login is None:  # as Kafka on a listener without SASL
        context.note_error(ErrorCode.ILLEGAL_SASL_STATE, _NO_LOGIN)
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    if login.begin(request.mechanism, context.header.version):
        return {"error_code": ErrorCode.NONE, "mechanisms": login.offered}
    text = f"mechanism {request.mechanism} is not offered here"
    context.note_error(ErrorCode.UNSUPPORTED_SASL_MECHANISM, text)
    context.last_answer = text
    return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": login.offered}


async def handle_sasl_authenticate(context: RequestContext, request: Any) -> Answer:
    """Answer SaslAuthenticate: one message of the mechanism.

    A refusal is answered in words, then the connection is closed. So it is if the node is too busy,
    but without an answer: clients take one for a refusal, and would not try again.
    """
    login = context.login
    if login is None:
        context.note_error(ErrorCode.ILLEGAL_SASL_STATE, _NO_LOGIN)
        code = ErrorCode.ILLEGAL_SASL_STATE
        return {"error_code": code, "error_message": _NO_LOGIN, "auth_bytes": b""}
    answer = await login.step(request.auth_bytes)
    if isinstance(answer, Refused):
        context.last_answer = answer.text
        if answer.is_busy:
            return []
        context.error = code = ErrorCode.SASL_AUTHENTICATION_FAILED
        return {"error_code": code, "error_message": answer.text, "auth_bytes": b""}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "auth_bytes": answer.data,
        "session_lifetime_ms": answer.lifetime_ms if isinstance(answer, LoggedIn) else 0,
    }
