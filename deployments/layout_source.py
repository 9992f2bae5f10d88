"""Who foresees the engine's prompt for a request with media: registry, engine's renderer, or nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.metrics import Counter, Histogram

from deployments.config import LayoutMode
from deployments.rendered import Rendered, RenderRefused, RenderRequest, rendered_prompt, text_prefix
from sightline_types import DegradeReason, PreparedPrompt, WorkerContract, WorkerId

__all__ = ["LayoutSource", "RendererCosts", "wants_renderer"]

log = logging.getLogger("sightline.deployments")

#: After a renderer that does not answer, requests do without one for so long.
PAUSE_S = 5.0
#: Reasons that the renderer has no answer to either: the model's processor raises on the item.
_ITS_OWN_REFUSALS = frozenset({DegradeReason.SIZE_REFUSED, DegradeReason.VIDEO_REFUSED})
_BOUNDS_MS = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]


@dataclass(slots=True)
class RendererCosts:
    """What the renderer has done for this ingress replica. total_ms: waited for it, in all."""

    rendered: int = 0
    refused: int = 0
    unavailable: int = 0
    total_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        return self.total_ms / max(1, self.rendered + self.refused)


def wants_renderer(
    mode: LayoutMode, prompt: PreparedPrompt, contracts: Mapping[WorkerId, WorkerContract]
) -> bool:
    """Whether `prompt` should be foreseen by the renderer, where there is one.

    contracts: of the pool, as last seen; while none is known the registry is believed.
    """
    if not prompt.media or mode in ("registry", "off"):
        return False
    if any(item.identity_mode == "uuid" for item in prompt.media):
        return False  # the client's name is the identity, and there may be nothing to render
    if mode == "renderer":
        return True
    if not prompt.is_exact:
        return not _ITS_OWN_REFUSALS & set(prompt.reasons)
    layouts = [layout for contract in contracts.values() for layout in contract.layouts]
    return bool(contracts) and not any(one.exact and one.fingerprint == prompt.layout for one in layouts)


class LayoutSource:
    """One per ingress replica. renderer: None where none is configured.

    Prometheus: `ray_sightline_renderer_requests` by model and outcome, `ray_sightline_renderer_ms` by model.
    """

    def __init__(
        self,
        mode: LayoutMode,
        model: str,
        renderer: DeploymentHandle[Any] | None = None,
        *,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode = mode
        self._model = model
        self._renderer = renderer
        self._timeout_s = timeout_s
        self._clock = clock
        self._paused_until = 0.0
        self.costs = RendererCosts()
        self._outcomes = Counter(
            "sightline_renderer_requests",
            description="Requests that were given to the engine's renderer, by outcome.",
            tag_keys=("model", "outcome"),
        )
        self._times = Histogram(
            "sightline_renderer_ms",
            description="Milliseconds that requests waited for the engine's renderer.",
            boundaries=_BOUNDS_MS,
            tag_keys=("model",),
        )

    def would_render(self, prompt: PreparedPrompt, contracts: Mapping[WorkerId, WorkerContract]) -> bool:
        return self._renderer is not None and wants_renderer(self._mode, prompt, contracts)

    def without_renderer(self, prompt: PreparedPrompt) -> PreparedPrompt:
        """The prompt as this mode has it where no renderer is asked."""
        is_off = self._mode == "off" and prompt.media
        return text_prefix(prompt, DegradeReason.LAYOUT_OFF) if is_off else prompt

    async def rendered(self, prompt: PreparedPrompt, request: RenderRequest, payload: Any) -> PreparedPrompt:
        """The prompt as the renderer foresees it; less than exact and by name where it does not. Never
        raises for a renderer that fails."""
        if self._clock() < self._paused_until:
            return self._degraded(prompt, DegradeReason.RENDERER_UNAVAILABLE)
        began = self._clock()
        try:
            answer = await self._ask(request, payload)
        except (RayError, RayServeException, TimeoutError) as error:
            log.warning("the renderer does not answer: %s: %s", type(error).__name__, str(error)[:200])
            self._paused_until = self._clock() + PAUSE_S
            return self._degraded(prompt, DegradeReason.RENDERER_UNAVAILABLE)
        self._note_time((self._clock() - began) * 1000)
        if isinstance(answer, RenderRefused):
            log.debug("the renderer refuses a request: %s", answer.detail)
            return self._degraded(prompt, DegradeReason.RENDERER_REFUSED)
        try:
            result = rendered_prompt(prompt, answer)
        except ValueError as error:
            log.warning("%s", error)
            return self._degraded(prompt, DegradeReason.PLACEHOLDER_MISMATCH)
        self.costs.rendered += 1
        self._outcomes.inc(1, tags={"model": self._model, "outcome": "rendered"})
        return result

    async def _ask(self, request: RenderRequest, payload: Any) -> Rendered | RenderRefused:
        assert self._renderer is not None
        response = self._renderer.render.remote(request, payload)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer: Rendered | RenderRefused = await response
                return answer
        except TimeoutError:
            with contextlib.suppress(Exception):  # Serve (2.60) raises where a call was not assigned yet
                response.cancel()
            raise

    def _degraded(self, prompt: PreparedPrompt, reason: DegradeReason) -> PreparedPrompt:
        is_unavailable = reason is DegradeReason.RENDERER_UNAVAILABLE
        if is_unavailable:
            self.costs.unavailable += 1
        else:
            self.costs.refused += 1
        outcome = "unavailable" if is_unavailable else "refused"
        self._outcomes.inc(1, tags={"model": self._model, "outcome": outcome})
        if self._mode == "renderer":
            return text_prefix(prompt, reason)
        # What the registry knows of the prompt's beginning stays.
        return replace(prompt, reasons=tuple(dict.fromkeys((*prompt.reasons, reason))))

    def _note_time(self, ms: float) -> None:
        self.costs.total_ms += ms
        self._times.observe(ms, tags={"model": self._model})
