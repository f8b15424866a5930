"""The command line, called in the process of the tests: an interpreter of its own takes 0.6 s.

Tests of what only a process shows (signals, pipes, streams that are closed) start one instead.
"""

import io
import json
import os
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from quorumlog.cli.main import main


def command(*arguments, stdin=b""):
    """Run the command as a user would; returns (exit status, stdout, stderr)."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        _standard_input(stdin),
        io.TextIOWrapper(out, "utf-8", write_through=True) as out_text,
        io.TextIOWrapper(err, "utf-8", write_through=True) as err_text,
        redirect_stdout(out_text),
        redirect_stderr(err_text),
    ):
        status = main([os.fsdecode(_word(argument)) for argument in arguments])
        return status, out.getvalue().decode(), err.getvalue().decode()


def objects(*arguments, stdin=b""):
    """Return what a command prints with `--json`; it succeeds and complains of nothing."""
    status, out, err = command(*arguments, "--json", stdin=stdin)
    assert (status, err) == (0, ""), (arguments, err)
    return [json.loads(line) for line in out.splitlines()]


def _word(argument):
    return argument if isinstance(argument, bytes) else str(argument)


@contextmanager
def _standard_input(content):
    """A file, since the command reads its descriptor."""
    before = sys.stdin
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        sys.stdin = file
        try:
            yield
        finally:
            sys.stdin = before
