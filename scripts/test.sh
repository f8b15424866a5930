#!/bin/sh
# Runs all tests, in two halves side by side: those that start processes and mostly wait for them,
# and those that compute, which give way to the others. With arguments: pytest with just these.
set -u
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
    exec .venv/bin/pytest "$@"
fi

started="tests/integration tests/compat tests/spark"
computing=$(mktemp)
nice -n 19 .venv/bin/pytest -p no:cacheprovider \
    $(printf ' --ignore=%s' $started) >"$computing" 2>&1 &
background=$!
trap 'kill "$background" 2>/dev/null; rm -f "$computing"; exit 130' INT TERM

.venv/bin/pytest $started
status=$?
echo "tests/integration, compat and spark are done; waiting for those that compute"
wait "$background" || status=$?
cat "$computing"
rm -f "$computing"
exit "$status"
