"""ApiVersions: which requests are spoken, in which versions."""

from functools import cache
from typing import Any

from quorumlog.kafka.codec import api_versions, encode_response
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey, RequestHeader

_ID_BEGIN, _ID_END = 4, 8
"""Where the correlation id is in the frame of an answer."""


async def handle_api_versions(context: RequestContext, request: Any) -> Answer:
    """Answer ApiVersions."""
    frame = _frame(context.header.version)
    correlation_id = context.header.correlation_id.to_bytes(4, "big", signed=True)
    return frame[:_ID_BEGIN] + correlation_id + frame[_ID_END:]


@cache
def _frame(version: int) -> bytes:
    """Return the answer in one version, which is the same for everybody."""
    header = RequestHeader(ApiKey.API_VERSIONS, version, 0)
    return encode_response(header, {"error_code": ErrorCode.NONE, "api_keys": api_versions()})
