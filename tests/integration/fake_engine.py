"""Deployments that stand where engines and ingresses would, to see where Serve sends a request.

Imported in Ray's worker processes too, under this name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from router.link import spawn
from router.pinned import Pin


class FakeEngine:
    """Says which replica serves. "hold" lasts until its caller cancels it; "die" ends the process."""

    def __init__(self) -> None:
        self._replica = serve.get_replica_context().replica_id.unique_id

    async def generate(self, request: str, payload: bytes | None, pin: Any = None) -> AsyncGenerator[str]:
        yield self._replica
        if request == "hold":
            await asyncio.Event().wait()
        if request == "die":
            os._exit(1)


class Caller:
    """An ingress that makes many engine calls while it serves one request."""

    def __init__(self, *engines: DeploymentHandle[Any]) -> None:
        self._generate = engines[0].options(stream=True).generate

    async def fan_out(self, pins: Sequence[Pin]) -> list[str]:
        """Who served each call; all of them run at once, each in a context of its own."""
        return list(await asyncio.gather(*(spawn(self._call(pin)) for pin in pins)))

    async def _call(self, pin: Pin) -> str:
        served = [message async for message in self._generate.remote("", None, pin=pin)]
        return str(served[0])
