"""Structured log lines: an event name and fields, formatted where logging is set up."""

import logging

EVENT_FIELDS = "quorumlog_fields"


def say(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log one event; `fields` become keys of the line."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={EVENT_FIELDS: fields})
