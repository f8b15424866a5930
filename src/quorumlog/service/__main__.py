"""`python -m quorumlog.service FILE.toml`: `quorumlog serve` without the rest of the command.

Local clusters start their nodes so: loading the command's other families takes a third of a start.
"""

import sys

from quorumlog.log_events import reason_of
from quorumlog.model.config import load_config
from quorumlog.model.errors import QuorumlogError
from quorumlog.service.main import EXIT_FAILED, serve


def main() -> int:
    """Run the node whose configuration file is the argument; return its exit status."""
    try:
        config = load_config(sys.argv[1])
    except (QuorumlogError, OSError) as error:
        said = reason_of(error) if isinstance(error, OSError) else error
        print(f"quorumlog: {said}", file=sys.stderr)
        return EXIT_FAILED
    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
