#!/bin/sh
# Runs the tests of Kafka's clients that are programs of their own (tests/clients): kcat, and kafkajs
# with node. Debian's packages are installed where that may be, as root; kafkajs comes from npm into
# build/kafkajs, once, in a pinned version and content. Tests of what is lacking are skipped; in CI
# as root on Debian nothing may be lacking. Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."

version=2.2.4
sha256=c814f61afbb2b42e314a5e17780475e6a15aa47bbd33b126b81123e69b02a6f6
place=build/kafkajs
lacking=""

say() { echo "test-clients: $*"; }
has() { command -v "$1" >/dev/null 2>&1; }
can_install() { [ "$(id -u)" = 0 ] && has apt-get; }

missing=""
has kcat || missing="$missing kcat"
has node || missing="$missing nodejs"
has npm || [ -d "$place/package" ] || missing="$missing npm"
if [ -n "$missing" ] && can_install; then
    say "installing$missing"
    apt-get update -qq
    # one after the other: what can be had is used, whatever becomes of the others
    for package in $missing; do
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
            >/dev/null
    done
fi

is_whole() { echo "$sha256  $place/kafkajs-$version.tgz" | sha256sum --check --status 2>/dev/null; }

fetch_kafkajs() {
    mkdir -p "$place" &&
        { is_whole || (cd "$place" && npm pack --silent "kafkajs@$version" >/dev/null); } &&
        is_whole && tar -xzf "$place/kafkajs-$version.tgz" -C "$place"
}

has kcat || lacking="$lacking kcat"
if ! has node; then
    lacking="$lacking node"
elif ! is_whole || [ ! -d "$place/package" ]; then
    fetch_kafkajs || { rm -rf "$place"; lacking="$lacking kafkajs-$version"; }
fi
if [ -n "$lacking" ]; then
    say "lacks$lacking, whose tests are skipped (Debian, Ubuntu: apt install kcat nodejs npm)"
    if [ "${CI:-}" = true ] && can_install; then
        say "in CI nothing may be lacking" >&2
        exit 1
    fi
fi
exec .venv/bin/pytest tests/clients -rs "$@"
