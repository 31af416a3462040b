"""What decides whether an image is built again, and what of the host its build may use; no cluster needed."""

from __future__ import annotations

import json
import pathlib
import tarfile
from io import BytesIO

import pytest

from localcluster import archives, contexts, hostaccess, images, programs
from localcluster.errors import ClusterError

PIP_VARIABLES = ("PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_TARGET")


@pytest.fixture
def context(tmp_path: pathlib.Path) -> pathlib.Path:
    """A context with a Dockerfile, sources, and things that must not count."""
    for name in ("src/main.py", "src/deep/er.pyc", "docs/readme.md", "docs/keep.md", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text("ARG BASE=python:3.11-slim\nFROM ${BASE}\nARG SSL_CERT_FILE\n")
    (tmp_path / ".dockerignore").write_text("# comment\n.git\n**/*.pyc\ndocs/*\n!docs/keep.md\n")
    return tmp_path


def names(context: pathlib.Path) -> list[str]:
    """The context's files by name."""
    return [str(file.relative_to(context)) for file in contexts.files(context, context / "Dockerfile")]


def test_the_ignore_file_is_followed(context: pathlib.Path) -> None:
    assert sorted(names(context)) == [".dockerignore", "Dockerfile", "docs/keep.md", "src/main.py"]


def test_an_ignore_file_of_the_dockerfile_goes_first(context: pathlib.Path) -> None:
    (context / "Dockerfile.dockerignore").write_text("*\n!src\n")
    assert sorted(names(context)) == ["src/deep/er.pyc", "src/main.py"]


@pytest.mark.parametrize("change", ["content", "mode", "name", "dockerfile", "other"])
def test_a_change_of_anything_changes_the_digest(context: pathlib.Path, change: str) -> None:
    dockerfile = context / "Dockerfile"
    source = context / "src/main.py"
    before = contexts.digest(context, dockerfile, "tag")
    if change == "content":
        source.write_text("changed")
    elif change == "mode":
        source.chmod(0o755)
    elif change == "name":
        source.rename(source.with_name("other.py"))
    elif change == "dockerfile":
        dockerfile.write_text("FROM scratch\n")
    after = contexts.digest(context, dockerfile, "another" if change == "other" else "tag")
    assert after != before


def test_ignored_files_and_times_change_nothing(context: pathlib.Path) -> None:
    dockerfile = context / "Dockerfile"
    before = contexts.digest(context, dockerfile)
    (context / ".git/HEAD").write_text("other commit")
    (context / "docs/readme.md").unlink()
    (context / "src/main.py").touch()
    assert contexts.digest(context, dockerfile) == before


def test_pip_reaches_the_hosts_index(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in PIP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("certificates")
    config = tmp_path / "host.conf"
    config.write_text(
        "[global]\nindex-url = https://old.example/simple\nextra_index_url =\n  https://a.example\n  https://b.example\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("PIP_TARGET", "/somewhere")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shown = {str(mount.target): mount.source for mount in hostaccess.mounts(scratch)}
    assert shown["/etc/ssl/certs/ca-certificates.crt"] == bundle
    written = shown["/etc/pip.conf"].read_text()
    assert "index-url = https://user:secret@index.example/simple\n" in written
    assert "https://a.example\n    https://b.example" in written
    assert "cert = /etc/ssl/certs/ca-certificates.crt" in written
    assert "target" not in written, "where things are installed is the Dockerfile's business"


def test_ca_variables_are_given_only_to_who_asks(context: pathlib.Path) -> None:
    expected = ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]
    assert hostaccess.build_arguments(context / "Dockerfile") == expected
    (context / "Dockerfile").write_text("FROM scratch\n")
    assert hostaccess.build_arguments(context / "Dockerfile") == []


def test_short_image_names_are_refused(tmp_path: pathlib.Path) -> None:
    assert images.archive_path(tmp_path, "docker.io/a/b:1").name == "docker.io_a_b_1.tar"
    for name in ("operator", "operator:dev", "a/b", "docker.io/A/b:1"):
        with pytest.raises(ClusterError, match="give it in full"):
            images.archive_path(tmp_path, name)


@pytest.mark.parametrize(
    ("member", "content", "name", "digest"),
    [
        (
            "index.json",
            {
                "manifests": [
                    {"digest": "sha256:1", "annotations": {"org.opencontainers.image.ref.name": "docker.io/a/b:1"}}
                ]
            },
            "docker.io/a/b:1",
            "sha256:1",
        ),
        ("manifest.json", [{"RepoTags": ["a/b:1"]}], "docker.io/a/b:1", ""),
        ("manifest.json", [{"RepoTags": ["b:1"]}], "docker.io/library/b:1", ""),
        ("manifest.json", [{"RepoTags": ["ghcr.io/a/b:1"]}], "ghcr.io/a/b:1", ""),
    ],
)
def test_archives_tell_what_they_hold(
    tmp_path: pathlib.Path, member: str, content: object, name: str, digest: str
) -> None:
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo(member)
        body = json.dumps(content).encode()
        info.size = len(body)
        tar.addfile(info, BytesIO(body))
    assert archives.describe(archive) == archives.Image(name, digest)


def kubernetes_on_path(folder: pathlib.Path, versions: dict[str, str]) -> None:
    """Programs that answer with a version."""
    for name in programs.KUBERNETES:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho 'Kubernetes {versions.get(name, 'v1.37.2')}'\n")
        program.chmod(0o755)


@pytest.mark.parametrize(
    ("versions", "used"),
    [({}, True), ({"kubelet": "v1.36.0"}, False), (dict.fromkeys(programs.KUBERNETES, "v1.30.1"), False)],
    ids=["one release", "mixed releases", "too old"],
)
def test_programs_on_path_are_used_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, versions: dict[str, str], used: bool
) -> None:
    on_path, cache = tmp_path / "path", tmp_path / "cache"
    on_path.mkdir()
    kubernetes_on_path(on_path, versions)
    asked: list[str] = []
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "build", lambda _, names: asked.extend(names))
    prepared = {program.name: program.path for program in programs.prepare(cache)}
    expected = on_path if used else programs.built_folder(cache)
    assert {prepared[name] for name in programs.KUBERNETES} == {expected / name for name in programs.KUBERNETES}
    assert ("kubelet" in asked) is not used
