#!/usr/bin/env bash
# Makes the Python environment with exactly the packages of requirements/dev.lock, or leaves it alone if it has them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:?usage: install.sh DIR}
lock=$here/requirements/dev.lock

python=$(command -v python3.11 || command -v python3) || { echo "Python 3.11 or newer is needed; none was found." >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Python 3.11 or newer is needed; $python is $("$python" --version 2>&1)." >&2
  exit 1
}
want="$(sha256sum <"$lock") $("$python" --version)"
[[ -x $venv/bin/python && $(cat "$venv/.stamp" 2>/dev/null) == "$want" ]] && exit 0

echo "Installing the Python packages of requirements/dev.lock into $venv"
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9
[[ -x $venv/bin/python && $(cat "$venv/.stamp" 2>/dev/null) == "$want" ]] && exit 0
started=$SECONDS
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --require-hashes -r "$lock"
echo "$want" >"$venv/.stamp"
echo "Installed in $((SECONDS - started)) s"
