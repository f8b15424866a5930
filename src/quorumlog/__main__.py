"""`python -m quorumlog` is the `quorumlog` command."""

import sys

from quorumlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
