#!/usr/bin/env bash
# Renews the locks. They are requirements files with hashes, which name packages
# and no addresses (docs/decisions/0002-lock-without-addresses.md).
#
#   tools/lock.sh                   keep what the locks have and still fits
#   UPGRADE=1 tools/lock.sh         take the newest of everything
#   UV_VERSION=1.2.3 tools/lock.sh  and another uv
set -euo pipefail
cd "$(dirname "$0")/.."

current_uv="$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' tools/uv.lock)"
compile=(tools/setup.sh uv pip compile --quiet --universal --python-version 3.11
    --generate-hashes --no-header --no-emit-index-url --no-emit-find-links)

echo "uv==${UV_VERSION:-$current_uv}" |
    "${compile[@]}" --no-annotate --output-file tools/uv.lock -
"${compile[@]}" --extra spark --extra postgresql --group dev --group docs \
    ${UPGRADE:+--upgrade} \
    --output-file requirements.lock pyproject.toml
for line in $(.venv/bin/python -m tests.matrix lines); do
    .venv/bin/python -m tests.matrix wanted "$line" |
        "${compile[@]}" --no-deps --no-annotate --output-file "tools/matrix/spark-$line.lock" -
done
"${compile[@]}" --group connect-client ${UPGRADE:+--upgrade} \
    --output-file tools/connect-client.lock
# The lowest pyarrow of pyproject.toml, with which a share of the tests runs.
lowest="$(sed -n 's/^ *"pyarrow>=\([0-9]*\)",$/\1/p' pyproject.toml)"
echo "pyarrow==$lowest.*" |
    "${compile[@]}" --resolution lowest --no-annotate --output-file tools/pyarrow-lowest.lock -
.venv/bin/python -m tests.support.components lock spark-jars

if grep -nE '://|^--|@ file' requirements.lock tools/*.lock tools/matrix/*.lock; then
    echo "a lock names an address" >&2
    exit 1
fi
