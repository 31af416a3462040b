#!/usr/bin/env bash
# Resolves the packages of pyproject.toml for all platforms, with hashes, into requirements/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=${1:?usage: lock.sh VENV}/bin/uv
[[ -x $uv ]] || { echo "uv is missing from the environment: run 'make install' first." >&2; exit 1; }
common=(pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' pyproject.toml)
"$uv" "${common[@]}" --output-file requirements/runtime.lock
"$uv" "${common[@]}" --extra simulate --group dev --output-file requirements/dev.lock
