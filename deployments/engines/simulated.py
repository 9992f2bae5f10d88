"""The adapter of the simulated engine: everything but the weights is real.

It takes what vLLM would be given, and schedules, caches, evicts and publishes as vLLM (0.32) does; its steps
take the time that a profile says, and its words are made up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from deployments.config import EngineConfig
from deployments.engines.base import ServingEngine
from deployments.engines.ports import claim_ports
from deployments.engines.simulated_clock import EngineClock, Progress
from deployments.engines.simulated_prompt import PromptLayouter, ScheduledRequest, num_embeds
from deployments.engines.simulated_publisher import SimulatedPublisher
from deployments.protocol import Delta, EngineMessage, EngineRequest, Failed, Finished
from processors import FamilyLayout, LayoutOptions, ModelFiles, Replacement
from router import keys
from router.relay import EventSource
from sightline_types import (
    DegradeReason,
    EngineLoad,
    ImageSize,
    KeyScheme,
    LayoutContract,
    Modality,
    WorkerContract,
)
from simulation.engine import SimulatedEngine
from simulation.errors import RequestRefused
from simulation.spec import EngineSpec

__all__ = ["SimulatedServingEngine"]

#: Whose rules are simulated.
MODELLED = "vllm 0.32"
DEFAULT_MAX_MODEL_LEN = 32_768
DEFAULT_BLOCK_SIZE = 16
#: Where families reach the most tokens: by area, or by the number of tiles along one side.
LARGE_PICTURES = tuple(
    ImageSize(width, height)
    for width, height in ((1024, 1024), (4096, 4096), (8192, 8192), (8192, 4096), (4096, 8192))
)


class SimulatedServingEngine(ServingEngine):
    """A `SimulatedEngine` on this replica's event loop."""

    def __init__(
        self,
        config: EngineConfig,
        spec: EngineSpec,
        layouter: PromptLayouter,
        files: ModelFiles,
        publisher: SimulatedPublisher | None,
    ) -> None:
        self._config = config
        self._spec = spec
        self._layouter = layouter
        self._files = files
        self._publisher = publisher
        engine = SimulatedEngine(spec, config.simulation.resolved_profile)
        self._clock = EngineClock(
            engine, publisher, block_size=spec.block_size, speedup=config.simulation.speedup
        )
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def start(cls, config: EngineConfig) -> SimulatedServingEngine:
        """Read the model's small files; returns when it can serve, after a second or two.

        Raises:
            ValueError: a vocabulary without a word, or settings that no engine can have.
            OSError: no such model, or one without a tokenizer.
        """
        files = await asyncio.to_thread(ModelFiles.load, config.model)
        layouter = await asyncio.to_thread(_layouter, config, files)
        spec = _spec(config, layouter)
        await asyncio.to_thread(keys.warm_up)
        engine = cls(config, spec, layouter, files, _publisher(config))
        engine._clock.start()
        return engine

    async def contract(self) -> WorkerContract:
        return WorkerContract(
            engine="simulated",
            engine_version=MODELLED,
            block_size=self._spec.block_size,
            scheme=KeyScheme.VLLM,
            model=self._config.model,
            max_model_len=self._spec.max_model_len,
            publishes_events=self._publisher is not None,
            layouts=self._layouts(),
            kv_capacity_tokens=self._spec.kv_capacity_tokens,
            encoder_cache_tokens=self._spec.encoder_cache,
            keeps_media=True,
        )

    def _layouts(self) -> tuple[LayoutContract, ...]:
        """The registry is this engine's own processor: exact wherever it knows the family."""
        if not self._config.enable_multimodal:
            return ()
        layout, refused = self._layouter.layout, self._layouter.refused
        if layout is not None:
            taken = [m for m in sorted(layout.modalities) if self._takes(m)]
            sets = [(modality,) for modality in taken] + ([tuple(taken)] if len(taken) > 1 else [])
            return tuple(_exact(layout, modalities) for modalities in sets)
        reason = refused.reason if refused else DegradeReason.UNSUPPORTED_FAMILY
        detail = refused.detail if refused else "no layout is known for this family"
        return (LayoutContract(self._files.model_type, "", False, reason, detail),)

    def _takes(self, modality: Modality) -> bool:
        return modality is not Modality.VIDEO or self._config.video.decode != "off"

    def event_source(self) -> EventSource | None:
        return None if self._publisher is None else self._publisher.source

    async def generate(self, request: EngineRequest, media: Sequence[Any]) -> AsyncGenerator[EngineMessage]:
        """media: shapes, see `MediaShapes`."""
        scheduled = self._layouter.schedule(request, media)
        if not isinstance(scheduled, ScheduledRequest):
            yield scheduled
            return
        try:
            # Closed at once when the caller goes away, not when it is collected: the engine aborts then.
            async with contextlib.aclosing(self._clock.serve(scheduled)) as steps:
                async for progress in steps:
                    for message in _messages(progress, scheduled, request.wants_prompt_ids):
                        yield message
        except RequestRefused as error:
            yield Failed(f"the model cannot take this input: {error}", 400)

    async def reset_prefix_cache(self) -> bool:
        return self._clock.clear()

    def load(self) -> EngineLoad | None:
        return self._clock.load()

    @property
    def is_dead(self) -> bool:
        return self._clock.death is not None

    async def check_health(self) -> None:
        if self._clock.death is not None:
            raise RuntimeError(f"the simulated engine stopped: {self._clock.death}")

    def shutdown(self) -> None:
        """For a thread beside the event loop that the engine runs in."""
        asyncio.run_coroutine_threadsafe(self._aclose(), self._loop).result()

    async def _aclose(self) -> None:
        await self._clock.aclose()
        if self._publisher is not None:
            await self._publisher.aclose()


