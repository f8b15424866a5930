"""Log lines of a node: one JSON object a line on standard error."""

import json
import logging
import sys
from datetime import UTC, datetime

from quorumlog.model.log_lines import EVENT_FIELDS


class JsonLines(logging.Formatter):
    """Formats a record as one line: time, level, logger, event, and the event's fields.

    The time is UTC with milliseconds, as in `2026-01-31T23:59:59.123Z`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, EVENT_FIELDS, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up_logs(level: str) -> None:
    """Send all log lines of this process to standard error, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
