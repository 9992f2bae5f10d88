"""What decisions and pushes cost the router actor and its callers over the direct line, without Ray.

    python benchmarks/router_line.py [--workers 2 16 64] [--seconds N]

Actor and callers are two processes; figures are processor time of each (user and system), in microseconds.
Requests are of 35 tokens. A decision's row includes what its request makes the replicas say afterwards: three
words, two requests' in one push.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from router.actor import RouterActor
from router.calls import CALLS
from router.client import RouterClient
from router.config import RouterConfig
from router.line import Line, LineAddress, LineServer
from router.status import PoolView
from sightline_types import (
    Decision,
    DecisionId,
    EngineLoad,
    KeyedView,
    KeyScheme,
    LifecycleEvent,
    LifecycleKind,
    RelayStatus,
    RouteQuery,
    Tier,
    TierDelta,
    WorkerContract,
    WorkerId,
    WorkerPush,
)

CONTRACT = WorkerContract("vllm", "0.32.0", 16, KeyScheme.VLLM, "bench", 1 << 20)
LIFE = (LifecycleKind.STARTED, LifecycleKind.FIRST_TOKEN, LifecycleKind.END)
CONCURRENCY = (1, 16, 64)


def serve(ready: Connection) -> None:
    """The actor's process: its core and its line, as Ray's worker runs them."""

    async def main() -> None:
        actor = RouterActor(RouterConfig())
        server = LineServer(actor.ask)
        address = await server.listen("127.0.0.1")
        gc.freeze()
        ready.send(address)
        await asyncio.Event().wait()

    uvloop.run(main())


class Callers:
    """Every ingress and relay of a pool, in this process."""

    def __init__(self, line: Line, workers: int) -> None:
        self._line = line
        self.workers = [WorkerId(f"default#Engine#{n:06x}") for n in range(workers)]
        self.pool = PoolView(workers, dict.fromkeys(self.workers, CONTRACT))
        self.seqs = dict.fromkeys(self.workers, 0)
        self.said: dict[WorkerId, list[LifecycleEvent]] = {worker: [] for worker in self.workers}

    async def call(self, method: str, *args: Any) -> Any:
        """As an `ActorLink` calls."""
        if method == "pool":
            return self.pool
        call = CALLS[method]
        return call.unpack_result(await self._line.call(call.number, call.pack(args)))

    async def join(self) -> None:
        table = (TierDelta(Tier(), np.arange(1, 2000, dtype="<u8").tobytes()),)
        for worker in self.workers:
            await self.call("push", WorkerPush(worker, 1, 0, table, table=True, contract=CONTRACT))

    async def push(self, worker: WorkerId, stored: int) -> None:
        self.seqs[worker] = seq = self.seqs[worker] + 1
        said, self.said[worker] = self.said[worker], []
        keys = np.random.default_rng(seq).integers(1, 1 << 62, stored, dtype=np.int64).astype("<u8")
        deltas = (TierDelta(Tier(), keys.tobytes()),) if stored else ()
        status, load = RelayStatus(seq), EngineLoad(1, 0, 0.2)
        await self.call("push", WorkerPush(worker, 1, seq, deltas, tuple(said), status, load))

    async def serve(self, decision: Decision) -> None:
        said = self.said[decision.worker]
        said += [LifecycleEvent(kind, decision.decision_id, 32, 35) for kind in LIFE]
        if len(said) >= 2 * len(LIFE):
            await self.push(decision.worker, 0)


def query(name: str, tie_key: int) -> RouteQuery:
    view = KeyedView(np.array([1, 2], dtype="<u8").tobytes())
    return RouteQuery(DecisionId(name), {CONTRACT.spec: view}, num_tokens=35, tie_key=tie_key)


async def measured(
    title: str, actor: psutil.Process, seconds: float, run: Callable[[], Awaitable[int]]
) -> None:
    """run: does it for so long; returns how many there were."""
    before, own, began = sum(actor.cpu_times()[:2]), time.process_time(), time.perf_counter()
    count = await run()
    spent = (sum(actor.cpu_times()[:2]) - before, time.process_time() - own)
    rate, (there, here) = count / (time.perf_counter() - began), (1e6 * part / count for part in spent)
    print(f"| {title} | {rate:.0f} | {there:.0f} | {here:.0f} |")


async def pushes(callers: Callers, seconds: float) -> int:
    """Each worker pushes four new blocks every 15 ms."""
    end, count = time.perf_counter() + seconds, 0

    async def relay(worker: WorkerId) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await callers.push(worker, 4)
            count += 1
            await asyncio.sleep(0.015)

    await asyncio.gather(*map(relay, callers.workers))
    return count


async def decisions(callers: Callers, concurrency: int, seconds: float) -> int:
    end, count = time.perf_counter() + seconds, 0
    client = RouterClient(callers, budget_s=30)  # type: ignore[arg-type]

    async def ask(number: int) -> None:
        nonlocal count
        while time.perf_counter() < end:
            count += 1
            name, tie_key = f"{concurrency:04x}{number:04x}{count:08x}", count * 7919
            outcome = await client.decide(lambda pool: query(name, tie_key))  # noqa: B023
            assert isinstance(outcome, Decision), outcome
            await callers.serve(outcome)

    await asyncio.gather(*map(ask, range(concurrency)))
    return count


async def measure(address: LineAddress, process: psutil.Process, workers: int, seconds: float) -> None:
    line = await Line.open(address, on_lost=lambda line: None)
    callers = Callers(line, workers)
    await callers.join()
    title = f"{workers} workers: "
    await measured(title + "pushes", process, seconds, lambda: pushes(callers, seconds))
    for concurrency in CONCURRENCY:
        await measured(
            f"{title}decisions, c={concurrency}",
            process,
            seconds,
            lambda: decisions(callers, concurrency, seconds),  # noqa: B023
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print("| | a second | actor, us | callers, us |\n|---|---|---|---|")
    for workers in options.workers:
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
        process.start()
        uvloop.run(measure(here.recv(), psutil.Process(process.pid), workers, options.seconds))
        process.kill()


if __name__ == "__main__":
    main()
