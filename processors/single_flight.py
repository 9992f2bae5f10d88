"""Equal work that is under way is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Flight(Generic[V]):
    task: asyncio.Task[V]
    waiters: int = 0


class SingleFlight(Generic[K, V]):
    """One task per key at a time; whoever asks meanwhile shares its result. Belongs to one event loop.

    goes_on: a task that nobody waits for any more ends by itself; else it is cancelled.
    """

    def __init__(self, *, goes_on: bool = False) -> None:
        self._flights: dict[K, _Flight[V]] = {}
        self._goes_on = goes_on

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: object) -> bool:
        """Whether work for this key is under way."""
        return key in self._flights

    async def run(
        self, key: K, work: Callable[[], Coroutine[Any, Any, V]], timeout_s: float | None = None
    ) -> V:
        """
        Raises:
            TimeoutError: there is no result after `timeout_s`.
            Whatever `work` raises; every waiter gets the same exception object.
        """
        flight = self._flights.get(key) or self._start(key, work)
        flight.waiters += 1
        try:
            done, _ = await asyncio.wait({flight.task}, timeout=timeout_s)
            if not done:
                raise TimeoutError
            return flight.task.result()
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not self._goes_on and not flight.task.done():
                self._forget(key, flight)  # who comes now starts anew
                flight.task.cancel()

    def _start(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> _Flight[V]:
        flight = _Flight(asyncio.ensure_future(work()))
        self._flights[key] = flight

        def end(task: asyncio.Task[V]) -> None:
            self._forget(key, flight)
            if not task.cancelled():
                task.exception()  # seen, even where nobody waits

        flight.task.add_done_callback(end)
        return flight

    def _forget(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def aclose(self) -> None:
        """End all work; who waits gets a CancelledError."""
        tasks: list[Awaitable[V]] = []
        for flight in list(self._flights.values()):
            flight.task.cancel()
            tasks.append(flight.task)
        await asyncio.gather(*tasks, return_exceptions=True)
