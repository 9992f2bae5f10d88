"""vLLM's own renderer without an engine: what vLLM would make of a request, for any family it knows.

Checked with vLLM 0.32. It runs the model's processor, so it costs what the engine's own preprocessing
costs; no weights are loaded and no GPU is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from deployments.config import EngineConfig
from deployments.engines.vllm_args import engine_args, engine_environment
from deployments.engines.vllm_media import multi_modal_data
from deployments.media import DecodedMedia
from deployments.rendered import Rendered, RenderedItem, RenderRefused, RenderRequest
from sightline_types import EmbedRun, LayoutContract, MediaId, Modality

__all__ = ["VllmRenderer", "renderer_contract", "renderer_fingerprint"]


class VllmRenderer:
    """One model's renderer. Safe for requests at the same time: vLLM renders on threads of its own."""

    def __init__(self, renderer: Any, model_config: Any) -> None:
        self._renderer = renderer
        self._model_config = model_config
        self._fingerprint = renderer_fingerprint(model_config)

    @classmethod
    def start(cls, config: EngineConfig) -> VllmRenderer:
        """Load the model's configuration and processor; some tens of seconds.

        Raises:
            ValueError: the model takes no media, so there is nothing to render.
        """
        for name, value in engine_environment(config).items():
            os.environ.setdefault(name, value)
        from vllm.renderers import renderer_from_config

        vllm_config = _config(engine_args(config))
        if not vllm_config.model_config.is_multimodal_model:
            raise ValueError(f"{config.model} takes no media: set renderer_replicas to 0")
        return cls(renderer_from_config(vllm_config), vllm_config.model_config)

    async def render(self, request: RenderRequest, media: Sequence[DecodedMedia]) -> Rendered | RenderRefused:
        """media: decoded, one for each of the request's."""
        from vllm.exceptions import VLLMClientError
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        data = multi_modal_data(request.media, media, {})
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.token_ids), "multi_modal_data": data}
        if request.mm_processor_kwargs:
            prompt["mm_processor_kwargs"] = request.mm_processor_kwargs
        try:
            parsed = parse_model_prompt(self._model_config, prompt)
            # The cache of a renderer beside an engine would leave out what it has sent before.
            (made,) = await self._renderer.render_cmpl_async(
                [parsed], self._renderer.default_cmpl_tok_params, skip_mm_cache=True
            )
        except (VLLMClientError, ValueError, TypeError) as error:
            return RenderRefused(f"{type(error).__name__}: {error}"[:300])
        return Rendered(
            token_ids=np.asarray(made["prompt_token_ids"], dtype="<i4").tobytes(),
            items=tuple(self._items(made, data, request.mm_processor_kwargs)),
            layout=self._fingerprint,
        )

    def _items(self, made: Mapping[str, Any], data: Mapping[str, Any], kwargs: dict[str, Any]) -> list[Any]:
        ids = {
            modality: [MediaId.from_engine(hashed) for hashed in hashes]
            for modality, hashes in made["mm_hashes"].items()
        }
        keys = self._key_ids(ids, data, kwargs)
        return [
            RenderedItem(
                Modality(modality), int(place.offset), int(place.length), media_id, key_id, _embeds(place)
            )
            for modality, places in made["mm_placeholders"].items()
            for place, media_id, key_id in zip(places, ids[modality], keys[modality], strict=True)
        ]

    def _key_ids(
        self, ids: dict[str, list[MediaId]], data: Mapping[str, Any], kwargs: dict[str, Any]
    ) -> dict[str, list[MediaId]]:
        """How the engine will name items that are given these identities: its own function says it."""
        if not kwargs:
            return ids
        from vllm.multimodal.processing.inputs import ProcessorInputs

        uuids = {modality: [one.engine_uuid for one in known] for modality, known in ids.items()}
        info = self._renderer.get_mm_processor().info
        parsed = info.parse_mm_data(dict(data))
        inputs = ProcessorInputs([], parsed, uuids, hf_processor_mm_kwargs=kwargs)
        hashes = inputs.get_mm_hashes(info.model_id, info.ctx.get_mm_config().mm_hasher_algorithm)
        return {modality: [MediaId.from_engine(one) for one in named] for modality, named in hashes.items()}

    def shutdown(self) -> None:
        self._renderer.shutdown()


def renderer_contract(model_config: Any) -> LayoutContract:
    """What an engine promises about prompts that a renderer of the same fingerprint has foreseen."""
    family = str(model_config.hf_config.model_type)
    return LayoutContract(family, renderer_fingerprint(model_config), True, detail="vLLM's own renderer")


def renderer_fingerprint(model_config: Any) -> str:
    """Equal where two vLLM processes render alike: version, model, and the arguments that rendering reads."""
    import transformers
    import vllm

    media = model_config.multimodal_config
    read = (
        vllm.__version__,
        transformers.__version__,
        model_config.model,
        model_config.revision,
        model_config.max_model_len,
        media.mm_processor_kwargs,
        media.media_io_kwargs,
        media.video_pruning_rate,
    )
    return f"vllm_renderer/1:{vllm.__version__}:{xxhash.xxh3_64_hexdigest(repr(read).encode())}"


def _config(args: Mapping[str, Any]) -> Any:
    """As `vllm launch render` makes it: no device, no weights, no KV cache."""
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    typed = {name: value for name, value in args.items() if name != "kv_events_config"}
    model_config = AsyncEngineArgs(**typed).create_model_config()
    model_config.quantization = None
    return VllmConfig(model_config=model_config)


def _embeds(place: Any) -> tuple[EmbedRun, ...]:
    if place.is_embed is None:
        return ()
    edges = np.diff(np.asarray(place.is_embed, dtype=np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    return tuple(EmbedRun(start, end - start) for start, end in zip(starts, ends, strict=True))
