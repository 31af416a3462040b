"""As in a pod: a random high user id that owns nothing, a read-only root, and volumes for all that is written.

The processes really run so: in a mount namespace of their own whose root is read-only, as a user without a name.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mini_sglang
import pytest

from sglang_operator.render.environment import DEFAULTS
from sglang_operator.render.volumes import CACHE_PATH, HOME_PATH
from sglang_specpatch import archive
from sglang_specpatch.manifest import Manifest, digests

USER = 1000800000
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable

WRITES_AS_SGLANG_DOES = """
import getpass, os
for name in ("TRITON_CACHE_DIR", "SGLANG_CACHE_DIR", "HF_HOME", "XDG_CACHE_HOME"):
    os.makedirs(os.environ[name], exist_ok=True)
    open(os.path.join(os.environ[name], "compiled"), "w").close()
open(os.path.join(os.path.expanduser("~"), ".rc"), "w").close()
getpass.getuser()
"""


def _can_unshare() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=30)
    return os.geteuid() == 0 and shutil.which("setpriv") is not None and done.returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="makes mount namespaces, which only root can")


class Pod:
    """Containers one after another on the same volumes, with the file system of one image."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "image"
        self.patched = folder / "sglang-patched"
        self.home = folder / "home"
        self.caches = folder / "cache"
        for volume in (self.patched, self.home, self.caches):
            volume.mkdir()
            volume.chmod(0o777)
        self.image.mkdir()
        (self.image / "specpatch.pyz").write_bytes(archive.build())
        self.package = mini_sglang.write(self.image / "site", mini_sglang.NEW_LAYOUT)

    def environment(self) -> dict[str, str]:
        """The environment that the operator renders, its folders moved to this pod's volumes."""
        places = {HOME_PATH: str(self.home), CACHE_PATH: str(self.caches)}
        moved = dict(DEFAULTS)
        for path, volume in places.items():
            moved = {name: value.replace(path, volume) for name, value in moved.items()}
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.package.parent), **moved}

    def run(
        self, *arguments: str, writable: bool = True, room: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the program in a container.

        With `writable` false, without the volume for the patched tree; with `room`, that volume is an empty one of this
        size.
        """
        volumes = [self.home, self.caches, *([self.patched] if writable and room is None else [])]
        mounts = [f"mount --bind {shlex.quote(str(volume))} {shlex.quote(str(volume))}" for volume in volumes]
        if room is not None:
            mounts.append(f"mount -t tmpfs -o size={room},mode=777 none {shlex.quote(str(self.patched))}")
        script = " && ".join(
            [
                "mount --make-rprivate /",
                *mounts,
                "for place in / /tmp; do ! mountpoint -q $place || mount -o remount,bind,ro $place; done",
                "! touch /specpatch-test 2>/dev/null",
                'cd / && exec setpriv --reuid "$0" --regid 0 --clear-groups --no-new-privs "$@"',
            ]
        )
        program = [PYTHON, str(self.image / "specpatch.pyz"), *arguments]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, str(USER), *program],
            env={**self.environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


@pytest.fixture
def pod(world_readable: Callable[[], Path]) -> Pod:
    return Pod(world_readable())


def _result(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert "Traceback" not in done.stderr, done.stderr
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_it_patches_and_serves_from_the_volume(pod: Pod) -> None:
    initializer = pod.package / "__init__.py"
    initializer.write_text(initializer.read_text() + WRITES_AS_SGLANG_DOES)
    before = digests(pod.image)
    applied = pod.run("apply", "--to", str(pod.patched), "--json")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert _result(applied)["result"] == "Patched"
    assert Manifest.read(pod.patched) is not None
    assert {place.stat().st_uid for place in pod.patched.rglob("*")} == {USER}
    served = pod.run("run", "--tree", str(pod.patched), "--", PYTHON, "-m", "sglang.launch_server")
    assert served.stdout.splitlines()[-1] == f"serving from {pod.patched}/sglang/srt/server_args.py", served.stderr
    assert (pod.home / ".rc").exists()
    assert (pod.caches / "sglang/triton/compiled").exists()
    assert digests(pod.image) == before
    again = pod.run("apply", "--to", str(pod.patched), "--json")
    assert "already in place" in _result(again)["message"]
    undone = pod.run("undo", "--to", str(pod.patched), "--json")
    assert undone.returncode == 0
    assert list(pod.patched.iterdir()) == []


def test_without_a_volume_the_refusal_says_what_to_mount(pod: Pod) -> None:
    refused = pod.run("apply", "--to", str(pod.patched), "--json", writable=False)
    assert (_result(refused)["reason"], refused.returncode) == ("SourceNotWritable", 5)
    assert "Mount a writable volume there (an emptyDir)" in _result(refused)["message"]


def test_a_volume_that_is_too_small_is_refused(pod: Pod) -> None:
    refused = pod.run("apply", "--to", str(pod.patched), "--json", room="1m")
    assert (_result(refused)["reason"], refused.returncode) == ("NoSpace", 5)
    assert "Give the volume more room" in _result(refused)["message"]


def test_in_place_is_refused_with_the_way_out(pod: Pod) -> None:
    before = digests(pod.image)
    refused = pod.run("apply", "--in-place", "--json")
    assert (_result(refused)["reason"], refused.returncode) == ("SourceNotWritable", 5)
    assert "make a copy with `apply --to DIR`" in _result(refused)["message"]
    assert digests(pod.image) == before


def test_an_image_patched_in_place_is_checked_run_and_copied_from(pod: Pod) -> None:
    """Nothing of it can be written: neither a lock nor bytecode."""
    program = [PYTHON, str(pod.image / "specpatch.pyz"), "apply", "--in-place", "--no-import-check"]
    subprocess.run(program, env=pod.environment(), cwd="/", check=True, capture_output=True, timeout=60)
    assert pod.run("check").returncode == 0
    served = pod.run("run", "--", PYTHON, "-m", "sglang.launch_server")
    assert served.stdout.splitlines()[-1] == f"serving from {pod.package}/srt/server_args.py", served.stdout
    copied = pod.run("apply", "--to", str(pod.patched), "--json")
    assert copied.returncode == 0, copied.stdout
    assert pod.run("check", "--tree", str(pod.patched)).returncode == 0


def test_caches_without_a_volume_are_named_as_the_cause(pod: Pod) -> None:
    initializer = pod.package / "__init__.py"
    initializer.write_text(initializer.read_text() + WRITES_AS_SGLANG_DOES)
    failed = pod.run("apply", "--to", str(pod.patched), "--json", TRITON_CACHE_DIR="/.triton")
    assert (_result(failed)["reason"], failed.returncode) == ("SourceNotWritable", 5)
    assert "'/.triton'" in _result(failed)["message"]
    assert "Point HOME and the cache variables to a writable volume" in _result(failed)["message"]
    assert [path.name for path in pod.patched.iterdir()] == [".specpatch-lock"]


def test_an_image_that_root_alone_can_read_is_named(pod: Pod) -> None:
    (pod.package / "srt/managers").chmod(0o700)
    refused = pod.run("apply", "--to", str(pod.patched), "--json")
    assert (_result(refused)["reason"], refused.returncode) == ("SourceNotFound", 3)
    assert f"can't be read by user {USER}" in _result(refused)["message"]
