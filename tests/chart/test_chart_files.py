"""The chart as a package: lint, versions, generated files, and the snapshot of its default render."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from helmchart import (
    CHART,
    EVERYTHING,
    NOTHING,
    ROOT,
    Manifest,
    Values,
    find,
    helm,
    render,
)

import chart_values
import generate_chart
from sglang_operator import __version__
from sglang_operator.api.crd import crd

SNAPSHOT = Path(__file__).with_name("snapshot.yaml")


class SnapshotDumper(yaml.SafeDumper):
    """Writes text of several lines as such, so that its differences can be read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


SnapshotDumper.add_representer(str, _text)


@pytest.mark.parametrize("values", [{}, EVERYTHING, NOTHING], ids=["default", "everything", "nothing"])
def test_lint(values: Values) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), values=values)


def test_versions_agree() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["appVersion"] == about["version"] == project["version"] == __version__


@pytest.mark.parametrize(
    ("path", "text"), generate_chart.generators(), ids=lambda value: getattr(value, "name", "text")
)
def test_generated_files_are_fresh(path: Path, text: str) -> None:
    stored = path.read_text(encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(stored.splitlines(), text.splitlines(), "stored", "generated", lineterm="")
    )
    assert not difference, f"{path.relative_to(ROOT)} is out of date; run make generate\n{difference[:5000]}"


def test_generation_is_repeatable() -> None:
    assert generate_chart.generators() == generate_chart.generators()


def test_crd_is_the_models_own() -> None:
    rendered = find(render(), "CustomResourceDefinition")
    assert rendered["spec"] == crd()["spec"]
    assert rendered["metadata"]["name"] == crd()["metadata"]["name"]


def test_crd_template_keeps_braces() -> None:
    definition = {"kind": "X", "metadata": {"name": "x"}, "text": "a {{ .Values.image }} b }} c"}
    assert '{{ "{{" }} .Values.image {{ "}}" }}' in generate_chart.crd_template(definition)


def test_crd_template_refuses_metadata_that_it_would_lose() -> None:
    with pytest.raises(ValueError, match="must hold its name and nothing else"):
        generate_chart.crd_template({"kind": "X", "metadata": {"name": "x", "labels": {"a": "b"}}})


def test_install_manifest_is_the_default_render() -> None:
    namespace, *installed = yaml.safe_load_all((ROOT / "manifests/install.yaml").read_text())
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "sglang-operator-system")
    rendered = [item for item in render() if item["kind"] != "Pod"]
    assert [without_helm(item) for item in rendered] == installed


def without_helm(item: Manifest) -> Manifest:
    metadata = dict(item["metadata"])
    helms = ("helm.sh/chart", "app.kubernetes.io/managed-by")
    metadata["labels"] = {name: value for name, value in metadata["labels"].items() if name not in helms}
    if metadata.get("annotations") == {"helm.sh/resource-policy": "keep"}:
        del metadata["annotations"]
    return {**item, "metadata": metadata}


def test_install_manifest_has_no_mark_of_helm() -> None:
    assert not re.search(r"helm\.sh|: Helm\b", (ROOT / "manifests/install.yaml").read_text())


def test_snapshot(request: pytest.FixtureRequest) -> None:
    """The default render, the CRD apart, which has a golden file of its own."""
    objects = [item for item in render() if item["kind"] != "CustomResourceDefinition"]
    text = yaml.dump_all(objects, Dumper=SnapshotDumper, sort_keys=False, width=110)
    if request.config.getoption("--update-chart-snapshot", default=False):
        SNAPSHOT.write_text(text, encoding="utf-8")
    stored = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(stored, text.splitlines(), "snapshot.yaml", "rendered", lineterm=""))
    assert not difference, f"meant? pytest tests/chart --update-chart-snapshot\n{difference[:5000]}"


def test_packaged_chart_holds_what_it_needs(tmp_path: Path) -> None:
    helm("package", str(CHART), "--destination", str(tmp_path))
    output = helm("template", "x", str(tmp_path / "sglang-operator-0.1.0.tgz"))
    assert output == helm("template", "x", str(CHART))


def test_each_value_needs_a_comment() -> None:
    with pytest.raises(ValueError, match=r"a\.b: a comment above the key must say what the value does"):
        chart_values.read_values("# text\na:\n  b: 1\n")


def test_each_setting_named_in_a_comment_exists() -> None:
    with pytest.raises(ValueError, match="a: no_such_thing is no setting of the operator"):
        chart_values.read_values("# text\n# @setting no_such_thing\na: 1\n")


def test_schema_is_closed_at_every_level() -> None:
    values = chart_values.read_values((CHART / "values.yaml").read_text())

    def open_objects(node: chart_values.Schema, path: str) -> list[str]:
        found = [path] if node.get("properties") and node.get("additionalProperties") is not False else []
        for name, child in node.get("properties", {}).items():
            found += open_objects(child, f"{path}.{name}")
        return found

    assert open_objects(chart_values.schema(values), "") == []


def values_in_the_documentation() -> list[str]:
    text = (ROOT / "docs/installation.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    objects = ("apiVersion:", "spec:")
    return [block.replace("sha256:…", f"sha256:{'0' * 64}") for block in blocks if not block.startswith(objects)]


def test_values_in_the_documentation_are_taken() -> None:
    blocks = values_in_the_documentation()
    assert len(blocks) == 4
    for block in blocks:
        assert render(block)
