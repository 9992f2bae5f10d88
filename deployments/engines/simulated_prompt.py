"""From an engine request to what a simulated engine schedules: the prompt laid out, the answer, all keys.

The layout is made here once more, from what the files say, as a real engine's own processor would: the
engine's figures do not depend on what the ingress foresaw.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from deployments.engines.simulated_answer import Answer, Words, answer
from deployments.protocol import EngineMedia, EngineRequest, Failed, NotHeld
from processors import (
    FamilyLayout,
    LayoutOptions,
    LayoutRefused,
    ModelFiles,
    Refusal,
    Replacement,
    Shape,
    find_layout,
    identity_of_fields,
)
from router.keys import block_keys
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, TokenView
from simulation.requests import SimulatedMedia, SimulatedRequest
from simulation.wire import BlockContent

__all__ = ["PromptLayouter", "ScheduledRequest", "num_embeds"]

#: Items whose shapes are remembered, as vLLM's processor cache remembers what it made of them.
HELD_ITEMS = 65_536


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """content: of its blocks, as events tell it. prompt_ids: expanded."""

    request: SimulatedRequest
    content: BlockContent
    answer: Answer

    @property
    def prompt_ids(self) -> npt.NDArray[np.int64]:
        return self.content.token_ids[: self.request.prompt_tokens]


class PromptLayouter:
    """One per simulated engine.

    options: how this engine runs. max_model_len: tokens of prompt and answer.
    default_output_tokens: of an answer whose request names no limit.
    """

    def __init__(
        self,
        files: ModelFiles,
        options: LayoutOptions,
        *,
        block_size: int,
        max_model_len: int,
        default_output_tokens: int,
    ) -> None:
        self._files = files
        self._options = options
        self._spec = KeySpec(KeyScheme.VLLM, block_size)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self._default_output_tokens = default_output_tokens
        self._words = Words.of(files.tokenizer)
        self._shapes: OrderedDict[MediaId, Shape] = OrderedDict()
        self._layout: FamilyLayout | None = None
        self.refused: LayoutRefused | None = None
        try:
            self._layout = find_layout(files, options)
        except LayoutRefused as error:
            self.refused = error

    @property
    def layout(self) -> FamilyLayout | None:
        """None for a family that the registry does not know, and where `refused` says why."""
        return self._layout

    def schedule(
        self, request: EngineRequest, shapes: Sequence[Shape | None]
    ) -> ScheduledRequest | Failed | NotHeld:
        """Lay the request out and foretell its answer; `Failed` for what vLLM would refuse.

        shapes: one per item of `request.media`; None where it came without its file.
        """
        refusal = _unsupported(request)
        if refusal is not None:
            return Failed(refusal, 400)
        known = [self._known_shape(item, shape) for item, shape in zip(request.media, shapes, strict=True)]
        if any(shape is None for shape in known):
            return NotHeld()
        prompt = self._lay_out(request, known)
        if isinstance(prompt, str):
            return Failed(f"the model cannot take this input: {prompt}", 400)
        return self._with_answer(request, *prompt)

    def _known_shape(self, item: EngineMedia, shape: Shape | None) -> Shape | None:
        """What the first item with this identity was, as long as it is remembered: engines trust it."""
        known = self._shapes.get(item.media_id)
        if known is not None:
            self._shapes.move_to_end(item.media_id)
            return known
        if shape is not None:
            self._shapes[item.media_id] = shape
            if len(self._shapes) > HELD_ITEMS:
                self._shapes.popitem(last=False)
        return shape

    def _lay_out(
        self, request: EngineRequest, shapes: Sequence[Shape | None]
    ) -> tuple[npt.NDArray[np.int64], tuple[MediaSpan, ...]] | str:
        """The expanded prompt and its media, or why there is none."""
        if not request.media:
            ids = np.array(request.token_ids, dtype=np.int64)
            return self._too_long(len(ids)) or (ids, ())
        layout = self._layout_with(request.mm_processor_kwargs)
        if isinstance(layout, str):
            return layout
        plans = layout.replacements(shapes)
        for plan in plans:
            if isinstance(plan, Refusal):
                return plan.detail or plan.reason.value
        try:
            expansion = layout.expand(request.token_ids, plans)
        except ValueError as error:
            return str(error)
        names = [_engine_identity(item, request.mm_processor_kwargs) for item in request.media]
        spans = tuple(MediaSpan(p.offset, p.length, names[p.index], p.embeds) for p in expansion.placed)
        return self._too_long(len(expansion.token_ids)) or (expansion.token_ids, spans)

    def _layout_with(self, kwargs: Mapping[str, Any]) -> FamilyLayout | str:
        layout, refused = self._layout, self.refused
        if kwargs and layout is not None:
            merged = {**self._options.processor_kwargs, **kwargs}
            try:
                layout = find_layout(self._files, replace(self._options, processor_kwargs=merged))
            except LayoutRefused as error:
                layout, refused = None, error
        if layout is not None:
            return layout
        return refused.detail if refused else f"no layout is known for the family {self._files.model_type}"

    def _too_long(self, num_tokens: int) -> str | None:
        """vLLM's rule (`InputProcessor`): at least one token of the answer must fit, too."""
        if num_tokens == 0:
            return "the prompt is empty"
        if num_tokens < self.max_model_len:
            return None
        return (
            f"the prompt has {num_tokens} tokens, and the model takes {self.max_model_len} with the answer "
            "(max_model_len); shorten the messages or use smaller pictures"
        )

    def _with_answer(
        self, request: EngineRequest, prompt: npt.NDArray[np.int64], spans: tuple[MediaSpan, ...]
    ) -> ScheduledRequest:
        said = answer(
            self._words,
            _seed(prompt, spans),
            request.sampling,
            room=self.max_model_len - len(prompt),
            default_tokens=self._default_output_tokens,
        )
        tokens = np.concatenate([prompt, said.token_ids])
        salt = request.cache_salt or ""
        keyed = block_keys(TokenView(tokens, spans, len(tokens)), self._spec, salt=salt)
        simulated = SimulatedRequest(
            request_id=request.decision_id,
            prompt_tokens=len(prompt),
            output_tokens=len(said),
            keys=keyed.key_array(),
            media=tuple(
                SimulatedMedia(span.offset, span.length, span.media_id.value, span.num_embeds)
                for span in spans
            ),
        )
        return ScheduledRequest(simulated, BlockContent(tokens, spans, salt), said)


def num_embeds(item: Replacement) -> int:
    """Tokens that the item's encoder fills."""
    return sum(run.length for run in item.embeds) if item.embeds else len(item.ids)


def _unsupported(request: EngineRequest) -> str | None:
    sampling = request.sampling
    if sampling.logprobs is not None:
        return "the simulated engine has no logprobs; leave `logprobs` out"
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        return f"min_tokens is {sampling.min_tokens} and max_tokens {sampling.max_tokens}: lower the first"
    return None


def _engine_identity(item: EngineMedia, kwargs: Mapping[str, Any]) -> MediaId:
    """vLLM (0.32) gives an item that is processed with options of its own another identity."""
    if not kwargs:
        return item.media_id
    options = repr(sorted(kwargs.items())).encode()
    return identity_of_fields(b"simulated-options", [item.media_id.value.to_bytes(8, "big"), options])


def _seed(prompt: npt.NDArray[np.int64], spans: Sequence[MediaSpan]) -> int:
    """64 bits of all that the model would see."""
    digest = xxhash.xxh3_64(prompt.tobytes())
    for span in spans:
        digest.update(span.media_id.value.to_bytes(8, "big"))
    return digest.intdigest()
