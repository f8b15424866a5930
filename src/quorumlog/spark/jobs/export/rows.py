"""The form of entries in files that people and other programs read: JSON lines, or CSV."""

import csv
import io
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

Format: TypeAlias = Literal["json", "csv"]
Bodies: TypeAlias = Literal["text", "base64", "json"]
COLUMNS: Final = ("index", "term", "channel", "body")
TEXT, BASE64, JSON = "utf-8", "base64", "json"
SUFFIX: Final[dict[Format, str]] = {"json": "jsonl", "csv": "csv"}


class ExportedRow(msgspec.Struct, frozen=True):
    """One entry. `body_encoding` says what `body` is: utf-8, base64 or json (a JSON value)."""

    index: int
    term: int
    channel: int
    body: str | msgspec.Raw
    body_encoding: str


_encoder = msgspec.json.Encoder()


def encoded_body(body: bytes, bodies: Bodies) -> tuple[str | msgspec.Raw, str]:
    """Return how a body is written, and what that is called.

    "text": as it is if it is valid UTF-8, else base64. "json": as the JSON value that it is, else
    as with "text". "base64": always that.
    """
    if bodies == "json" and _is_json(body):
        # outside strings, where JSON allows none, a line break means no more than a space
        return msgspec.Raw(body.replace(b"\n", b" ").replace(b"\r", b" ")), JSON
    if bodies != "base64":
        try:
            return body.decode("utf-8"), TEXT
        except UnicodeDecodeError:
            pass
    return b64encode(body).decode("ascii"), BASE64


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return True


def rows_of(batch: pa.RecordBatch, bodies: Bodies) -> list[ExportedRow]:
    """Return the rows of a batch that has `COLUMNS`."""
    columns = (batch.column(name).to_pylist() for name in COLUMNS)
    return [
        ExportedRow(index, term, channel, *encoded_body(body, bodies))
        for index, term, channel, body in zip(*columns, strict=True)
    ]


def json_lines(rows: list[ExportedRow]) -> bytes:
    """Return one JSON object a line."""
    return _encoder.encode_lines(rows)


def csv_lines(rows: list[ExportedRow]) -> bytes:
    """Return records of CSV; text is always quoted, and may contain line breaks."""
    return _csv([row.index, row.term, row.channel, row.body, row.body_encoding] for row in rows)


def csv_header() -> bytes:
    """Return the first record of a CSV file."""
    return _csv([ExportedRow.__struct_fields__])


def _csv(records: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerows(records)
    return text.getvalue().encode("utf-8")


WRITERS: Final[dict[Format, Callable[[list[ExportedRow]], bytes]]] = {
    "json": json_lines,
    "csv": csv_lines,
}
