"""Log lines of a node: one JSON object a line on standard error."""

import atexit
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

from quorumlog.log_events import EVENT_FIELDS, describe_error

LINES_BYTES_MAX = 4 * 1024 * 1024
"""Log lines that wait to be written."""
LAST_WORDS_S = 1.0
"""How long a process that ends waits for its last lines to be written."""


class JsonLines(logging.Formatter):
    """Formats a record as one line: time, level, logger, event, and the event's fields.

    The time is UTC with milliseconds, as in `2026-01-31T23:59:59.123Z`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {**_head(record), "event": record.getMessage()}
        line.update(getattr(record, EVENT_FIELDS, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, allow_nan=False)


def _head(record: logging.LogRecord) -> dict[str, object]:
    return {"time": _utc(record.created), "level": record.levelname, "logger": record.name}


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineWriter:
    """Writes lines to a descriptor from its own thread: a pipe that nobody reads blocks nothing.

    Lines beyond `LINES_BYTES_MAX` are dropped and counted; the line after those that were kept
    says how many.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._unreported_drops = 0
        self._is_writing = self._is_told = False
        self.dropped = 0
        threading.Thread(target=self._run, name="quorumlog-lines", daemon=True).start()

    def put(self, text: str) -> None:
        """Have a line written; never waits."""
        line = (text + "\n").encode(errors="replace")
        with self._changed:
            if self._size + len(line) > LINES_BYTES_MAX:
                self.dropped += 1
                self._unreported_drops += 1
                self._tell()
            else:
                self._keep(line)

    def put_last(self, text: str) -> None:
        """Have a line written after all others, with or without room for it; never waits."""
        with self._changed:
            if self._unreported_drops:
                self._keep(_about_dropped(self._unreported_drops))
                self._unreported_drops = 0
            self._keep((text + "\n").encode(errors="replace"))

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        self._tell()

    def _tell(self) -> None:
        if not self._is_told:  # once for all lines that it finds
            self._is_told = True
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all is written, but not for longer; return whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._lines or self._unreported_drops or self._is_writing),
                timeout=seconds,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._unreported_drops)
                self._is_told = False
                piece = b"".join(self._lines)
                self._lines.clear()
                self._is_writing = True
                if self._unreported_drops:
                    piece += _about_dropped(self._unreported_drops)
                    self._unreported_drops = 0
            try:
                while piece:
                    piece = piece[os.write(self._descriptor, piece) :]
            except OSError:  # nobody will read it
                with self._changed:
                    self.dropped += piece.count(b"\n")
            with self._changed:
                self._size = sum(len(line) for line in self._lines)


def _about_dropped(count: int) -> bytes:
    head = {"time": _utc(time.time()), "level": "WARNING", "logger": __name__}
    return (json.dumps({**head, "event": "log lines dropped", "count": count}) + "\n").encode()


class LineHandler(logging.Handler):
    """Gives formatted records to a `LineWriter`: those about a group from that group's level on."""

    def __init__(self, writer: LineWriter, level: str = "NOTSET") -> None:
        super().__init__()
        self.writer = writer
        self._level = logging.getLevelNamesMapping()[level]
        self._of_groups: dict[str, int] = {}

    def set_levels(self, levels: Mapping[str, str]) -> None:
        """Set the levels of groups; those that have none, or an empty one, have the node's."""
        numbers = logging.getLevelNamesMapping()
        self._of_groups = {group: numbers[level] for group, level in levels.items() if level}
        logging.getLogger().setLevel(min([self._level, *self._of_groups.values()]))

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filterer`."""
        if self._of_groups:
            group = str(getattr(record, EVENT_FIELDS, {}).get("group", ""))
            if record.levelno < self._of_groups.get(group, self._level):
                return False
        return bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            line = self.format(record)
        except Exception as error:  # of other libraries and state machines; it must end nothing
            where = f"{record.pathname}:{record.lineno}"
            text = "a log line cannot be written as JSON"
            said = {"event": text, "where": where, "reason": describe_error(error)}
            line = json.dumps({**_head(record), **said})
        self.writer.put(line)


def _handler() -> LineHandler | None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            return handler
    return None


def _writer() -> LineWriter | None:
    handler = _handler()
    return None if handler is None else handler.writer


def set_group_levels(levels: Mapping[str, str]) -> None:
    """Set the level of the log lines about each group; empty: that of the process."""
    handler = _handler()
    if handler is not None:
        handler.set_levels(levels)


def dropped_lines() -> int:
    """Return how many log lines of this process were dropped."""
    writer = _writer()
    return 0 if writer is None else writer.dropped


def last_words(text: str) -> None:
    """Write a line to standard error after all log lines, unless nobody reads it."""
    writer = _writer()
    if writer is None:
        print(text, file=sys.stderr, flush=True)
    else:
        writer.put_last(text)
        writer.flush(LAST_WORDS_S)


def set_up_logs(level: str) -> None:
    """Send all log lines of this process to standard error, from `level` on."""
    writer = LineWriter(2 if sys.stderr is None else sys.stderr.fileno())
    handler = LineHandler(writer, level)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # it writes a line for each attempt; `otlp` writes one when something has changed
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    atexit.register(handler.writer.flush, LAST_WORDS_S)
