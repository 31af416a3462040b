"""The ways that the documents show to get the program: the example Dockerfile, the archive, an installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import mini_sglang

from sglang_specpatch import archive

REPOSITORY = Path(__file__).parents[3]
DOCKERFILE = REPOSITORY / "docs/examples/patched-image/Dockerfile"


def _instructions() -> list[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_example_copies_the_package_from_where_the_operators_image_has_it() -> None:
    copied = next(rest.split() for word, rest in _instructions() if word == "COPY")
    assert copied == [
        "--from=operator",
        "/opt/sglang-operator/code/sglang_specpatch",
        "/opt/specpatch/sglang_specpatch",
    ]
    image = (REPOSITORY / "Dockerfile").read_text()
    assert "COPY operator/sglang_specpatch /code/sglang_specpatch" in image
    assert "COPY --from=code /code /opt/sglang-operator/code" in image


def test_the_command_of_the_example_patches_the_image(tmp_path: Path) -> None:
    """The image is a virtual environment; the copied package lies where COPY would put it."""
    venv.create(tmp_path / "image", with_pip=False, symlinks=True)
    package = mini_sglang.write(next((tmp_path / "image").glob("lib/python*/site-packages")), mini_sglang.NEW_LAYOUT)
    shutil.copytree(REPOSITORY / "operator/sglang_specpatch", tmp_path / "specpatch/sglang_specpatch")
    command = next(rest for word, rest in _instructions() if word == "RUN")
    (tmp_path / "work").mkdir()
    environment = {"PATH": f"{tmp_path / 'image/bin'}:/usr/bin:/bin"}

    def shell(text: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", text],
            env=environment,
            cwd=tmp_path / "work",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = shell(command.replace("/opt/specpatch", str(tmp_path / "specpatch")))
    assert f"SGLang 0.5.16 in {package}" in said.splitlines()
    assert "server_args OK" in said.splitlines()
    flag = "--speculative-disable-batch-threshold"
    code = (
        "import argparse; from sglang.srt.server_args import ServerArgs as A; p = argparse.ArgumentParser(); "
        f"A.add_cli_args(p); print(p.parse_args(['{flag}', '8']).speculative_disable_batch_threshold)"
    )
    assert shell(f'python3 -c "{code}"') == "8\n"


def test_the_archive_is_written_by_its_module(tmp_path: Path) -> None:
    place = tmp_path / "specpatch.pyz"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}
    command = [sys.executable, "-m", "sglang_specpatch.archive", str(place)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert place.read_bytes() == archive.build()
    assert os.access(place, os.X_OK)
