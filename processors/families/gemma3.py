"""Gemma-3: every picture is a fixed run of soft tokens in a frame, with an empty line before and after.

The vocabulary has tokens for one, two, three and four line ends, and vLLM merges those that meet, wherever
in the prompt they stand: where two pictures touch, their ranges share a token.
Source: `Gemma3MultiModalProcessor` of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from processors.families.source import Source
from processors.layout import Expansion, FamilyLayout, Refusal, Replacement, Shape, embed_runs
from sightline_types import Modality

__all__ = ["Gemma3Layout", "layout"]

_ARCHITECTURES = {"Gemma3ForConditionalGeneration": "gemma3"}


@dataclass(frozen=True)
class Gemma3Layout(FamilyLayout):
    """line_ends: the tokens of one, two, three and four of them. count: soft tokens of any picture."""

    family: str
    begin_id: int
    soft_id: int
    end_id: int
    line_ends: tuple[int, int, int, int]
    count: int

    @property
    def placeholders(self) -> Mapping[Modality, int]:
        return {Modality.IMAGE: self.begin_id}

    def parameters(self, modality: Modality) -> Mapping[str, object]:
        ids = (self.begin_id, self.soft_id, self.end_id, *self.line_ends)
        return {"ids": "/".join(map(str, ids)), "tokens": self.count}

    def replacement(self, shape: Shape) -> Replacement:
        empty_line = self.line_ends[1]
        soft = [self.soft_id] * self.count
        ids = np.array([empty_line, self.begin_id, *soft, self.end_id, empty_line], dtype=np.int64)
        return Replacement(ids, embed_runs(ids, self.soft_id))

    def expand(self, token_ids: Sequence[int], replacements: Sequence[Replacement | Refusal]) -> Expansion:
        """As `FamilyLayout.expand`, with line ends merged.

        Raises:
            ValueError: also for a line end right after a picture, where vLLM does not find it again.
        """
        expansion = super().expand(token_ids, replacements)
        one, two, three, four = self.line_ends
        for pair, merged in (((one, two), three), ((two, one), three), ((two, two), four)):
            last = {item.offset + item.length - 1 for item in expansion.placed}
            expansion, joined = _merged(expansion, pair, merged)
            if pair == (two, one) and last & {at - 1 for at in joined}:
                raise ValueError("a line end follows a picture, and vLLM's processor loses the picture then")
        return expansion


def _merged(expansion: Expansion, pair: tuple[int, int], token: int) -> tuple[Expansion, list[int]]:
    """Each `pair`, leftmost first, as one `token`; and the positions of the second of each."""
    ids = expansion.token_ids
    gone = _second_of(pair, ids)
    if not gone:
        return expansion, gone
    kept = ids.copy()
    kept[np.array(gone) - 1] = token

    def moved(position: int) -> int:
        return position - int(np.searchsorted(gone, position, side="right"))

    placed = tuple(replace(item, offset=moved(item.offset)) for item in expansion.placed)
    return Expansion(np.delete(kept, gone), placed, moved(expansion.exact_until)), gone


def _second_of(pair: tuple[int, int], ids: npt.NDArray[np.int64]) -> list[int]:
    found: list[int] = []
    for at in np.flatnonzero((ids[:-1] == pair[0]) & (ids[1:] == pair[1])).tolist():
        if not found or at > found[-1]:
            found.append(at + 1)
    return found


def layout(source: Source) -> Gemma3Layout | None:
    if source.named(_ARCHITECTURES) is None or source.options.engine == "sglang":
        return None
    settings = source.settings
    if (
        source.kwargs(Modality.IMAGE)
        or settings.get("do_pan_and_scan")
        or not settings.get("do_resize", True)
    ):
        return None
    model = source.number(source.config, "mm_tokens_per_image", 256)
    one, two, three, four = (source.token(text="\n" * count) for count in (1, 2, 3, 4))
    return Gemma3Layout(
        "gemma3",
        begin_id=source.token("boi_token_index", text="<start_of_image>"),
        soft_id=source.token("image_token_index", "image_token_id", text="<image_soft_token>"),
        end_id=source.token("eoi_token_index", text="<end_of_image>"),
        line_ends=(one, two, three, four),
        count=source.number(settings, "image_seq_length", model),
    )
