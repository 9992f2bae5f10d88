"""The `Renderer` deployment: the engine's own renderer, for families that the registry does not know."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from deployments.config import EngineConfig
from deployments.media import MediaDecoder
from deployments.rendered import Rendered, RenderRefused, RenderRequest
from deployments.transport import Payload
from processors import RequestError

__all__ = ["Renderer"]

log = logging.getLogger("sightline.deployments")


class Renderer:
    """Serve deployment, any number of replicas; it holds nothing between requests."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: EngineConfig, set_up_logs: Callable[[], None] | None = None
    ) -> None:
        from deployments.engines.vllm_render import VllmRenderer

        if set_up_logs is not None:
            set_up_logs()
        began = time.monotonic()
        self._media = await MediaDecoder.for_model(config)
        self._renderer = await asyncio.to_thread(VllmRenderer.start, config)
        log.info("renderer of %s: ready after %.0f s", config.model, time.monotonic() - began)

    async def render(self, request: RenderRequest, payload: Payload) -> Rendered | RenderRefused:
        """The prompt as the engine would expand it."""
        try:
            media = await self._media.decode(request.media, payload)
        except RequestError as error:
            return RenderRefused(str(error))
        return await self._renderer.render(request, media)

    async def __del__(self) -> None:
        if getattr(self, "_media", None) is not None:
            await self._media.aclose()
        if getattr(self, "_renderer", None) is not None:
            await asyncio.to_thread(self._renderer.shutdown)
