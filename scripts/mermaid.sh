#!/bin/sh
# Puts what draws the diagrams of the documentation into build/mermaid, once: a package of npm, of a
# pinned version and content. Without npm the pages show the text of their diagrams.
set -u
cd "$(dirname "$0")/.."

version=11.17.2
sha256=7a644017d37f93c8359790884e6b67fb1f747c78eb20475952404bd87190a3f8
place=build/mermaid

is_whole() { echo "$sha256  $place/mermaid.tiny.js" | sha256sum --check --status 2>/dev/null; }

is_whole && exit
mkdir -p "$place"
if command -v npm >/dev/null &&
    (cd "$place" && npm pack --silent "@mermaid-js/tiny@$version" >/dev/null) &&
    tar -xzf "$place"/mermaid-js-tiny-*.tgz -C "$place" --strip-components=2 \
        package/dist/mermaid.tiny.js &&
    is_whole; then
    rm -f "$place"/*.tgz
    exit
fi
rm -rf "$place"
echo "docs: npm could not bring Mermaid $version; diagrams are shown as text" >&2
