"""Decisions through the router actor, and how soon a new one decides as well as the old one did.

    python benchmarks/router_actor.py [--json FILE] [--seconds N] [--workers N] [--blocks N]

Client and actor run as they do in production: the client packs what waits into one actor call, the actor
lives in a Ray process of its own, and `Router` (a Serve deployment) makes another one when it dies. The
workers' relays are real, but all in this process, where their tables compete with the client for one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deployments.router import Router, finder
from router.client import RouterClient
from router.config import RouterConfig
from router.core import PoolView
from router.events import BlockStored
from router.keys import block_keys
from router.link import ActorLink
from router.relay import EventRelay
from sightline_types import (
    Decision,
    DecisionId,
    KeyedView,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    PushReply,
    RouteQuery,
    Tier,
    TokenView,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

BLOCK = 16
PROMPT_TOKENS = 8192
CONTRACT = WorkerContract("vllm", "0.32.0", BLOCK, KeyScheme.VLLM, "bench", 1 << 20)
#: Blocks of one stored event: a chain of its own.
CHAIN = PROMPT_TOKENS // BLOCK


@dataclass(frozen=True, slots=True)
class Rate:
    """Decisions at one concurrency. p50, p99: milliseconds. undecided: of all."""

    concurrency: int
    per_second: float
    p50_ms: float
    p99_ms: float
    undecided: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds. from_init: from the new actor's `__init__` to its first exact decision."""

    workers: int
    blocks_per_worker: int
    from_kill: float
    from_init: float


def chain(number: int) -> TokenView:
    tokens = np.random.default_rng(number).integers(0, 1 << 17, PROMPT_TOKENS + 7, dtype=np.int64)
    return TokenView(tokens, (), len(tokens))


class Fleet:
    """Relays of workers that hold `chains` prompts each, in this process."""

    def __init__(self, link: ActorLink, workers: int, chains: int) -> None:
        self._link = link
        self.chains = chains
        self.relays = [
            EventRelay(WorkerId(f"w{n}"), CONTRACT, None, self._push, push_interval_s=0.015)
            for n in range(workers)
        ]
        for n, relay in enumerate(self.relays):
            for number in range(chains):
                relay._residency.apply(stored(n * chains + number))

    async def _push(self, message: WorkerPush) -> PushReply:
        reply: PushReply = await self._link.call("push", message)
        return reply

    def serve(self, decision: Decision) -> None:
        """Say what a replica says of a request, all at once: it rides on the next push."""
        relay = next(relay for relay in self.relays if relay._worker == decision.worker)
        for kind in (LifecycleKind.STARTED, LifecycleKind.FIRST_TOKEN, LifecycleKind.END):
            relay.report(LifecycleEvent(kind, decision.decision_id))

    async def start(self) -> None:
        await asyncio.gather(*(relay.start() for relay in self.relays))

    async def close(self) -> None:
        await asyncio.gather(*(relay.close() for relay in self.relays))


def stored(number: int) -> BlockStored:
    hashes = tuple(range(number * CHAIN + 1, (number + 1) * CHAIN + 1))
    return BlockStored(Tier(), hashes, None, chain(number).token_ids[: CHAIN * BLOCK], BLOCK)


def query(name: str, view: KeyedView) -> Callable[[PoolView], RouteQuery]:
    def build(pool: PoolView) -> RouteQuery:
        specs = {contract.spec for contract in pool.contracts.values()} or {CONTRACT.spec}
        views = dict.fromkeys(specs, view)
        return RouteQuery(DecisionId(name), views, PROMPT_TOKENS + 7, tie_key=hash(name))

    return build


async def rate(
    client: RouterClient, fleet: Fleet, views: list[KeyedView], concurrency: int, seconds: float
) -> Rate:
    times: list[float] = []
    undecided = 0
    end = time.perf_counter() + seconds

    async def ask(number: int) -> None:
        nonlocal undecided
        count = 0
        while time.perf_counter() < end:
            name = f"{concurrency:04x}{number:04x}{count:08x}"
            began = time.perf_counter()
            outcome = await client.decide(query(name, views[(number + count) % len(views)]))
            times.append(time.perf_counter() - began)
            if isinstance(outcome, Decision):
                fleet.serve(outcome)
            else:
                undecided += 1
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(ask(number) for number in range(concurrency)))
    per_second = len(times) / (time.perf_counter() - began)
    p50, p99 = (float(np.percentile(times, share)) * 1000 for share in (50, 99))
    return Rate(concurrency, per_second, p50, p99, undecided)


async def until_exact(client: RouterClient, chains: int, workers: int) -> float:
    """Until the last worker's prompt is foretold in full; when that was."""
    view = block_keys(chain(workers * chains - 1), CONTRACT.spec)
    for attempt in range(100_000):
        outcome = await client.decide(query(f"exact{attempt:011x}", view))
        if isinstance(outcome, Decision):
            client.cancel(outcome.decision_id)
            if outcome.predicted_cached_tokens == PROMPT_TOKENS:
                return time.perf_counter()
        await asyncio.sleep(0.01)
    raise RuntimeError("the router never found what the worker holds")


async def restart(link: ActorLink, client: RouterClient, fleet: Fleet) -> Restart:
    old = await link.call("ping")
    actors = [p for p in psutil.Process().children(recursive=True) if is_router_actor(p)]
    began = time.perf_counter()
    for process in actors:
        os.kill(process.pid, signal.SIGKILL)
    workers = len(fleet.relays)
    done = await until_exact(client, fleet.chains, workers)
    assert await link.call("ping") != old
    age = await link.call("age_s")
    return Restart(workers, fleet.chains * CHAIN, done - began, age - (time.perf_counter() - done))


def is_router_actor(process: psutil.Process) -> bool:
    return bool(process.cmdline()) and process.cmdline()[0].startswith("ray::RouterActor")


async def run(options: argparse.Namespace, find: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    link = ActorLink(find)
    link.start()
    assert await link.wait_up(60)
    client = RouterClient(link, budget_s=10.0)
    fleet = Fleet(link, options.workers, options.blocks // CHAIN)
    await fleet.start()
    views = [block_keys(chain(number), CONTRACT.spec) for number in range(64)]
    await until_exact(client, fleet.chains, options.workers)
    rates = [await rate(client, fleet, views, c, options.seconds) for c in (1, 16, 64)]
    restarts = [await restart(link, client, fleet) for _ in range(options.restarts)]
    await fleet.close()
    await link.close()
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg(),
        "rates": [asdict(row) for row in rates],
        "restarts": [asdict(row) for row in restarts],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=125_000, help="held by each worker")
    parser.add_argument("--restarts", type=int, default=3)
    options = parser.parse_args()
    import ray
    from ray import serve

    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        _temp_dir="/tmp/sl",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.getcwd()}},
    )
    serve.start(proxy_location="Disabled")
    deployment = serve.deployment(Router).options(ray_actor_options={"num_cpus": 0}, health_check_period_s=5)
    handle = serve.run(deployment.bind(RouterConfig()), name="bench", route_prefix=None)
    try:
        result = asyncio.run(run(options, finder(handle)))
    finally:
        serve.shutdown()
        ray.shutdown()
    for row in result["rates"]:
        print(
            "c={concurrency:<3} {per_second:7.0f}/s  p50 {p50_ms:6.2f} ms  p99 {p99_ms:6.2f} ms".format(**row)
        )
    for row in result["restarts"]:
        print("restart: {from_kill:.2f} s from the kill, {from_init:.2f} s from __init__".format(**row))
    print(f"median from kill: {statistics.median(r['from_kill'] for r in result['restarts']):.2f} s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
