"""How a family lays the media of a request out in the prompt: the interface, and the expansion.

A `FamilyLayout` is asked for a whole request at once, because some families share a budget among the
request's items. It answers item by item: a `Replacement`, or a `Refusal` by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sightline_types import DegradeReason, EmbedRun, ImageSize, Modality, VideoShape

__all__ = [
    "Expansion",
    "FamilyLayout",
    "LayoutOptions",
    "LayoutRefused",
    "PlacedItem",
    "Refusal",
    "Replacement",
    "Shape",
    "embed_runs",
    "expand",
    "modality_of",
    "run_of",
]

#: What a layout reads of an item.
Shape = ImageSize | VideoShape


class LayoutRefused(ValueError):
    """No exact layout exists for an item. reason: the name it degrades by."""

    def __init__(self, reason: DegradeReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """What changes a layout and is not in the model's files: the engine's name and its arguments.

    max_model_len: tokens; None where not known. video_pruning_rate: 0 to 1, vLLM's `evs` method.
    processor_kwargs: `mm_processor_kwargs`, engine-wide and of the request, merged.
    """

    engine: str = "vllm"
    max_model_len: int | None = None
    video_pruning_rate: float = 0.0
    processor_kwargs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replacement:
    """What stands in a placeholder's place.

    ids: shape (n,), int64. embeds: the positions that the item's encoder fills; empty where all.
    """

    ids: npt.NDArray[np.int64]
    embeds: tuple[EmbedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an item has no exact layout. num_tokens: what it may take in the prompt, where that is known."""

    reason: DegradeReason
    detail: str = ""
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """Where the item with this index (in prompt order) lies in the expanded prompt."""

    index: int
    offset: int
    length: int
    embeds: tuple[EmbedRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Expansion:
    """An expanded prompt.

    token_ids: shape (n,), int64. placed: the items that were replaced, by offset.
    exact_until: position of the first placeholder that was left as it is; n where there is none.
    """

    token_ids: npt.NDArray[np.int64]
    placed: tuple[PlacedItem, ...]
    exact_until: int


class FamilyLayout(ABC):
    """The layout of one model's media, exact to the token. Immutable; safe in several threads.

    family: config.json's model_type, or what stands for it.
    """

    family: str

    @property
    @abstractmethod
    def placeholders(self) -> Mapping[Modality, int]:
        """The token that stands for one item of a modality in the unexpanded prompt.

        A modality that is laid out but has no token of its own (its placeholder is text) is missing.
        """

    @property
    def placeholder_texts(self) -> Mapping[Modality, str]:
        """For modalities without a token of their own: the text, `{number}` counting the items from 1."""
        return {}

    @property
    def frames(self) -> Mapping[Modality, tuple[str, str]]:
        """What the family's own templates write before and after a placeholder, for those of text only."""
        return {}

    @property
    def engine_names(self) -> Mapping[Modality, str]:
        """What vLLM calls a modality, where it is not by its own name."""
        return {}

    @property
    def edges_are_areas(self) -> bool:
        """Whether the edges of the processor's `size` are pixels of a whole picture, and not of its sides."""
        return False

    @property
    def modalities(self) -> frozenset[Modality]:
        """What is laid out; an item of another modality is refused."""
        return frozenset(self.placeholders)

    @abstractmethod
    def parameters(self, modality: Modality) -> Mapping[str, object]:
        """Everything that the layout of this modality depends on, as short values."""

    @abstractmethod
    def replacement(self, shape: Shape) -> Replacement:
        """What one item becomes.

        Raises:
            LayoutRefused: the request would fail on the engine, or the item is not laid out exactly.
        """

    def fingerprint(self, modalities: Collection[Modality]) -> str:
        """Equal where, and only where, two layouts have equal parameters for these modalities."""
        parts = [self.family]
        for modality in sorted(set(modalities)):
            values = ",".join(f"{name}={value}" for name, value in self.parameters(modality).items())
            parts.append(f"{modality}({values})")
        return ":".join(parts)

    def replacements(self, shapes: Sequence[Shape | None]) -> tuple[Replacement | Refusal, ...]:
        """What each item of a request becomes, in prompt order; None is an item of unknown shape."""
        return tuple(self.try_replacement(shape) for shape in shapes)

    def holds_only_cold(self, shapes: Sequence[Shape | None]) -> bool:
        """Whether `replacements` is right only while the engine's processor cache holds none of the items.

        Where items share a budget, vLLM shares it among those that it processes together, and leaves out
        those that it knows. Or the engine takes several items for one.
        """
        return False

    def try_replacement(self, shape: Shape | None) -> Replacement | Refusal:
        """One item on its own, refusals included."""
        if shape is None:
            return Refusal(DegradeReason.SIZE_UNKNOWN)
        modality = modality_of(shape)
        if modality not in self.modalities:
            detail = f"no exact {modality} layout is known for {self.family}"
            return Refusal(DegradeReason.UNSUPPORTED_MODALITY, detail)
        try:
            return self.replacement(shape)
        except LayoutRefused as error:
            return Refusal(error.reason, error.detail)

    def expand(self, token_ids: Sequence[int], replacements: Sequence[Replacement | Refusal]) -> Expansion:
        """Put each replacement in the place of its placeholder; a refused item's stays as it is.

        Raises:
            ValueError: there are more or fewer placeholders than items.
        """
        return expand(token_ids, self.placeholders.values(), replacements)


def expand(
    token_ids: Sequence[int] | npt.NDArray[np.int64],
    placeholder_ids: Collection[int],
    replacements: Sequence[Replacement | Refusal],
) -> Expansion:
    """`FamilyLayout.expand` where every placeholder is one of `placeholder_ids`.

    Raises:
        ValueError: there are more or fewer placeholders in `token_ids` than replacements.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    is_placeholder = np.zeros(len(ids), dtype=bool)
    for token in set(placeholder_ids):
        is_placeholder |= ids == token
    positions = np.flatnonzero(is_placeholder)
    if len(positions) != len(replacements):
        raise ValueError(f"{len(positions)} placeholders for {len(replacements)} media items")
    pieces, placed, first_inexact = [], [], None
    done, length = 0, 0
    for index, (position, item) in enumerate(zip(positions.tolist(), replacements, strict=True)):
        length += position - done
        pieces.append(ids[done:position])
        if isinstance(item, Refusal):
            first_inexact = length if first_inexact is None else first_inexact
            pieces.append(ids[position : position + 1])
        else:
            placed.append(PlacedItem(index, length, len(item.ids), item.embeds))
            pieces.append(item.ids)
        length += len(pieces[-1])
        done = position + 1
    expanded = np.concatenate([*pieces, ids[done:]])
    return Expansion(expanded, tuple(placed), len(expanded) if first_inexact is None else first_inexact)


def modality_of(shape: Shape) -> Modality:
    return Modality.VIDEO if isinstance(shape, VideoShape) else Modality.IMAGE


def run_of(token_id: int, count: int) -> Replacement:
    """`count` times one token, all filled by the encoder."""
    return Replacement(np.full(count, token_id, dtype=np.int64))


def embed_runs(ids: npt.NDArray[np.int64], token_id: int) -> tuple[EmbedRun, ...]:
    """The runs of `token_id` in `ids`, as `Replacement.embeds` has them."""
    edges = np.diff((ids == token_id).astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return tuple(
        EmbedRun(start, end - start) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )
