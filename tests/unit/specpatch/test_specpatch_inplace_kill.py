"""kill -9 at each write of an in-place patch and of its undo; the next run makes up for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mini_sglang
import pytest

from sglang_specpatch import tree

KILLER = """
import itertools, os, shutil, signal, sys
from pathlib import Path
import mini_sglang
from sglang_specpatch import inplace, runtime_files, tree
from sglang_specpatch.locate import Found

killed, healed_by, moment, folder = *sys.argv[1:4], Path(sys.argv[4])
few = {name: data for name, data in runtime_files.read().items() if name in ("__init__.py", "hooks.py")}
runtime_files.read = lambda: few
site = folder / "site"
mini_sglang.write(site, mini_sglang.OLD_LAYOUT)
(site / "sglang-0.5.16.dist-info").mkdir()
(site / "sglang-0.5.16.dist-info/RECORD").write_text("sglang/__init__.py,sha256=x,1\\n")
for name in ("server_args", "managers/scheduler"):
    cached = (site / f"sglang/srt/{name}.py").parent / "__pycache__" / f"{Path(name).name}.cpython-311.pyc"
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(b"compiled by pip")
countdown = 0

def apply():
    with inplace.locked(site):
        plan = inplace.plan(tree.draw(Found(site / "sglang", "0.5.16"), import_check="skipped"), site)
        if not plan.is_done():
            inplace.write(plan)
        inplace.seal(plan)

def undo():
    with inplace.locked(site):
        inplace.undo(site)

def content():
    return {str(place.relative_to(site)): (place.stat().st_mode, place.read_bytes() if place.is_file() else b"")
            for place in site.rglob("*")}

def step(name, partial):
    real = getattr(os, name)
    def stepping(*arguments, **options):
        global countdown
        countdown -= 1
        if countdown == 0:
            if partial:
                os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, stepping)

def die_at(write, action):
    global countdown
    countdown = write
    for name in ("replace",) if moment == "half" else (
        "replace", "rename", "link", "unlink", "mkdir", "rmdir"
    ):
        step(name, moment == "half")
    action()
    os._exit(0)

actions = {"apply": apply, "undo": undo}
shutil.copytree(site, folder / "pristine")
apply()
shutil.copytree(site, folder / "patched")
clean = {"apply": content()}
undo()
clean["undo"] = content()
begin = folder / {"apply": "pristine", "undo": "patched"}[killed]
for write in itertools.count(1):
    shutil.rmtree(site)
    shutil.copytree(begin, site)
    child = os.fork()
    if child == 0:
        die_at(write, actions[killed])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    actions[healed_by]()
    found = content()
    differing = sorted(path for path in {*found, *clean[healed_by]} if found.get(path) != clean[healed_by].get(path))
    assert not differing, f"{killed} killed {moment} write {write}, then {healed_by}: {differing}"
    if status == 0:
        break
print(write - 1, len(few))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("healed_by", ["apply", "undo"])
@pytest.mark.parametrize(("killed", "moment"), [("apply", "before"), ("apply", "half"), ("undo", "before")])
def test_a_patcher_killed_at_any_write_is_healed(killed: str, healed_by: str, moment: str, tmp_path: Path) -> None:
    places = [Path(tree.__file__).parents[1], Path(mini_sglang.__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", KILLER, killed, healed_by, moment, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=290)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout.split()[0])
    # The journal, five patched files, two added ones, the list of files, the manifest twice.
    assert kills >= 11 if killed == "apply" else kills >= 8
