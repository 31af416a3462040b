"""The local cluster with the product on it, started by the first test that needs it and left running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import deploy
from localcluster.client import LocalCluster
from services import RELEASE


@pytest.fixture(scope="session")
def cluster() -> LocalCluster:
    """A running local cluster."""
    running = LocalCluster()
    running.manage("up", "--name", running.name, timeout_seconds=1500)
    return running


@pytest.fixture(scope="session")
def installed(cluster: LocalCluster) -> LocalCluster:
    """The cluster with the operator installed by its chart, and the engine images on its nodes."""
    deploy.provide(cluster, deploy.engine_image(RELEASE))
    deploy.install_operator(cluster)
    return cluster


@pytest.fixture
def namespace(installed: LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own; that it ends within two minutes is a part of every test."""
    prefix = request.node.name.removeprefix("test_").split("[")[0].replace("_", "-")[:30].strip("-")
    with installed.namespace(prefix) as name:
        yield name
