"""One adapter per engine. An engine's package is imported only by its own adapter, when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from deployments.config import EngineConfig
from deployments.engines.base import EngineGone, EngineRank, ServingEngine
from deployments.media import MediaDecoder
from deployments.protocol import EngineMedia
from deployments.transport import Payload

__all__ = ["EngineGone", "EngineRank", "MediaSource", "ServingEngine", "media_source", "start_engine"]


class MediaSource(Protocol):
    """Makes of a request's media what the engine is given of them; to be closed."""

    async def decode(self, media: Sequence[EngineMedia], payload: Payload) -> Sequence[Any]: ...
    async def aclose(self) -> None: ...


async def media_source(config: EngineConfig) -> MediaSource:
    """Pixels and frames; for the simulated engine their shapes."""
    decoder = await MediaDecoder.for_model(config)
    if config.engine != "simulated":
        return decoder
    from deployments.engines.simulated_media import MediaShapes

    return MediaShapes(decoder, decodes=config.simulation.decode_media)


async def start_engine(config: EngineConfig) -> ServingEngine:
    """Start the engine that `config` names. Takes as long as the engine takes (tens of seconds).

    Raises:
        ValueError: an engine that Sightline does not know.
    """
    if config.engine == "vllm":
        from deployments.engines.vllm import VllmEngine

        return await VllmEngine.start(config)
    if config.engine == "sglang":
        from deployments.engines.sglang import SglangEngine

        return await SglangEngine.start(config)
    if config.engine == "simulated":
        from deployments.engines.simulated import SimulatedServingEngine

        return await SimulatedServingEngine.start(config)
    raise ValueError(f"unknown engine {config.engine!r}; known: vllm, sglang, simulated")
