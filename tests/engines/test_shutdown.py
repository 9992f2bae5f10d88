"""The application of the modules before this one ends, and leaves nothing behind."""

from __future__ import annotations

import time

import ray
from ray import serve

from tests.engines.service import Service
from tests.engines.test_failures import router_actors


def test_after_shutdown_no_actor_is_left(service: Service) -> None:
    serve.delete(service.app_name)
    deadline = time.monotonic() + 120
    while router_actors() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert router_actors() == []
    assert ray.is_initialized()
