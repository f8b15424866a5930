"""Structured log lines: an event name and fields, which the process's handler formats."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quorumlog.model.wording import sendable

EVENT_FIELDS = "quorumlog_fields"

FieldValue: TypeAlias = (
    "str | int | float | bool | Sequence[FieldValue] | Mapping[str, FieldValue] | None"
)
"""What a line can carry as a JSON value; anything else would have to be written as Python does."""


def log_event(
    logger: logging.Logger,
    level: int,
    event: str,
    *,
    exc_info: BaseException | None = None,
    **fields: FieldValue,
) -> None:
    """Log one event; `fields` become keys of the line, `exc_info` its traceback."""
    if logger.isEnabledFor(level):
        logger.log(level, event, exc_info=exc_info, extra={EVENT_FIELDS: fields})


def reason_of(error: OSError) -> str:
    """Return why a call to the system failed, in the system's words."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer in time"
    text = str(error)
    # of several addresses that were tried, the loop gives the errors as one text
    several = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", text))
    if several:
        reason = ", ".join(os.strerror(int(number)) for number in several)
    else:
        reason = error.strerror or text
    return f"{os.fsdecode(error.filename)}: {reason}" if error.filename else reason


def describe_error(error: BaseException) -> str:
    """Return an error in words: what it is called, and what it says, as `sendable` has it."""
    try:
        text = str(error)
    except Exception:  # an exception of a program that cannot say what it is
        text = ""
    return sendable(f"{type(error).__name__}: {text}" if text else type(error).__name__)