def _layouter(config: EngineConfig, files: ModelFiles) -> PromptLayouter:
    max_model_len = config.max_model_len or files.max_model_len or DEFAULT_MAX_MODEL_LEN
    return PromptLayouter(
        files,
        LayoutOptions(max_model_len=max_model_len),
        block_size=config.block_size or DEFAULT_BLOCK_SIZE,
        max_model_len=max_model_len,
        default_output_tokens=config.simulation.default_output_tokens,
    )


def _spec(config: EngineConfig, layouter: PromptLayouter) -> EngineSpec:
    simulation = config.simulation
    # vLLM's own rule (`compute_mm_encoder_budget`): the largest item must fit.
    encoder = max(simulation.max_num_batched_tokens, largest_item(layouter.layout))
    return EngineSpec(
        block_size=layouter.block_size,
        num_blocks=simulation.num_blocks,
        max_num_seqs=simulation.max_num_seqs,
        max_num_batched_tokens=simulation.max_num_batched_tokens,
        max_model_len=layouter.max_model_len,
        encoder_budget_tokens=simulation.encoder_budget_tokens or encoder,
        encoder_cache_tokens=simulation.encoder_cache_tokens or encoder,
        enable_prefix_caching=simulation.enable_prefix_caching,
    )


def largest_item(layout: FamilyLayout | None) -> int:
    """Encoder tokens of the largest picture that the layout knows, among those tried."""
    plans = layout.replacements(LARGE_PICTURES) if layout is not None else ()
    return max((num_embeds(plan) for plan in plans if isinstance(plan, Replacement)), default=0)


def _publisher(config: EngineConfig) -> SimulatedPublisher | None:
    simulation = config.simulation
    if not (simulation.publishes_events and simulation.enable_prefix_caching):
        return None
    ports = claim_ports(config.kv_events_port_base) if config.kv_events_port_base else None
    return SimulatedPublisher(ports, simulation.replay_batches)


def _exact(layout: FamilyLayout, modalities: tuple[Modality, ...]) -> LayoutContract:
    family = layout.family if modalities == (Modality.IMAGE,) else f"{layout.family}+{'+'.join(modalities)}"
    return LayoutContract(family, layout.fingerprint(modalities), True)


def _messages(progress: Progress, scheduled: ScheduledRequest, wants_prompt_ids: bool) -> list[EngineMessage]:
    said = scheduled.answer
    messages: list[EngineMessage] = []
    if progress.end > progress.start:
        token_ids = tuple(said.token_ids[progress.start : progress.end].tolist())
        messages.append(Delta(said.part(progress.start, progress.end), token_ids))
    if progress.is_finished:
        messages.append(_finished(progress, scheduled, wants_prompt_ids))
    return messages


def _finished(progress: Progress, scheduled: ScheduledRequest, wants_prompt_ids: bool) -> Finished:
    return Finished(
        finish_reason=scheduled.answer.finish_reason,
        prompt_tokens=scheduled.request.prompt_tokens,
        completion_tokens=progress.end,
        cached_tokens=progress.cached_tokens,
        stop_reason=scheduled.answer.stop_reason,
        prompt_token_ids=tuple(scheduled.prompt_ids.tolist()) if wants_prompt_ids else (),
    )
