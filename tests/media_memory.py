"""How much memory many large pictures leave behind between an ingress and an engine replica of Ray Serve.

Run by itself, because Serve reads its transport from the environment when it is imported:

    RAY_SERVE_USE_GRPC_BY_DEFAULT=1 python -m tests.media_memory 2000
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import psutil

from deployments.protocol import EngineMedia, EngineRequest, Sampling
from deployments.transport import EngineCalls, Payload, pack, part, ship
from sightline_types import DecisionId, MediaId, MediaItem, MediaSource, Modality
from tests.ray_cluster import start_ray

PICTURE_BYTES = 2_000_000
AT_A_TIME = 4
WARM_UP = 40


class Receiver:
    """Stands where an engine replica does: looks at each picture's bytes."""

    async def generate(
        self, request: EngineRequest, payload: Payload, pin: Any = None
    ) -> AsyncGenerator[int]:
        (item,) = request.media
        seen = part(payload, item)
        yield int(seen[0]) + int(seen[-1]) + len(seen)

    def own_bytes(self) -> int:
        return own_bytes()


class Sender:
    """Stands where an ingress replica does."""

    def __init__(self, engine: Any) -> None:
        self._calls = EngineCalls(engine)
        self._picture = os.urandom(PICTURE_BYTES)

    async def send(self, count: int) -> int:
        """Pictures one by one, a few at a time; how many arrived whole."""
        gate = asyncio.Semaphore(AT_A_TIME)
        return sum(await asyncio.gather(*(self._one(gate, number) for number in range(count))))

    async def _one(self, gate: asyncio.Semaphore, number: int) -> bool:
        async with gate:
            item = MediaItem(Modality.IMAGE, MediaId(number), MediaSource(data=self._picture))
            media: tuple[EngineMedia, ...]
            media, packed = pack([item], [self._picture])
            request = EngineRequest(DecisionId(f"{number:016x}"), (1,), Sampling(), media)
            answers = [answer async for answer in self._calls.remote(request, ship(packed), pin=None)]
        return answers == [self._picture[0] + self._picture[-1] + PICTURE_BYTES]

    def own_bytes(self) -> int:
        return own_bytes()


def own_bytes() -> int:
    """Resident memory of this process alone: pages of the object store that it has touched stay mapped, and
    are the store's."""
    gc.collect()
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def object_store_bytes() -> float:
    """In use, as the raylet says; after what was freed has been told to it."""
    import ray
    from ray._private.internal_api import memory_summary

    # By its address: another Ray may run on this machine.
    text = memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
    found = re.search(r"Plasma memory usage ([\d.]+) MiB", text)
    if found is None and "Plasma memory usage" in text:
        raise ValueError(f"the object store's use cannot be read: {text!r}")
    return float(found[1]) * 2**20 if found else 0.0


def settled(read: Any, target: float, timeout_s: float = 60.0) -> float:
    """A reading that has come down to the target, or the last one."""
    ends = time.monotonic() + timeout_s
    while (value := float(read())) > target and time.monotonic() < ends:
        time.sleep(0.5)
    return value


def main(count: int) -> dict[str, Any]:
    import ray
    from ray import serve
    from ray.serve._private.constants import RAY_SERVE_USE_GRPC_BY_DEFAULT

    start_ray()
    serve.start(proxy_location="Disabled")
    options = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 100}
    receiver: Any = serve.deployment(Receiver).options(**options).bind()
    sender: Any = serve.deployment(Sender).options(**options).bind(receiver)
    handle: Any = serve.run(sender, name="memory", route_prefix=None)
    engine = serve.get_deployment_handle("Receiver", "memory")

    def own() -> tuple[int, int]:
        return handle.own_bytes.remote().result(), engine.own_bytes.remote().result()

    handle.send.remote(WARM_UP).result()
    store = settled(object_store_bytes, 0)
    before = own()
    arrived = handle.send.remote(count).result(timeout_s=500)
    result = {
        "transport": "grpc" if RAY_SERVE_USE_GRPC_BY_DEFAULT else "actor",
        "sent": count,
        "arrived": arrived,
        "store_before": store,
        "store_after": settled(object_store_bytes, store),
        "grown": [settled(lambda i=i: own()[i] - before[i], 16 << 20) for i in range(2)],
    }
    serve.shutdown()
    ray.shutdown()
    return result


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(int(sys.argv[1]))), flush=True)
