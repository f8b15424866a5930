"""Our own requests: of Spark's tasks, and of its driver, which write batches to topics at once."""

from typing import Any, Final

from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.sinks import Attempt, EndAnswer, JoinAnswer, SinkBatch
from quorumlog.machine.cluster.commands import ITEMS_MAX, UNKNOWN_ROWS
from quorumlog.machine.cluster.sinks import sink_of
from quorumlog.model.bounds import NUMBER_MAX

SINK_NAME_MAX: Final = 900
"""Characters of the name of a sink: the transactional ids of its attempts have 1,024."""
RUN_ID_MAX: Final = 256
ATTEMPT_NAME_MAX: Final = 64
_EPOCHS: Final = range(1 << 15)
_PASSING: Final = {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
"""What is answered in quiet times, too: no line in the log."""
_NOT_HERE: Final = "another broker coordinates transactions (FindCoordinator)"


def _fault(context: RequestContext, asked: SinkBatch) -> tuple[ErrorCode, str]:
    """Return why a request about a sink cannot be answered here; NONE: it can."""
    if not 0 < len(asked.sink) <= SINK_NAME_MAX:
        text = f"the name of a sink has 1 to {SINK_NAME_MAX} characters"
    elif not 0 < len(asked.run_id) <= RUN_ID_MAX:
        text = f"the id of a run has 1 to {RUN_ID_MAX} characters"
    elif not 0 <= asked.batch_id <= NUMBER_MAX:
        text = f"the number of a batch is 0 to {NUMBER_MAX}"
    elif not context.services.transactions.is_current():
        return ErrorCode.NOT_COORDINATOR, _NOT_HERE
    else:
        return ErrorCode.NONE, ""
    return ErrorCode.INVALID_REQUEST, text


def _note(context: RequestContext, answer: JoinAnswer | EndAnswer, sink: str) -> None:
    if answer.error not in _PASSING:
        context.note_error(answer.error, answer.text or answer.error.name, sink=sink)


async def handle_join_sink(context: RequestContext, request: Any) -> Answer:
    """Tell a task whether its batch is still to be written, and who its producer is."""
    asked = SinkBatch(request.sink, request.run_id, request.batch_id)
    name = request.transactional_id
    error, text = _fault(context, asked)
    if error is ErrorCode.NONE and name is not None and sink_of(name) != asked.sink:
        error, text = ErrorCode.INVALID_REQUEST, "the transactional id is of no attempt of the sink"
    found = JoinAnswer(error, text)
    if error is ErrorCode.NONE:
        found = await context.services.sinks.join(asked, name)
    _note(context, found, asked.sink)
    return {
        "error_code": found.error,
        "error_message": found.text or None,
        "last_batch_id": found.last_batch,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "is_ongoing": found.is_ongoing,
    }


async def handle_end_sink_batch(context: RequestContext, request: Any) -> Answer:
    """Commit or abort a batch of a sink: all that its attempts have written, in one decision."""
    asked = SinkBatch(request.sink, request.run_id, request.batch_id)
    error, text = _fault(context, asked)
    attempts = [
        Attempt(one.name, one.producer_id, one.producer_epoch)
        async for one in context.in_turns(request.attempts)
    ]
    if error is ErrorCode.NONE and not _are_well_formed(attempts):
        error = ErrorCode.INVALID_REQUEST
        text = f"a batch has at most {ITEMS_MAX} attempts, each with a name and a producer"
    if error is ErrorCode.NONE and not UNKNOWN_ROWS <= request.rows <= NUMBER_MAX:
        error, text = ErrorCode.INVALID_REQUEST, f"a batch has 0 to {NUMBER_MAX} rows"
    found = EndAnswer(error, text)
    if error is ErrorCode.NONE:
        found = await context.services.sinks.end(
            asked,
            attempts,
            commits=request.committed,
            is_last=request.is_last,
            rows=request.rows,
        )
    _note(context, found, asked.sink)
    return {
        "error_code": found.error,
        "error_message": found.text or None,
        "last_batch_id": found.last_batch,
        "last_rows": found.last_rows,
    }


def _are_well_formed(attempts: list[Attempt]) -> bool:
    return len(attempts) <= ITEMS_MAX and all(
        0 < len(one.name) <= ATTEMPT_NAME_MAX
        and ":" not in one.name
        and 0 <= one.producer_id <= NUMBER_MAX
        and one.epoch in _EPOCHS
        for one in attempts
    )
