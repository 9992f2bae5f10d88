"""Whether this SGLang keys media by our identities, and how: asked of the installed release at start.

A release is not believed by its number. Its own code pads a dummy item, and a picture is run through its
processor; nothing reaches the scheduler.

    0.5.12 and older    a request takes no `mm_hashes`
    0.5.13 to 0.5.22    one pad value an item
    0.5.23              four wide pad values an item
    0.5.20 to 0.5.23    Qwen3-VL: the processor pads the prompt by SGLang's own hash before it takes the
                        caller's; the scheduler then looks for pads that are not there, and dies. The remedy
                        drops the early padding: the scheduler pads by the items' (the caller's) hashes.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from deployments.engines.sglang_video import ClipProcessor, ItemsMiscounted, clip_requests, foreseen_ids
from processors import FamilyLayout, LayoutOptions, ModelFiles, Shape, layout_for
from router.pads import pad_values
from sightline_types import (
    DegradeReason,
    ImageSize,
    KeyScheme,
    LayoutContract,
    MediaId,
    Modality,
    VideoShape,
)

__all__ = [
    "MediaKeys",
    "item_pads",
    "layouts",
    "matching_scheme",
    "probe_media_keys",
    "probe_prompt",
    "request_fields",
]

log = logging.getLogger("sightline.deployments")

#: Any identity will do; this one has no two equal halves and its highest bit set.
PROBE_ID = MediaId(0xC0FFEE_0123456789)
PROBE_SIZE = ImageSize(64, 64)
#: Slim, small, half-even, larger: what a processor's rounding shows in.
SIZES = tuple(
    ImageSize(width, height)
    for width, height in ((28, 28), (42, 70), (80, 48), (200, 200), (640, 480), (600, 10), (1081, 723))
)
MAX_PROMPT_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class MediaKeys:
    """How this engine keys media.

    scheme: of its pads; where none is known, one that no event will match.
    takes_hashes: whether our identities may be sent.
    doubt: why media earn no credit; empty where they are exact.
    """

    scheme: KeyScheme
    takes_hashes: bool
    doubt: str = ""

    @property
    def is_exact(self) -> bool:
        return not self.doubt


def matching_scheme(pads: Sequence[int], media_id: MediaId) -> KeyScheme | None:
    """The scheme whose pads of `media_id` these are."""
    schemes = (scheme for scheme in KeyScheme if scheme.has_pads)
    return next((scheme for scheme in schemes if pad_values(scheme, media_id) == tuple(pads)), None)


async def probe_media_keys(manager: Any, token_ids: Sequence[int]) -> MediaKeys:
    """Ask the running engine; applies the remedy where it is needed.

    manager: SGLang's `TokenizerManager`.
    token_ids: a prompt with one placeholder of a picture, text before and after it.
    """
    unknown = functools.partial(MediaKeys, KeyScheme.SGLANG_SINGLE, False)
    if "mm_hashes" not in request_fields():
        return unknown("this SGLang takes no mm_hashes; it is exact from 0.5.13 on")
    try:
        scheme = matching_scheme(_own_pads(PROBE_ID), PROBE_ID)
    except (ImportError, AttributeError, TypeError) as error:
        return unknown(f"this SGLang has no pad values where they are known to be: {error}")
    if scheme is None:
        return unknown("the pad values of this SGLang follow no known formula")
    doubt = await _fault(manager, token_ids)
    return unknown(doubt) if doubt else MediaKeys(scheme, True)


def request_fields() -> frozenset[str]:
    from sglang.srt.managers.io_struct import GenerateReqInput

    return frozenset(field.name for field in dataclasses.fields(GenerateReqInput))


def _own_pads(media_id: MediaId) -> tuple[int, ...]:
    from sglang.srt.managers.schedule_batch import Modality as SglangModality
    from sglang.srt.managers.schedule_batch import MultimodalDataItem

    return item_pads(MultimodalDataItem(modality=SglangModality.IMAGE), media_id)


def item_pads(item: Any, media_id: MediaId) -> tuple[int, ...]:
    """The pads that a release's `MultimodalDataItem` makes of an identity.

    Raises:
        AttributeError: it is of no form that is known here.
    """
    if hasattr(item, "set_hash"):
        item.set_hash(media_id.value)
    else:  # 0.5.13
        item.hash = media_id.value
        item.set_pad_value()
    wide = getattr(item, "pad_values", None)
    return tuple(wide) if wide else (item.pad_value,)


async def _fault(manager: Any, token_ids: Sequence[int]) -> str:
    """Why hashes must not be sent; empty where they may (now)."""
    processor = manager.mm_processor
    try:
        output = await run_processor(processor, token_ids, PROBE_SIZE)
        if not hasattr(output, "padded_input_ids"):
            return ""  # a release without early padding
        # Some requests of a model take the path and others do not, hence whether or not this one did.
        _drop_early_pads(processor)
        output = await run_processor(processor, token_ids, PROBE_SIZE)
    except (ValueError, NotImplementedError) as error:
        return f"the model's processor in this SGLang refuses our identities: {error}"
    if output.padded_input_ids is None:
        return ""
    return "this SGLang pads pictures before it takes our identities, and cannot be kept from it"


async def run_processor(processor: Any, token_ids: Sequence[int], size: ImageSize) -> Any:
    """What the engine's own processor makes of a prompt with a picture of this size.

    Raises:
        ValueError: the processor refuses it.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    picture = Image.new("RGB", (size.width, size.height))
    request = GenerateReqInput(input_ids=list(token_ids), image_data=[picture])
    if "mm_hashes" in request_fields():
        request.mm_hashes = [PROBE_ID.hex]
    return await processor.process_mm_data_async(
        image_data=[picture],
        audio_data=None,
        input_text=list(token_ids),
        request_obj=request,
        max_req_input_len=MAX_PROMPT_TOKENS,
    )


