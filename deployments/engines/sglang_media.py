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
from functools import partial
from typing import Any

from PIL import Image

from processors import FamilyLayout, ModelFiles, Shape
from router.pads import pad_values
from sightline_types import ImageSize, KeyScheme, MediaId, Modality, VideoShape

__all__ = [
    "MediaKeys",
    "item_pads",
    "matching_scheme",
    "probe_media_keys",
    "probe_prompt",
    "request_fields",
    "run_processor",
]

log = logging.getLogger("sightline.deployments")

#: Any identity will do; this one has no two equal halves and its highest bit set.
PROBE_ID = MediaId(0xC0FFEE_0123456789)
PROBE_SIZE = ImageSize(64, 64)
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
    unknown = partial(MediaKeys, KeyScheme.SGLANG_SINGLE, False)
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
        output = await run_processor(processor, token_ids, [PROBE_SIZE])
        if not hasattr(output, "padded_input_ids"):
            return ""  # a release without early padding
        # Some requests of a model take the path and others do not, hence whether or not this one did.
        _drop_early_pads(processor)
        output = await run_processor(processor, token_ids, [PROBE_SIZE])
    except (ValueError, NotImplementedError) as error:
        return f"the model's processor in this SGLang refuses our identities: {error}"
    if output.padded_input_ids is None:
        return ""
    return "this SGLang pads pictures before it takes our identities, and cannot be kept from it"


async def run_processor(processor: Any, token_ids: Sequence[int], sizes: Sequence[ImageSize]) -> Any:
    """What the engine's own processor makes of a prompt with pictures of these sizes.

    Raises:
        ValueError: the processor refuses it.
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    pictures = [Image.new("RGB", (size.width, size.height)) for size in sizes]
    request = GenerateReqInput(input_ids=list(token_ids), image_data=pictures)
    if "mm_hashes" in request_fields():
        request.mm_hashes = [PROBE_ID.hex] * len(pictures)
    return await processor.process_mm_data_async(
        image_data=pictures,
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
    """Text, then each item's placeholder, as the family's templates frame it, and text: SGLang takes no
    placeholder at a prompt's very start, and releases before 0.5.20 none without its frame.

    The text is tokenized letter by letter, so that an engine that tokenizes it again is found out.
    """
    encode = partial(files.tokenizer.encode, add_special_tokens=False)
    text: list[int] = [token for letter in "the same" for token in encode(letter)]
    prompt = list(text)
    for shape in shapes:
        modality = Modality.VIDEO if isinstance(shape, VideoShape) else Modality.IMAGE
        before, after = layout.frames.get(modality, ("", ""))
        prompt += [*encode(before), layout.placeholders[modality], *encode(after), *text]
    return prompt
