"""What a vLLM worker promises at registration, read off the installed packages and the running engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from transformers import AutoImageProcessor

from processors import ImageLayout, ModelFiles, SizeRefused, layout_for, layout_from_processor
from sightline_types import DegradeReason, ImageSize, LayoutContract

__all__ = ["image_contracts"]

log = logging.getLogger("sightline.deployments")

#: Sizes at which the installed processor and the registry are compared: slim, tiny, huge, half-even.
PROBE_SIZES = tuple(
    ImageSize(width, height)
    for width, height in (
        (1, 1), (28, 28), (42, 70), (80, 48), (200, 200), (640, 480), (2000, 10),
        (10, 2000), (1920, 1080), (1081, 1923), (6000, 4000), (4032, 24),
    )
)  # fmt: skip


def image_contracts(
    model: str, engine_kwargs: Mapping[str, Any], *, trust_remote_code: bool = False
) -> tuple[LayoutContract, ...]:
    """The image layout that this worker's processor really makes; empty for a text-only model.

    engine_kwargs: the engine-wide `mm_processor_kwargs`, which may change every count.
    """
    files = ModelFiles.load(model)
    registry = layout_for(files)
    if registry is None:
        reason = DegradeReason.UNSUPPORTED_FAMILY
        return (LayoutContract(files.model_type, "", False, reason, "no layout is known for this family"),)
    if engine_kwargs:
        reason = DegradeReason.MM_PROCESSOR_KWARGS
        detail = f"engine-wide mm_processor_kwargs {sorted(engine_kwargs)}"
        return (LayoutContract(registry.family, "", False, reason, detail),)
    processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=trust_remote_code)
    installed = layout_from_processor(
        files.model_type,
        registry.placeholder_id,
        patch_size=int(processor.patch_size),
        merge_size=int(processor.merge_size),
        min_pixels=int(processor.size["shortest_edge"]),
        max_pixels=int(processor.size["longest_edge"]),
    )
    return (_compare(installed, processor),)


def _compare(layout: ImageLayout, processor: Any) -> LayoutContract:
    for size in PROBE_SIZES:
        ours, theirs = _our_count(layout, size), _their_count(processor, size)
        if ours != theirs:
            detail = f"at {size} the installed processor makes {theirs} tokens, the registry {ours}"
            log.warning("family %s is not exact here: %s", layout.family, detail)
            reason = DegradeReason.CONTRACT_MISMATCH
            return LayoutContract(layout.family, layout.fingerprint, False, reason, detail)
    return LayoutContract(layout.family, layout.fingerprint, True)


def _our_count(layout: ImageLayout, size: ImageSize) -> int | None:
    try:
        return layout.num_tokens(size)
    except SizeRefused:
        return None


def _their_count(processor: Any, size: ImageSize) -> int | None:
    """None where the processor refuses the size."""
    try:
        patches = processor.get_number_of_image_patches(size.height, size.width, {})
    except ValueError:
        return None
    return int(patches) // int(processor.merge_size) ** 2
