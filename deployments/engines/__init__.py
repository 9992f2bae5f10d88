"""One adapter per engine. An engine's package is imported only by its own adapter, when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.config import EngineConfig

if TYPE_CHECKING:
    from deployments.engines.vllm import VllmEngine

__all__ = ["start_engine"]


async def start_engine(config: EngineConfig) -> VllmEngine:
    """Start the engine that `config` names. Takes as long as the engine takes (tens of seconds).

    Raises:
        ValueError: an engine that Sightline does not know.
    """
    if config.engine == "vllm":
        from deployments.engines.vllm import VllmEngine

        return await VllmEngine.start(config)
    raise ValueError(f"unknown engine {config.engine!r}; known: vllm")
