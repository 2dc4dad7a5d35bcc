#!/usr/bin/env bash
# Builds the wheel and the sdist into dist/ and tries them as their users will.
#
# Both are built twice, the second time elsewhere, and have to be equal. Then pip installs the wheel
# into new environments, for users with an empty home folder: once as it is, once with the extra
# spark. This takes about five minutes and needs a package index and Java.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
step() { echo "== $*" >&2; }

step "build"
rm -rf dist
tools/setup.sh uv build --quiet --out-dir dist
mkdir -p "$scratch/elsewhere"
cp -R pyproject.toml README.md LICENSE src "$scratch/elsewhere"
tools/setup.sh uv build --quiet --out-dir "$scratch/again" "$scratch/elsewhere"
rm -f dist/.gitignore "$scratch/again/.gitignore"
diff -r dist "$scratch/again" || { echo "two builds differ" >&2; exit 1; }
wheel="$(echo dist/*.whl)"
.venv/bin/python tools/check_dist.py dist

# Install into a new environment, for a user with nothing: its name, and what pip is given.
new_user() {
    local folder="$scratch/$1"
    shift
    mkdir -p "$folder/home"
    .venv/bin/python -m venv "$folder/venv"
    as_user "$folder" "$folder/venv/bin/pip" install --quiet "$@"
}

# Run a program in a user's folder, with the environment of a new user.
as_user() {
    local folder="$1"
    shift
    (cd "$folder" && env -i PATH="$folder/venv/bin:/usr/local/bin:/usr/bin:/bin" \
        HOME="$folder/home" LANG=C.UTF-8 ${JAVA_HOME:+JAVA_HOME="$JAVA_HOME"} \
        ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
        ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} ${https_proxy:+https_proxy="$https_proxy"} \
        "$@")
}

step "without extras"
new_user plain "$PWD/$wheel"
as_user "$scratch/plain" lakeferry doctor >&2
LAKEFERRY_INSTALLED="$scratch/plain/venv" .venv/bin/pytest -n 0 -q tests/scenario/test_wheel.py >&2

step "with the extra spark"
new_user spark "$PWD/$wheel[spark]"
as_user "$scratch/spark" lakeferry demo --folder "$scratch/spark/demo" >&2
as_user "$scratch/spark" lakeferry doctor >&2

step "done"
ls -l dist
