"""The entry point of the command, and its exit statuses.

0: done. 1: the operation failed, one line on standard error says why. 2: the command line is wrong.
3: the index asked for lies beyond the end of the log. 130: interrupted with Ctrl-C.
"""

from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process); return its exit status."""
    try:
        # here, since loading all of it takes a while in which Ctrl-C may come already
        from quorumlog.cli.app import run  # noqa: PLC0415

        return run(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
