#!/bin/sh
# Runs the tests of Kafka's clients that are programs of their own (tests/clients): kcat, kafkajs with
# node, and librdkafka's own tests. Debian's packages are installed where that may be, as root; kafkajs
# and librdkafka's sources come from npm into build, once, in pinned versions and content. Tests of
# what is lacking are skipped; in CI as root on Debian nothing may be lacking. Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."

kafkajs=kafkajs-2.2.4
kafkajs_sha256=c814f61afbb2b42e314a5e17780475e6a15aa47bbd33b126b81123e69b02a6f6
librdkafka=confluentinc-kafka-javascript-1.10.1 # it ships librdkafka 2.15.1 with its tests
librdkafka_sha256=ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66
headers="libzstd-dev liblz4-dev zlib1g-dev libssl-dev rapidjson-dev"
lacking=""

say() { echo "test-clients: $*"; }
has() { command -v "$1" >/dev/null 2>&1; }
has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }
can_install() { [ "$(id -u)" = 0 ] && has apt-get; }
can_build() {
    has make && has g++ && has_header zstd.h && has_header lz4.h && has_header zlib.h &&
        has_header openssl/ssl.h && has_header rapidjson/document.h
}

missing=""
has kcat || missing="$missing kcat"
has node || missing="$missing nodejs"
has npm || { [ -d build/kafkajs/package ] && [ -d build/librdkafka/package ]; } ||
    missing="$missing npm"
can_build || missing="$missing gcc g++ make $headers"
if [ -n "$missing" ] && can_install; then
    say "installing$missing"
    apt-get update -qq
    # one after the other: what can be had is used, whatever becomes of the others
    for package in $missing; do
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
            >/dev/null
    done
fi

# fetch PLACE FILE SHA256 NPM-PACKAGE MEMBER: have one member of a package in PLACE
is_whole() { echo "$3  $1/$2.tgz" | sha256sum --check --status 2>/dev/null; }
fetch() {
    is_whole "$@" && [ -d "$1/$5" ] && return
    mkdir -p "$1" &&
        { is_whole "$@" || (cd "$1" && npm pack --silent "$4" >/dev/null); } &&
        is_whole "$@" && rm -rf "${1:?}/$5" && tar -xzf "$1/$2.tgz" -C "$1" "$5"
}

# without TLS, SASL and HTTP, which nodes do not speak; unoptimized, as the tests' authors build them
build_librdkafka() {
    fetch build/librdkafka "$librdkafka" "$librdkafka_sha256" \
        "@confluentinc/kafka-javascript@${librdkafka##*-}" package/deps/librdkafka || return
    (
        cd build/librdkafka/package/deps/librdkafka || exit
        [ -e tests/built ] && exit
        say "building librdkafka's tests (a minute or two)"
        {
            ./configure --disable-gssapi --disable-sasl --disable-curl --disable-optimization &&
                make -j"$(nproc)" libs && make -j"$(nproc)" -C tests test-runner
        } >build.log 2>&1 && touch tests/built && exit
        tail -20 build.log >&2
        exit 1
    )
}

has kcat || lacking="$lacking kcat"
if ! has node; then
    lacking="$lacking node"
elif ! fetch build/kafkajs "$kafkajs" "$kafkajs_sha256" "kafkajs@${kafkajs#kafkajs-}" package; then
    rm -rf build/kafkajs
    lacking="$lacking $kafkajs"
fi
if ! can_build; then
    lacking="$lacking a compiler with headers"
elif ! build_librdkafka; then
    rm -rf build/librdkafka
    lacking="$lacking $librdkafka"
fi
if [ -n "$lacking" ]; then
    say "lacks$lacking, whose tests are skipped" \
        "(Debian, Ubuntu: apt install kcat nodejs npm gcc g++ make $headers)"
    if [ "${CI:-}" = true ] && can_install; then
        say "in CI nothing may be lacking" >&2
        exit 1
    fi
fi
exec .venv/bin/pytest tests/clients -rs "$@"
