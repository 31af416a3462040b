"""pytest plugin: one API server a session, for the tests that ask for it.

Tests that use the fixture `api_server`, directly or not, get the marker `apiserver`. Missing programs are built
before the first test runs, outside of any test's time limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import apiserver
from localcluster.eventually import eventually

TEST_SECONDS = apiserver.START_SECONDS + 30
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD_FILE = apiserver.ROOT / "crds/serving.sglang-operator.io_inferenceservices.yaml"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apiserver: needs a real API server (built and started by the test session)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "api_server" in getattr(item, "fixturenames", ()):
            item.add_marker("apiserver")
            if item.get_closest_marker("timeout") is None:
                # The first of them also waits for the server's start.
                item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    if not session.config.option.collectonly and any(item.get_closest_marker("apiserver") for item in session.items):
        with _shown_output(session.config):
            try:
                apiserver.programs_folder()
            except apiserver.ServerFailed as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


def _shown_output(config: pytest.Config) -> Any:
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    return capture.global_and_fixture_disabled()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ApiServer]:
    """A running API server without any of this project's resources."""
    with apiserver.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(scope="session")
def crd_server(api_server: apiserver.ApiServer) -> apiserver.ApiServer:
    """The API server with the committed CRD in place and served."""
    definition = yaml.safe_load(CRD_FILE.read_text(encoding="utf-8"))
    path = f"{CRDS}/{definition['metadata']['name']}"
    api_server.apply(path, definition)

    def conditions() -> dict[str, str]:
        found = api_server.get(path).get("status", {}).get("conditions") or []
        return {condition["type"]: condition["status"] for condition in found}

    eventually(
        conditions,
        lambda seen: seen.get("Established") == "True" and seen.get("NonStructuralSchema") != "True",
        within_seconds=15,
        every_seconds=0.05,
        what="the CRD is served",
    )
    return api_server


@pytest.fixture
def namespace(api_server: apiserver.ApiServer) -> str:
    """A namespace of the test's own."""
    return api_server.create_namespace()
