"""A simulated engine in real time: when a step's time is over its events are published, and what it made is
handed out (in vLLM's order)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from deployments.engines.base import EngineGone
from deployments.engines.simulated_prompt import ScheduledRequest
from deployments.engines.simulated_publisher import SimulatedPublisher
from sightline_types import EngineLoad
from simulation.engine import SimulatedEngine, Step
from simulation.wire import BlockContent, encode_batch

__all__ = ["EngineClock", "Progress"]

log = logging.getLogger("sightline.deployments")

#: An engine that fell behind (the machine was busy) hurries to catch up with so much at the most.
MAX_LAG_S = 0.05


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of a request: those in [start, end) of its answer.

    cached_tokens: the engine's figure, known from the first token on.
    """

    start: int
    end: int
    is_finished: bool
    cached_tokens: int


@dataclass(slots=True, eq=False)
class _Open:
    """A request in the engine: what was made of it, and how much of that was asked for."""

    made: int = 0
    taken: int = 0
    cached_tokens: int = 0
    is_finished: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self) -> Progress:
        self.news.clear()
        start, self.taken = self.taken, self.made
        return Progress(start, self.made, self.is_finished, self.cached_tokens)


class EngineClock:
    """Runs `engine` on the event loop that `start` was called in.

    publisher: None: events are told to nobody.
    speedup: simulated milliseconds in a real one; 0 or infinite: no step takes any time.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        publisher: SimulatedPublisher | None,
        *,
        block_size: int,
        speedup: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._block_size = block_size
        self._seconds_per_ms = 0.0 if speedup == 0 else 1e-3 / speedup
        self._clock = clock
        self._sleep = sleep
        self._open: dict[str, _Open] = {}
        self._contents: dict[str, BlockContent] = {}
        self._work = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._death: BaseException | None = None

    def start(self) -> None:
        self._runner = asyncio.create_task(self._run())
        self._runner.add_done_callback(self._note_end)

    @property
    def death(self) -> BaseException | None:
        """Why the engine runs no more."""
        return self._death

    def load(self) -> EngineLoad:
        return self._engine.load()

    def clear(self) -> bool:
        cleared = self._engine.clear()
        self._work.set()  # the next step tells it
        return cleared

    async def serve(self, scheduled: ScheduledRequest) -> AsyncGenerator[Progress]:
        """Progress until the end. Closing it aborts the request.

        Raises:
            RequestRefused: the engine can never take the request.
            EngineGone: the engine runs no more.
        """
        request_id = scheduled.request.request_id
        if self._death is not None:
            raise EngineGone(str(self._death))
        self._engine.add(scheduled.request)
        state = self._open[request_id] = _Open()
        self._contents[request_id] = scheduled.content
        self._work.set()
        try:
            while not state.is_finished or state.taken < state.made:
                await state.news.wait()
                if self._death is not None:
                    raise EngineGone(str(self._death))
                yield state.take()
        finally:
            del self._open[request_id], self._contents[request_id]
            if not state.is_finished:
                self._engine.abort(request_id)

    async def _run(self) -> None:
        due = self._clock()
        while True:
            step = self._engine.step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                due = self._clock()
                continue
            payload = self._payload(step)
            due = max(due, self._clock() - MAX_LAG_S) + step.duration_ms * self._seconds_per_ms
            # At infinite speed others get their turn between two steps, too.
            await self._sleep(max(0.0, due - self._clock()) if self._seconds_per_ms else 0)
            if payload is not None and self._publisher is not None:
                self._publisher.publish(payload)
            self._hand_out(step)

    def _payload(self, step: Step) -> bytes | None:
        """The step's events, while all requests that they name are here."""
        if not step.events or self._publisher is None:
            return None
        return encode_batch(time.time(), step.events, self._contents, self._block_size)

    def _hand_out(self, step: Step) -> None:
        for output in step.outputs:
            state = self._open.get(output.request_id)
            if state is None:
                continue  # it was aborted while the step ran
            state.made += output.new_tokens
            state.cached_tokens = output.cached_tokens
            state.is_finished = output.is_finished
            state.news.set()

    def _note_end(self, runner: asyncio.Task[None]) -> None:
        if runner.cancelled():
            self._death = EngineGone("the engine was shut down")
        else:
            self._death = runner.exception()
            log.critical("the simulated engine stopped", exc_info=self._death)
        for state in self._open.values():
            state.news.set()

    async def aclose(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])
