"""The layouts that a SGLang worker promises at registration, compared with its own installed processor.

The registry's layout is held against the tokens that SGLang's processor makes of a dozen pictures and clips;
what one refuses the other must refuse, and SGLang must count the items as the request does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from deployments.engines.sglang_media import MediaKeys, probe_prompt, run_processor
from deployments.engines.sglang_video import (
    ClipProcessor,
    ItemsMiscounted,
    check_count,
    clip_requests,
    foreseen_ids,
)
from processors import FamilyLayout, LayoutOptions, ModelFiles, Shape, layout_for
from sightline_types import DegradeReason, ImageSize, LayoutContract, Modality

__all__ = ["layouts"]

log = logging.getLogger("sightline.deployments")

_S = TypeVar("_S", bound=Shape)

#: Tiny, slim, half-even, refused by some, large: what a processor's rounding and limits show in. None is
#: huge: on a GPU SGLang may keep what it made of one until its scheduler asks, which here it never does.
PICTURES = tuple(
    ImageSize(width, height)
    for width, height in (
        (2, 5), (28, 28), (42, 70), (80, 48), (200, 200), (640, 480), (600, 10), (2000, 10), (10, 2000),
        (1081, 723), (4032, 24), (5000, 3), (1920, 1080), (3000, 2000),
    )
)  # fmt: skip
#: Several pictures in one request.
ALBUM = (ImageSize(640, 480), ImageSize(333, 127), ImageSize(64, 200))


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
    albums = (*((size,) for size in PICTURES), ALBUM) if keys.is_exact else ()
    pictures = await _parting(layout, files, albums, partial(_picture_ids, processor))
    contracts = [_contract(layout, (Modality.IMAGE,), keys, pictures)]
    if clips is not None and Modality.VIDEO in layout.modalities:
        requests = clip_requests(layout) if keys.is_exact else ()
        detail = await _parting(layout, files, requests, partial(clips.engine_ids, processor))
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


async def _parting(
    layout: FamilyLayout,
    files: ModelFiles,
    requests: Iterable[Sequence[_S]],
    engine_ids: Callable[[Sequence[int], Sequence[_S]], Awaitable[list[int] | None]],
) -> str:
    """Where the engine's prompts and the registry's part; empty where they do not.

    engine_ids: the prompt that the engine makes of unexpanded ids and items; None where it refuses one.
    """
    for shapes in requests:
        prompt = probe_prompt(layout, files, shapes)
        ours = foreseen_ids(layout, prompt, shapes)
        try:
            detail = _difference(ours, await engine_ids(prompt, shapes))
        except ItemsMiscounted as error:
            detail = str(error)
        if detail:
            return f"at {', '.join(map(str, shapes))} {detail}"
    return ""


async def _picture_ids(
    processor: Any, token_ids: Sequence[int], sizes: Sequence[ImageSize]
) -> list[int] | None:
    """The prompt that SGLang makes; None where it refuses a picture.

    Raises:
        ItemsMiscounted: SGLang counts other items, and would drop all identities.
    """
    try:
        output = await run_processor(processor, token_ids, sizes)
    except (ValueError, ArithmeticError, AssertionError, RuntimeError):
        return None
    check_count(output, sizes)
    return [int(token) for token in output.input_ids]


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
