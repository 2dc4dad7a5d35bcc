#!/usr/bin/env bash
# Makes .venv from requirements.lock with the uv of tools/uv.lock.
#
# Needs Python 3.11 or newer and nothing else: uv comes from the package index,
# into the user's cache folder, and is shared by all clones.
#
#   tools/setup.sh          make or update .venv
#   tools/setup.sh uv ...   run the pinned uv with these arguments
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${LAKEFERRY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lakeferry}"
export UV_PYTHON_DOWNLOADS=never

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "Lakeferry needs Python 3.11 or newer: install it, or name it with PYTHON=..." >&2
    return 1
}

# Prints the path of uv and installs it first if it isn't there. The folder is
# made under another name and renamed, so that what is there is whole.
find_uv() {
    local version folder partial
    version="$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.lock)"
    folder="$cache/tools/uv-$version"
    if [[ ! -x "$folder/bin/uv" ]]; then
        mkdir -p "$cache/tools"
        partial="$(mktemp -d "$cache/tools/uv.XXXXXX")"
        "$(find_python)" -m venv "$partial"
        "$partial/bin/python" -m pip install --quiet --disable-pip-version-check \
            --require-hashes --only-binary :all: --requirement tools/uv.lock >&2
        mv --no-target-directory "$partial" "$folder" 2>/dev/null || rm -rf "$partial"
    fi
    echo "$folder/bin/uv"
}

uv="$(find_uv)"
if [[ "${1:-}" == uv ]]; then
    shift
    exec "$uv" "$@"
fi

[[ -x .venv/bin/python ]] || "$uv" venv --quiet --python "$(find_python)" .venv
export VIRTUAL_ENV="$PWD/.venv"
"$uv" pip sync --require-hashes requirements.lock
"$uv" pip install --quiet --no-deps --editable .
