"""Sends a workload, in a closed loop (so many under way) or an open one (at a rate, whatever comes back)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.load.client import Client
from app.load.requests import Ask, Source
from app.load.samples import Sample, sample_of

__all__ = ["Limit", "OpenLoop", "Runner"]

#: How long requests under way are waited for after Ctrl-C.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """When to stop sending: after so many requests, so many seconds, or whichever comes first."""

    requests: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals that do not wait for answers.

    rate: requests a second. is_poisson: exponential gaps, else all alike. max_outstanding: above it a
    request waits until another ends; it is late then, and its latency counts from when it was due.
    """

    rate: float
    is_poisson: bool = True
    max_outstanding: int = 1024

    def gaps(self, seed: str) -> Iterator[float]:
        """Seconds between arrivals."""
        dice = random.Random(seed)
        while True:
            yield dice.expovariate(self.rate) if self.is_poisson else 1 / self.rate


@dataclass
class Runner:
    """Sends the requests of one process.

    samples: of all requests that ended, in that order. unsent: requests that were due before the end but
    never sent (open loop). is_stopped: by `stop`.
    """

    client: Client
    source: Source
    is_streamed: bool = True
    samples: list[Sample] = field(default_factory=list)
    outstanding: int = 0
    unsent: int = 0
    is_stopped: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def closed(self, concurrency: int, limit: Limit) -> None:
        """Keep `concurrency` requests under way."""
        left = iter(range(limit.requests)) if limit.requests is not None else None
        ends = _end(limit)

        async def one_after_the_other() -> None:
            while not self.is_stopped and time.perf_counter() < ends:
                if left is not None and next(left, None) is None:
                    return
                await self._one(self.source.take(), None)

        for _ in range(concurrency):
            self._spawn(one_after_the_other())
        await self._drained()

    async def open(self, loop: OpenLoop, limit: Limit, seed: str) -> None:
        """Send at the loop's rate."""
        ends = _end(limit)
        due = time.perf_counter()
        slots = asyncio.Semaphore(loop.max_outstanding)
        for count, gap in enumerate(loop.gaps(seed)):
            due += gap
            if self.is_stopped or due >= ends or count == limit.requests:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            must_wait = slots.locked()
            await slots.acquire()
            if self.is_stopped:
                break
            if must_wait and time.perf_counter() >= ends:
                self.unsent = _still_due(loop, due, ends, limit, count)
                break
            self._spawn(self._one(self.source.take(), due, slots))
        await self._drained()

    def stop(self) -> None:
        """Send no more, and give up what is under way after a moment."""
        self.is_stopped = True
        asyncio.get_running_loop().call_later(GRACE_S, self._give_up)

    def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drained(self) -> None:
        while self._tasks:
            ended, _ = await asyncio.wait(set(self._tasks), return_when=asyncio.ALL_COMPLETED)
            for task in ended:
                if not task.cancelled():
                    task.result()

    async def _one(self, ask: Ask, intended: float | None, slots: asyncio.Semaphore | None = None) -> None:
        self.outstanding += 1
        under_way = self.outstanding
        try:
            exchange = await self.client.chat(
                ask.parts, is_streamed=self.is_streamed, keeps_text=self.source.keeps_text
            )
            sample = sample_of(ask, exchange, intended, under_way)
            self.source.answered(ask, exchange.reader.text, sample.is_good)
            self.samples.append(sample)
        finally:
            self.outstanding -= 1
            if slots is not None:
                slots.release()


def _still_due(loop: OpenLoop, due: float, ends: float, limit: Limit, count: int) -> int:
    """About how many are due before the end; one at `due`, after `count` others."""
    more = 1 + max(0, round((ends - due) * loop.rate))
    return more if limit.requests is None else min(more, limit.requests - count)


def _end(limit: Limit) -> float:
    return float("inf") if limit.duration_s is None else time.perf_counter() + limit.duration_s
