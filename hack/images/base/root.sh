#!/usr/bin/env bash
# Makes the root file system of the base image from Debian packages, where no registry serves python:3.11-slim.
#
#   root.sh TARGET.tar
set -euo pipefail
target=${1:?usage: root.sh TARGET.tar}
unfinished=$target.new.tar
trap 'rm -f "$unfinished"' EXIT

# As in the official Python image, `python` is there and pip may install into the system: an image has one user of it.
# The empty pip.conf is where a build may mount the host's settings without leaving a trace.
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
  --customize-hook='ln -s python3 "$1"/usr/bin/python' \
  --customize-hook=': >"$1"/etc/pip.conf' \
  --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log "$1"/etc/resolv.conf "$1"/etc/hostname' \
  bookworm "$unfinished"
mv "$unfinished" "$target"
