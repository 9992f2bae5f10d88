"""What a vLLM worker promises at registration, read off the installed packages and the running engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from transformers import AutoImageProcessor

from processors import FamilyLayout, ModelFiles, Refusal, layout_for
from sightline_types import DegradeReason, ImageSize, LayoutContract, Modality

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
    return (_compare(registry, processor),)


def _compare(layout: FamilyLayout, processor: Any) -> LayoutContract:
    fingerprint = layout.fingerprint({Modality.IMAGE})
    for size in PROBE_SIZES:
        ours, theirs = _our_count(layout, size), _their_count(processor, size)
        if ours != theirs:
            detail = f"at {size} the installed processor makes {theirs} tokens, the registry {ours}"
            log.warning("family %s is not exact here: %s", layout.family, detail)
            reason = DegradeReason.CONTRACT_MISMATCH
            return LayoutContract(layout.family, fingerprint, False, reason, detail)
    return LayoutContract(layout.family, fingerprint, True)


def _our_count(layout: FamilyLayout, size: ImageSize) -> int | None:
    plan = layout.try_replacement(size)
    return None if isinstance(plan, Refusal) else len(plan.ids)


def _their_count(processor: Any, size: ImageSize) -> int | None:
    """None where the processor refuses the size."""
    try:
        patches = processor.get_number_of_image_patches(size.height, size.width, {})
    except ValueError:
        return None
    return int(patches) // int(processor.merge_size) ** 2
