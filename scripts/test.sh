#!/bin/sh
# Runs all tests, in three parts side by side: those that start processes and mostly wait for them,
# and, giving way to these, the simulated ones and all others. With arguments: pytest with just these.
set -u
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
    exec .venv/bin/pytest "$@"
fi

started="tests/integration tests/compat tests/spark"
simulated="tests/mutants tests/properties"
said=$(mktemp -d)
nice -n 19 .venv/bin/pytest -p no:cacheprovider $simulated >"$said/simulated" 2>&1 &
simulating=$!
nice -n 19 .venv/bin/pytest -p no:cacheprovider \
    $(printf ' --ignore=%s' $started $simulated) >"$said/others" 2>&1 &
computing=$!
trap 'kill "$simulating" "$computing" 2>/dev/null; rm -rf "$said"; exit 130' INT TERM

.venv/bin/pytest $started
status=$?
echo "$started: done; waiting for the others"
wait "$computing" || status=$?
cat "$said/others"
wait "$simulating" || status=$?
cat "$said/simulated"
rm -rf "$said"
exit "$status"
