"""The layouts that a vLLM worker promises at registration, compared with its own installed processor.

The registry's layout, built from the model's files and the engine's arguments, is held against what the
engine's processor makes of a dozen pictures and clips: ids, ranges and masks must be equal, and what one
refuses the other must refuse. Only then is the family exact on this worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from deployments.engines.vllm_probe import ProcessorRefused, Rendered
from processors import FamilyLayout, LayoutOptions, LayoutRefused, ModelFiles, Refusal, Shape, find_layout
from sightline_types import DegradeReason, ImageSize, LayoutContract, Modality, VideoShape

__all__ = ["Processor", "layout_contracts", "probe_prompt"]

log = logging.getLogger("sightline.deployments")

#: Slim, tiny, huge, half-even.
PICTURES = tuple(
    ImageSize(width, height)
    for width, height in (
        (2, 5), (28, 28), (42, 70), (80, 48), (200, 200), (640, 480), (2000, 10),
        (10, 2000), (1920, 1080), (1081, 1923), (6000, 4000), (4032, 24), (5000, 3),
    )
)  # fmt: skip

#: Odd and even counts, sides under a token's (transformers before 5.15 refuses them), times that round,
#: a frame alone.
CLIPS = (
    VideoShape(ImageSize(64, 48), 4, 30.0, (0, 20, 39, 59), 60),
    VideoShape(ImageSize(100, 72), 5, 25.0, (0, 9, 19, 28, 38), 39),
    VideoShape(ImageSize(640, 360), 7, 29.97, (0, 50, 100, 150, 200, 250, 299), 300),
    VideoShape(ImageSize(16, 48), 2, 50.0, (3828, 3877), 3878),
    VideoShape(ImageSize(2000, 10), 3, 12.0, (0, 1, 2), 3),
    VideoShape(ImageSize(320, 240), 1, 30.0, (0,), 1),
)

#: Several pictures in one request.
ALBUM: tuple[Shape, ...] = (ImageSize(640, 480), ImageSize(333, 127), ImageSize(64, 200))


class Processor(Protocol):
    """The installed processor: `deployments.engines.vllm_probe.InstalledProcessor`."""

    def takes(self, modality: Modality) -> bool: ...
    def render(self, token_ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered: ...


def layout_contracts(
    files: ModelFiles, options: LayoutOptions, processor: Processor
) -> tuple[LayoutContract, ...]:
    """One contract for requests with pictures, one for those with clips, one for both.

    options: as this engine runs. Requests of a modality that the engine does not take have none.
    """
    try:
        layout = find_layout(files, options)
    except LayoutRefused as error:
        return (LayoutContract(files.model_type, "", False, error.reason, error.detail),)
    if layout is None:
        reason = DegradeReason.UNSUPPORTED_FAMILY
        return (LayoutContract(files.model_type, "", False, reason, "no layout is known for this family"),)
    found = {m: _difference(layout, files, processor, m) for m in _shared(layout, processor)}
    contracts = [_contract(layout, (modality,), detail) for modality, detail in found.items()]
    if len(found) > 1:
        detail = next((detail for detail in found.values() if detail is not None), None)
        contracts.append(_contract(layout, tuple(found), detail))
    return tuple(contracts)


def _shared(layout: FamilyLayout, processor: Processor) -> list[Modality]:
    return [modality for modality in sorted(layout.modalities) if processor.takes(modality)]


def _contract(layout: FamilyLayout, modalities: tuple[Modality, ...], detail: str | None) -> LayoutContract:
    fingerprint = layout.fingerprint(modalities)
    family = layout.family if modalities == (Modality.IMAGE,) else f"{layout.family}+{'+'.join(modalities)}"
    if detail is None:
        return LayoutContract(family, fingerprint, True)
    log.warning("family %s is not exact here: %s", family, detail)
    return LayoutContract(family, fingerprint, False, DegradeReason.CONTRACT_MISMATCH, detail)


def _difference(
    layout: FamilyLayout, files: ModelFiles, processor: Processor, modality: Modality
) -> str | None:
    """The first request that comes out otherwise; None where all agree."""
    for shapes in _requests(layout, modality):
        ids = probe_prompt(layout, files, shapes)
        ours, theirs = _ours(layout, ids, shapes), _theirs(processor, ids, shapes)
        if ours != (theirs if isinstance(theirs, Rendered) else None):
            named = ", ".join(map(str, shapes))
            return f"at {named} the installed processor makes {_brief(theirs)}, the registry {_brief(ours)}"
    return None


def _requests(layout: FamilyLayout, modality: Modality) -> Iterator[tuple[Shape, ...]]:
    shapes: Sequence[Shape] = PICTURES if modality is Modality.IMAGE else CLIPS
    yield from ((shape,) for shape in shapes)
    if modality is Modality.IMAGE and not layout.holds_only_cold(ALBUM):
        yield ALBUM


def probe_prompt(layout: FamilyLayout, files: ModelFiles, shapes: Sequence[Shape]) -> list[int]:
    """A prompt with one placeholder a shape and text between. A placeholder that is text ends its line, as
    templates have it: its last token may then be another."""
    ids: list[int] = list(files.tokenizer.encode("a", add_special_tokens=False))
    for number, shape in enumerate(shapes, 1):
        modality = Modality.VIDEO if isinstance(shape, VideoShape) else Modality.IMAGE
        if modality in layout.placeholders:
            ids.append(layout.placeholders[modality])
        else:
            text = layout.placeholder_texts[modality].format(number=number) + "\n"
            ids += files.tokenizer.encode(text, add_special_tokens=False)
        ids += files.tokenizer.encode("b", add_special_tokens=False)
    return ids


def _ours(layout: FamilyLayout, ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered | None:
    plans = layout.replacements(shapes)
    if any(isinstance(plan, Refusal) for plan in plans):
        return None
    expansion = layout.expand(ids, plans)
    return Rendered(tuple(expansion.token_ids.tolist()), expansion.placed)


def _theirs(processor: Processor, ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered | ProcessorRefused:
    try:
        return processor.render(ids, shapes)
    except ProcessorRefused as error:
        return error


def _brief(rendered: Rendered | ProcessorRefused | None) -> str:
    if not isinstance(rendered, Rendered):
        return f"a refusal ({rendered})" if rendered else "a refusal"
    ranges = ", ".join(f"{item.offset}+{item.length}" for item in rendered.placed)
    return f"{len(rendered.token_ids)} tokens (ranges {ranges})"
