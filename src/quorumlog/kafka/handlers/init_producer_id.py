"""InitProducerId: an id for an idempotent producer."""

from typing import Any, Final

from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode

_NO_TRANSACTIONS: Final = (
    "transactions are not offered: producers with a transactional id are not served"
)


async def handle_init_producer_id(context: RequestContext, request: Any) -> Answer:
    """Answer InitProducerId. A producer that has an id and wants a higher epoch gets another id.

    Raises `RequestError` while the cluster group cannot give ids.
    """
    if request.transactional_id is not None:
        context.note_error(ErrorCode.INVALID_REQUEST, _NO_TRANSACTIONS)
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    producer_id = await context.services.producer_ids.take()
    return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}
