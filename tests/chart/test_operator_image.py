"""The Dockerfile against what it is built from and how the chart runs it. The cluster tests build and run it."""

from __future__ import annotations

import re
import tomllib

from helmchart import ROOT, pod_template, render

from localcluster import contexts
from sglang_operator.settings import Settings

DOCKERFILE = ROOT / "Dockerfile"


def instructions(name: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(f"{name} ")]


def test_context_holds_what_is_copied_and_no_secret_place() -> None:
    shown = {path.relative_to(ROOT).as_posix() for path in contexts.files(ROOT, DOCKERFILE)}
    copied = [line.split()[0] for line in instructions("COPY") if not line.startswith("--from")]
    assert copied == ["requirements/runtime.lock", "operator/sglang_operator", "operator/sglang_specpatch"]
    for source in copied:
        assert any(path == source or path.startswith(f"{source}/") for path in shown), f"{source} is ignored"
    assert {path.split("/")[0] for path in shown} <= {"operator", "requirements", "tests"}
    assert not [path for path in shown if "__pycache__" in path]


def test_only_what_is_copied_from_a_stage_is_in_the_image() -> None:
    final = DOCKERFILE.read_text().rsplit("\nFROM ", 1)[1]
    assert "RUN" not in final
    assert all(line.startswith("--from=") for line in re.findall(r"^COPY (.*)", final, re.MULTILINE))


def test_user_is_known_not_to_be_root() -> None:
    # The kubelet checks runAsNonRoot by number: a name would be refused.
    assert instructions("USER") == ["65532:65532"]


def test_ports_and_program() -> None:
    default = Settings()
    assert instructions("EXPOSE") == [f"{default.health_port} {default.metrics_port}"]
    assert instructions("ENTRYPOINT") == ['["python3", "-m", "sglang_operator"]']
    # The chart names no command, so that the image's own runs.
    assert not {"command", "args"} & pod_template(render())["spec"]["containers"][0].keys()


def test_lock_holds_the_project_s_packages_with_hashes() -> None:
    lock = (ROOT / "requirements/runtime.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=!~ ;\[]", requirement)[0] for requirement in project} <= pinned
    entries = re.split(r"\n(?=[a-z0-9-]+==)", "\n" + lock)[1:]
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
