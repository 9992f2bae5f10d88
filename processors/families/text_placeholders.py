"""Placeholders that are text, and no token: vLLM looks for their ids, and failing that for the text itself.

A text beside other characters may be tokenized otherwise than alone (`<image>` before a line's end). Where
one item's ids are not found, vLLM (0.32, `_apply_prompt_updates`) decodes the whole prompt, replaces in
the text, and tokenizes all of it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from processors.layout import Expansion, PlacedItem, Refusal, Replacement

__all__ = ["expand_text"]


def expand_text(
    tokenizer: PreTrainedTokenizerBase | None,
    token_ids: Sequence[int],
    placeholder: str,
    replacements: Sequence[Replacement | Refusal],
    soft_id: int,
) -> Expansion:
    """Put each replacement in the place of its text; the prompt is exact up to the first refused item.

    soft_id: what the encoder fills; it stands between other special tokens only.

    Raises:
        ValueError: there are more or fewer placeholders than items, or no tokenizer to tell.
    """
    if tokenizer is None:
        raise ValueError("the placeholder is text, and the model's files have no tokenizer")
    ids, target = list(token_ids), _encoded(tokenizer, placeholder)
    starts = _all_of(ids, target)
    if len(starts) == len(replacements):
        edges = [0, *[edge for start in starts for edge in (start, start + len(target))], len(ids)]
        return _joined([ids[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)], replacements, target)
    pieces = str(tokenizer.decode(ids)).split(placeholder)
    if len(pieces) != len(replacements) + 1:
        raise ValueError(f"{len(pieces) - 1} placeholders for {len(replacements)} media items")
    return _retokenized(tokenizer, pieces, placeholder, replacements, soft_id)


def _joined(
    pieces: Sequence[Sequence[int]], replacements: Sequence[Replacement | Refusal], target: Sequence[int]
) -> Expansion:
    ids, placed = list(pieces[0]), list[PlacedItem]()
    first_inexact: int | None = None
    for index, (item, piece) in enumerate(zip(replacements, pieces[1:], strict=True)):
        if isinstance(item, Refusal):
            first_inexact = len(ids) if first_inexact is None else first_inexact
            ids += target
        else:
            placed.append(PlacedItem(index, len(ids), len(item.ids), item.embeds))
            ids += item.ids.tolist()
        ids += piece
    exact_until = len(ids) if first_inexact is None else first_inexact
    return Expansion(np.array(ids, dtype=np.int64), tuple(placed), exact_until)


def _retokenized(
    tokenizer: PreTrainedTokenizerBase,
    pieces: Sequence[str],
    placeholder: str,
    replacements: Sequence[Replacement | Refusal],
    soft_id: int,
) -> Expansion:
    """What is found again in the new ids, in order, is placed; a refused item ends what is exact."""
    text, known, rest = pieces[0], list[Replacement](), ""
    for number, (item, piece) in enumerate(zip(replacements, pieces[1:], strict=True)):
        if isinstance(item, Refusal):
            rest = placeholder + placeholder.join(pieces[number + 1 :])
            break
        known.append(item)
        text += str(tokenizer.decode(_folded(item, soft_id))) + piece
    ids, unfolded = _encoded(tokenizer, text), list[int]()
    placed, done = list[PlacedItem](), 0
    for index, item in enumerate(known):
        folded = _folded(item, soft_id)
        at = _find(ids, folded, done)
        if at is None:
            raise ValueError(f"item {index} is not found again in the prompt tokenized anew")
        unfolded += ids[done:at]
        placed.append(PlacedItem(index, len(unfolded), len(item.ids), item.embeds))
        unfolded += item.ids.tolist()
        done = at + len(folded)
    unfolded += ids[done:]
    exact_until = len(unfolded)
    unfolded += _encoded(tokenizer, rest) if rest else []
    return Expansion(np.array(unfolded, dtype=np.int64), tuple(placed), exact_until)


def _folded(item: Replacement, soft_id: int) -> list[int]:
    """Without the run that the encoder fills: thousands of tokens that change nothing around them."""
    return [token for token in item.ids.tolist() if token != soft_id]


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _all_of(ids: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Where `wanted` stands in `ids`, leftmost first, not overlapping."""
    found, at = list[int](), _find(ids, wanted, 0)
    while at is not None:
        found.append(at)
        at = _find(ids, wanted, at + len(wanted))
    return found


def _find(ids: Sequence[int], wanted: Sequence[int], start: int) -> int | None:
    first, length = wanted[0], len(wanted)
    for at in range(start, len(ids) - length + 1):
        if ids[at] == first and list(ids[at : at + length]) == list(wanted):
            return at
    return None
