"""One adapter per engine. An engine's package is imported only by its own adapter, when it is used."""

from __future__ import annotations

from deployments.config import EngineConfig
from deployments.engines.base import EngineGone, ServingEngine

__all__ = ["EngineGone", "ServingEngine", "start_engine"]


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
    raise ValueError(f"unknown engine {config.engine!r}; known: vllm, sglang")
