"""ApiVersions: which requests are spoken, in which versions."""

from typing import Any

from quorumlog.kafka.codec import api_versions
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode


async def handle_api_versions(context: RequestContext, request: Any) -> Answer:
    """Answer ApiVersions."""
    return {"error_code": ErrorCode.NONE, "api_keys": api_versions()}
