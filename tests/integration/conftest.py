"""Fixtures of the integration tests: Ray and Serve without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.service import free_port
from tests.ray_cluster import start_ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration" in item.path.parts and item.get_closest_marker("timeout") is None:
            # Applications start within a test's time, and slowly on slow machines: only a hang may fail.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    """Ray alone. For this folder only: the engine tests start a Ray of their own in the same process."""
    import ray

    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="package")
def serve_url(ray_session: None) -> Iterator[str]:
    """Serve with its HTTP proxy, and where that listens."""
    from ray import serve

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.fixture(scope="package")
def serve_session(serve_url: str) -> None:
    """Serve, for tests that need no HTTP."""


@pytest.fixture
def start_actor(ray_session: None) -> Iterator[Callable[..., Any]]:
    """Starts router actors (any class, any settings) and ends them after the test."""
    with actors() as start:
        yield start


@contextmanager
def actors() -> Iterator[Callable[..., Any]]:
    import ray

    from router.actor import RouterActor
    from router.config import RouterConfig
    from tests.integration.worker import NAMESPACE

    started: list[Any] = []

    def start(cls: type = RouterActor, *, name: str | None = None, **config: Any) -> Any:
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000, "max_restarts": 0}
        if name is not None:
            options |= {"name": name, "namespace": NAMESPACE}
        # Workers of these tests send no heartbeats.
        actor = ray.remote(cls).options(**options).remote(RouterConfig(**{"worker_silence_s": 3600} | config))
        started.append(actor)
        return actor

    yield start
    for actor in started:
        ray.kill(actor, no_restart=True)