def _drop_early_pads(processor: Any) -> None:
    inner = processor.process_mm_data_async

    @functools.wraps(inner)
    async def process_mm_data_async(*args: Any, **kwargs: Any) -> Any:
        output = await inner(*args, **kwargs)
        if output is not None and getattr(kwargs.get("request_obj"), "mm_hashes", None):
            output.padded_input_ids = None
        return output

    processor.process_mm_data_async = process_mm_data_async


def probe_prompt(
    layout: FamilyLayout, files: ModelFiles, shapes: Sequence[Shape] = (PROBE_SIZE,)
) -> list[int]:
    """Text, then each item's placeholder and text: SGLang takes no placeholder at a prompt's very start.

    The text is tokenized letter by letter, so that an engine that tokenizes it again is found out.
    """
    letters = (files.tokenizer.encode(letter, add_special_tokens=False) for letter in "the same")
    text: list[int] = [token for letter in letters for token in letter]
    prompt = list(text)
    for shape in shapes:
        modality = Modality.VIDEO if isinstance(shape, VideoShape) else Modality.IMAGE
        prompt += [layout.placeholders[modality], *text]
    return prompt


async def layouts(
    processor: Any, files: ModelFiles, keys: MediaKeys, clips: ClipProcessor | None
) -> tuple[LayoutContract, ...]:
    """The layouts of requests with pictures, with clips, and with both, as this engine really makes them.

    clips: None where the engine is given none.
    """
    layout = layout_for(files, LayoutOptions(engine="sglang"))
    if layout is None or Modality.IMAGE not in layout.placeholders:
        reason = DegradeReason.UNSUPPORTED_FAMILY
        return (LayoutContract(files.model_type, "", False, reason, "no layout is known for this family"),)
    pictures = await _of_pictures(processor, layout, files, keys)
    contracts = [_contract(layout, (Modality.IMAGE,), keys, pictures)]
    if clips is not None and Modality.VIDEO in layout.modalities:
        detail = await _of_clips(processor, layout, files, keys, clips)
        contracts.append(_contract(layout, (Modality.VIDEO,), keys, detail))
        contracts.append(_contract(layout, (Modality.IMAGE, Modality.VIDEO), keys, pictures or detail))
    return tuple(contracts)


def _contract(
    layout: FamilyLayout, modalities: tuple[Modality, ...], keys: MediaKeys, detail: str
) -> LayoutContract:
    """detail: where this engine and the registry part; empty where they do not."""
    fingerprint = layout.fingerprint(modalities)
    family = layout.family if modalities == (Modality.IMAGE,) else f"{layout.family}+{'+'.join(modalities)}"
    if not keys.is_exact:
        return LayoutContract(family, fingerprint, False, DegradeReason.ENGINE_IDENTITY, keys.doubt)
    if detail:
        log.warning("family %s is not exact here: %s", family, detail)
        return LayoutContract(family, fingerprint, False, DegradeReason.CONTRACT_MISMATCH, detail)
    return LayoutContract(family, fingerprint, True)


async def _of_pictures(processor: Any, layout: FamilyLayout, files: ModelFiles, keys: MediaKeys) -> str:
    prompt = probe_prompt(layout, files)
    for size in SIZES if keys.is_exact else ():
        ours = foreseen_ids(layout, prompt, [size])
        output = await run_processor(processor, prompt, size)
        detail = _difference(ours, [int(token) for token in output.input_ids])
        if detail:
            return f"at {size} {detail}"
    return ""


async def _of_clips(
    processor: Any, layout: FamilyLayout, files: ModelFiles, keys: MediaKeys, clips: ClipProcessor
) -> str:
    for shapes in clip_requests(layout) if keys.is_exact else ():
        prompt = probe_prompt(layout, files, shapes)
        ours = foreseen_ids(layout, prompt, shapes)
        try:
            detail = _difference(ours, await clips.engine_ids(processor, prompt, shapes))
        except ItemsMiscounted as error:
            detail = str(error)
        if detail:
            return f"at {', '.join(map(str, shapes))} {detail}"
    return ""


def _difference(ours: list[int] | None, theirs: list[int] | None) -> str:
    """None: a refusal."""
    if ours == theirs:
        return ""
    if ours is None or theirs is None:
        refuses = "this engine refuses" if theirs is None else "this engine does not refuse"
        return f"{refuses}, unlike the registry"
    if len(theirs) == len(ours):
        return "this engine makes other tokens than the registry"
    return f"this engine makes {len(theirs)} tokens, the registry {len(ours)}"
