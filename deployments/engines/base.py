"""What a replica asks of its engine, whichever that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from deployments.config import EngineConfig
from deployments.protocol import EngineMessage, EngineRequest
from router.relay import EventSource
from sightline_types import EngineLoad, WorkerContract

__all__ = ["EngineGone", "EngineRank", "ServingEngine"]


class EngineGone(Exception):
    """The engine process has died; this replica cannot serve any more."""


@dataclass(frozen=True, slots=True)
class EngineRank:
    """One data-parallel rank of an engine: a scheduler with a cache of its own, and so a worker of its own.

    source: where its KV events are; None where its arguments turn them off.
    load: its last word about itself; None before the first. Never blocks nor raises.
    reset_prefix_cache: forget its cached blocks; False where a running request forbids it.
    """

    source: EventSource | None
    load: Callable[[], EngineLoad | None]
    reset_prefix_cache: Callable[[], Awaitable[bool]]


class ServingEngine(ABC):
    """One running engine, used from the event loop that `start` was called in.

    The engine is given token ids with one placeholder per media item, decoded media, and our identities;
    never an address, a path or a `data:` string. What it was started with does not change while it runs:
    `contract`, `event_source` and `ranks` say the same whenever they are asked.

    An engine of several data-parallel ranks serves each request on the rank `request.dp_rank`.

    Requests run side by side. A request is known to the engine by its decision id, and ends in one of
    three ways: its last message, an exception, or its generator being closed, upon which the engine
    stops its work at once.
    """

    @classmethod
    @abstractmethod
    async def start(cls, config: EngineConfig) -> Self:
        """Start the engine; returns when it can serve, after tens of seconds.

        Raises:
            ValueError: settings that this engine does not take.
        """

    @abstractmethod
    async def contract(self) -> WorkerContract:
        """What each rank promises: read from the running engine, not from the settings."""

    @abstractmethod
    def event_source(self) -> EventSource | None:
        """Where the KV events of rank 0 are; None when the engine's arguments turn them off."""

    @abstractmethod
    def generate(self, request: EngineRequest, media: Sequence[Any]) -> AsyncGenerator[EngineMessage]:
        """Deltas, then `Finished`; or `Failed` for what the request is to blame for.

        Deltas that nobody asks for in time are merged, none is lost.

        media: decoded, one per item of `request.media`, in its order.

        Raises:
            EngineGone: the engine has died.
        """

    @abstractmethod
    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False where a running request forbids it."""

    @abstractmethod
    def load(self) -> EngineLoad | None:
        """The engine's last word about itself; None before the first. Never blocks nor raises."""

    def ranks(self) -> tuple[EngineRank, ...]:
        """In the order of their numbers, from 0; all of them hold to the one contract."""
        return (EngineRank(self.event_source(), self.load, self.reset_prefix_cache),)

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """Whether the engine can never serve again."""

    @abstractmethod
    async def check_health(self) -> None:
        """
        Raises:
            Exception: the engine is not well, in words of its own.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """End the engine and its processes. Blocks."""
