"""How a family lays one media item out in the prompt, and the expansion of a whole prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sightline_types import ImageSize

__all__ = ["Expansion", "ImageLayout", "PlacedItem", "SizeRefused", "expand"]


class SizeRefused(ValueError):
    """The model's own processor raises on a picture of this size: no layout exists."""


class ImageLayout(Protocol):
    """The layout of a family's images, exact to the token. Immutable."""

    @property
    def family(self) -> str:
        """config.json's model_type."""

    @property
    def placeholder_id(self) -> int:
        """The token that stands for one image in the unexpanded prompt."""

    @property
    def fingerprint(self) -> str:
        """Equal where, and only where, two layouts have equal parameters."""

    def num_tokens(self, size: ImageSize) -> int:
        """Positions that an image takes in the expanded prompt, start and end tokens included.

        Raises:
            SizeRefused: the request would fail on the engine.
        """

    def replacement(self, size: ImageSize) -> npt.NDArray[np.int64]:
        """The ids that stand in the placeholder's place: shape (num_tokens(size),).

        Raises:
            SizeRefused: as `num_tokens`.
        """


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """Where the item with this index (in prompt order) lies in the expanded prompt."""

    index: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Expansion:
    """An expanded prompt.

    token_ids: shape (n,), int64. placed: the items that were replaced, by offset.
    exact_until: position of the first placeholder that was left as it is; n where there is none.
    """

    token_ids: npt.NDArray[np.int64]
    placed: tuple[PlacedItem, ...]
    exact_until: int


def expand(
    token_ids: Sequence[int],
    placeholder_id: int,
    replacements: Sequence[npt.NDArray[np.int64] | None],
) -> Expansion:
    """Put each item's replacement in the place of its placeholder, in order.

    replacements: one per placeholder in `token_ids`; None leaves that placeholder as it is.

    Raises:
        ValueError: there are more or fewer placeholders than replacements.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    positions = np.flatnonzero(ids == placeholder_id)
    if len(positions) != len(replacements):
        raise ValueError(f"{len(positions)} placeholders for {len(replacements)} media items")
    pieces, placed, first_inexact = [], [], None
    done, length = 0, 0
    for index, (position, replacement) in enumerate(zip(positions.tolist(), replacements, strict=True)):
        length += position - done
        item = ids[position : position + 1] if replacement is None else replacement
        pieces += [ids[done:position], item]
        if replacement is None:
            first_inexact = length if first_inexact is None else first_inexact
        else:
            placed.append(PlacedItem(index, length, len(item)))
        length += len(item)
        done = position + 1
    expanded = np.concatenate([*pieces, ids[done:]])
    return Expansion(expanded, tuple(placed), len(expanded) if first_inexact is None else first_inexact)
