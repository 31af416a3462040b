"""The import check as it runs in an image: the real import of every release, and images that are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_sglang import RELEASES, REPOSITORY, Workshop

from engine import release_table

pytestmark = [pytest.mark.engine, pytest.mark.timeout(360)]

NEWEST = RELEASES[-1]


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_is_patched_and_proven(workshop: Workshop, release: str) -> None:
    patched = workshop.patched(release)
    assert patched.exit_code == 0, patched.log
    lines = patched.log.splitlines()
    always_drafts = RELEASES.index(release) < RELEASES.index("0.5.14")
    last = ["live update refused OK"] if always_drafts else ["worker hook OK", "live update OK"]
    assert [line for line in lines if line.endswith(" OK")] == ["server_args OK", "flag OK", *last]
    assert lines[0] == f"SGLang {release} in {workshop.source(release)}"
    assert patched.result | {"message": "", "digest": ""} == {
        "result": "Patched",
        "reason": "Patched",
        "message": "",
        "release": release,
        "path": str(workshop.source(release)),
        "generation": 2,
        "digest": "",
    }


def test_the_page_of_releases_is_what_is_found_and_proven(workshop: Workshop) -> None:
    found = [release_table.look(name, workshop.source(name), workshop.patched(name).log) for name in RELEASES]
    committed = (REPOSITORY / "docs/engine-releases.md").read_text(encoding="utf-8")
    assert release_table.page(found) == committed, "run `make releases`"


def test_the_server_is_started_on_the_patched_tree(workshop: Workshop) -> None:
    patched = workshop.patched(NEWEST)
    code = (
        "import json, sys; from sglang.srt import server_args as s; "
        "a = s.prepare_server_args(['--model-path', 'dummy', '--speculative-disable-batch-threshold', '6']); "
        "print(json.dumps([s.__file__, a.speculative_disable_batch_threshold]))"
    )
    environment = workshop.environment(workshop.source(NEWEST).parent)
    done = workshop.run(
        "run", "--tree", str(patched.directory), "--", sys.executable, "-c", code, environment=environment
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == [str(patched.directory / "sglang/srt/server_args.py"), 6]


def test_a_bad_boot_value_gets_the_sentence_of_the_flag(workshop: Workshop) -> None:
    patched = workshop.patched(NEWEST)
    code = (
        "from sglang.srt import server_args as s; s.prepare_server_args(['--speculative-disable-batch-threshold=-4'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=workshop.environment(patched.directory),
        cwd=workshop.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 2
    assert (
        "error: argument --speculative-disable-batch-threshold: must be a whole number from 0 to 1000000"
        in done.stderr.splitlines()[-1]
    )


def test_an_image_without_sglang_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    refused = workshop.apply(tmp_path, tmp_path / "out")
    assert (refused.exit_code, refused.result["reason"]) == (3, "SourceNotFound")


def test_an_image_without_a_system_library_is_named_by_its_first_cause(workshop: Workshop, tmp_path: Path) -> None:
    """A package that SGLang imports fails to load a library, and then blames something else."""
    broken = tmp_path / "broken" / "orjson"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        "try:\n"
        "    raise ImportError('libnuma.so.1: cannot open shared object file: No such file or directory')\n"
        "except ImportError:\n"
        "    raise ImportError('[orjson] CRITICAL: Could not load any common_ops library!')\n"
    )
    environment = workshop.environment(workshop.source(NEWEST).parent)
    environment["PYTHONPATH"] = f"{broken.parent}{os.pathsep}{environment['PYTHONPATH']}"
    log = tmp_path / "termination-log"
    arguments = ["apply", "--to", str(tmp_path / "out"), "--termination-log", str(log)]
    done = workshop.run(*arguments, environment=environment)
    assert done.returncode == 4, done.stdout
    result = json.loads(log.read_bytes())
    assert len(log.read_bytes()) <= 4096
    assert result["reason"] == "MissingSystemLibrary"
    assert "libnuma.so.1 is missing" in result["message"]
    assert "CRITICAL" in result["message"], "the last lines of the log belong to the message"
    assert not (tmp_path / "out/sglang").exists()


def test_a_broken_anchor_is_refused_before_anything_is_imported(workshop: Workshop, tmp_path: Path) -> None:
    parent = workshop.copy(NEWEST, "edited")
    worker = parent / "sglang/srt/speculative/eagle_worker_v2.py"
    text = worker.read_text()
    worker.write_text(
        text.replace("self.activate_step_by_batch(batch.seq_lens.shape[0])", "self.activate_step_by_batch(8)")
    )
    refused = workshop.apply(parent, tmp_path / "out")
    assert (refused.exit_code, refused.result["reason"]) == (3, "UnsupportedSource")
    assert "srt/speculative/eagle_worker_v2.py" in refused.result["message"]
    assert f"SGLang {NEWEST}" in refused.result["message"]
    assert not (tmp_path / "out/sglang").exists()


def test_an_error_in_the_runtime_fails_the_check_on_real_sources(workshop: Workshop) -> None:
    """`check` goes by what the tree does, not only by its digests: here both are made to agree on a wrong rule."""
    program = (
        "import sys; from sglang_specpatch import runtime_files, __main__ as m; files = runtime_files.read(); "
        "files['probing.py'] = files['probing.py'].replace(b'0 < threshold <= batch', b'0 < threshold < batch'); "
        "runtime_files.read = lambda: files; sys.exit(m.main(sys.argv[1:]))"
    )
    environment = workshop.environment(workshop.program, workshop.source(NEWEST).parent)
    target = workshop.folder / "wrong"
    done = subprocess.run(
        [sys.executable, "-c", program, "apply", "--to", str(target)],
        env=environment, cwd=workshop.folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4, done.stdout + done.stderr
    assert "threshold 1, batch 1: 3 draft steps, not 0." in done.stdout
    assert not (target / "sglang").exists()
