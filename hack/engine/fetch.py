#!/usr/bin/env python3
"""Fetch what the engine tests need into the cache: SGLang's own sources, and the packages their import needs.

    python3 hack/engine/fetch.py tree [RELEASE…]   unpack SGLang wheels (all known releases by default)
    python3 hack/engine/fetch.py env               install the 6 GB of packages, about 3 minutes
    python3 hack/engine/fetch.py path RELEASE      print the PYTHONPATH of one release

A second run does nothing: each result carries a stamp of what it was made from. An interrupted run leaves a
`.partial` folder that the next one replaces; finished downloads are taken from pip's cache. The cache is
`$SGLANG_DEV_CACHE`, else `$XDG_CACHE_HOME/sglang-operator`, else `~/.cache/sglang-operator`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
PINS = HERE / "wheels.sha256"
STAMP = ".complete"
PYTHON = "3.11"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
TARGET = ["--no-deps", "--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:"]


def cache() -> Path:
    """Return the root of the cache."""
    own, shared = os.environ.get("SGLANG_DEV_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "sglang-operator"


def pins() -> dict[str, tuple[str, str]]:
    """Return wheel file and SHA-256 of every known release."""
    lines = [line.split() for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    return {file.split("-")[1]: (file, digest) for digest, file in lines}


def tree(release: str) -> Path:
    """Make sure that a release is unpacked and return its folder, which holds `sglang/`."""
    file, digest = pins()[release]
    target = cache() / "trees" / release
    stamp = target / STAMP
    if stamp.is_file() and stamp.read_text().strip() == digest:
        print(f"SGLang {release}: already in {target}")
        return target
    with locked(f"tree-{release}"):
        wheel = download(release, file, digest)
        if (target / "sglang").is_dir() and holds(target, wheel):
            print(f"SGLang {release}: {target} is as in the wheel")
        else:
            unpack(wheel, target)
            print(f"SGLang {release}: unpacked into {target}")
        stamp.write_text(digest + "\n")
    return target


def download(release: str, file: str, digest: str) -> Path:
    """Return the wheel of a release, fetched when missing or damaged; stop when its digest is not the pinned one."""
    wheel = cache() / "wheels" / file
    if not (wheel.is_file() and sha256(wheel) == digest):
        print(f"SGLang {release}: downloading {file}", flush=True)
        partial = fresh(cache() / "wheels" / f"{release}.partial")
        run([*PIP, "download", *TARGET, "--dest", str(partial), f"sglang=={release}"])
        found = partial / file
        if not found.is_file() or sha256(found) != digest:
            got = [f"{place.name} {sha256(place)}" for place in partial.iterdir()]
            raise SystemExit(f"SGLang {release}: expected {file} with SHA-256 {digest}, the index gave {got}")
        found.replace(wheel)
        shutil.rmtree(partial)
    return wheel


def holds(target: Path, wheel: Path) -> bool:
    """Tell whether a folder holds every file of a wheel, byte for byte."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            place = target / entry.filename
            if not entry.is_dir() and not (place.is_file() and place.read_bytes() == archive.read(entry)):
                return False
    return True


def unpack(wheel: Path, target: Path) -> None:
    """Replace a folder by the content of a wheel."""
    partial = fresh(target.with_name(target.name + ".partial"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


def environment() -> Path:
    """Make sure that the packages of the import are installed and return their folder."""
    target = cache() / "engine-env"
    stamp, digest = target / STAMP, requirements_digest()
    with locked("engine-env"):
        if stamp.is_file() and stamp.read_text().strip() == digest:
            print(f"engine packages: already in {target}")
            return target
        print(f"engine packages: installing {REQUIREMENTS.name} into {target} (6 GB, about 3 minutes)", flush=True)
        partial = fresh(target.with_name("engine-env.partial"))
        run([*PIP, "install", "--quiet", *TARGET, "--no-compile", "--target", str(partial), "-r", str(REQUIREMENTS)])
        (partial / STAMP).write_text(digest + "\n")
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    compile_used()
    return target


def compile_used() -> None:
    """Import SGLang once, so that what the import uses is compiled: pods mount the folder read-only.

    Without that each import takes more than twice as long. Another Python than 3.11 can't do it for the pods.
    """
    python = shutil.which(f"python{PYTHON}")
    if python is None:
        print(f"engine packages: no python{PYTHON} here to compile them with; imports will take longer")
        return
    newest = list(pins())[-1]
    tree(newest)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = python_path(newest)
    print("engine packages: importing SGLang once", flush=True)
    done = subprocess.run([python, "-c", "import sglang.srt.server_args"], env=environment, check=False, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"SGLang {newest} can't be imported with the packages of {REQUIREMENTS.name}, see above")


def requirements_digest() -> str:
    """Return a digest of the pinned packages; comments don't count."""
    lines = [line.strip() for line in REQUIREMENTS.read_text().splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line and not line.startswith("#")).encode()).hexdigest()


def python_path(release: str) -> str:
    """Return the PYTHONPATH with which a release can be imported."""
    return os.pathsep.join([str(cache() / "trees" / release), str(cache() / "engine-env")])


def run(command: list[str]) -> None:
    """Run a command with its output shown; stop with its exit code when it fails."""
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}")


def fresh(folder: Path) -> Path:
    """Return an empty folder in the place of a leftover one."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def sha256(file: Path) -> str:
    """Return the hexadecimal digest of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time make one thing; the others wait and find it made."""
    folder = cache() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Read the command line and fetch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    trees = commands.add_parser("tree", help="unpack SGLang wheels")
    trees.add_argument("release", nargs="*", help=f"known: {' '.join(pins())}")
    commands.add_parser("env", help="install the packages that importing SGLang needs")
    commands.add_parser("path", help="print the PYTHONPATH of a release").add_argument("release")
    options = parser.parse_args()
    if options.command == "env":
        environment()
    elif options.command == "path":
        print(python_path(options.release))
    else:
        unknown = [release for release in options.release if release not in pins()]
        if unknown:
            raise SystemExit(f"unknown release {' '.join(unknown)}; known: {' '.join(pins())}. Add it to {PINS.name}.")
        for release in options.release or pins():
            tree(release)


if __name__ == "__main__":
    main()
