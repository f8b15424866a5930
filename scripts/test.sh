#!/bin/sh
# Runs all tests (scripts/suite.py). With arguments: pytest with just these.
set -u
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
    exec .venv/bin/pytest "$@"
fi
exec .venv/bin/python scripts/suite.py
