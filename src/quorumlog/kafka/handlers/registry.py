"""Which handler each request has, but for Produce and Fetch, whose answers may overlap."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.handlers.api_versions import handle_api_versions
from quorumlog.kafka.handlers.init_producer_id import handle_init_producer_id
from quorumlog.kafka.requests import ApiKey

Handler: TypeAlias = Callable[[RequestContext, Any], Awaitable[Answer]]
"""Answers a request as `codec.decode_request` returns it. A `RequestError` that it raises becomes
the error code of the answer."""

HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.API_VERSIONS: handle_api_versions,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
}
