"""Golden files of the families (tests/data/golden): what real processors made, and a layout to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from tiny_files import tiny_tokenizer
from transformers import PreTrainedTokenizerBase

from processors import FamilyLayout, LayoutOptions, ModelFiles, Refusal, layout_for
from sightline_types import ImageSize, VideoShape

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@cache
def golden(family: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{family}.json").read_text())
    return loaded


def files(
    config: dict[str, Any],
    preprocessor: dict[str, Any] | None = None,
    *,
    video: dict[str, Any] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> ModelFiles:
    return ModelFiles(config, preprocessor or {}, tokenizer or tiny_tokenizer(), video or {})


def known_layout(model: ModelFiles, **options: Any) -> FamilyLayout:
    layout = layout_for(model, LayoutOptions(**options))
    assert layout is not None
    return layout


def qwen(family: str, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any) -> FamilyLayout:
    """The layout of a Qwen golden file's own model."""
    meta = golden(family)["meta"]
    image = meta.get("processor_config") or meta["image_processor_config"]
    config = {"model_type": family, **meta["token_ids"]}
    video = meta.get("video_processor_config") or image
    return known_layout(files(config, image, video=video, tokenizer=tokenizer), **options)


def size_of(row: dict[str, Any]) -> ImageSize:
    return ImageSize(row["width"], row["height"])


def clip_of(row: dict[str, Any]) -> VideoShape:
    indices = tuple(row.get("frames_indices", ()))
    return VideoShape(size_of(row), row["num_frames"], row.get("fps"), indices, row.get("total_num_frames"))


def count(layout: FamilyLayout, shape: ImageSize | VideoShape) -> int | None:
    """None where the layout refuses."""
    (plan,) = layout.replacements([shape])
    return None if isinstance(plan, Refusal) else len(plan.ids)


def run_lengths(ids: Iterable[int]) -> list[list[int]]:
    values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return [[key, len(list(run))] for key, run in groupby(values)]


def differences(layout: FamilyLayout, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows of pictures whose count is another than the real processor's."""
    pairs = [(row, count(layout, size_of(row))) for row in rows]
    return [(row, ours) for row, ours in pairs if ours != (None if "error" in row else row["num_tokens"])]


def vocabulary(tokens: dict[str, int], bos_token: str | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer with just these special tokens at their real ids; other text is one token a character."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    taken = set(tokens.values())
    free = (i for i in range(400, 1000) if i not in taken)
    letters = {chr(code): next(free) for code in (10, *range(32, 127))}
    tokenizer = Tokenizer(models.WordLevel({"?": 399, **letters, **tokens}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos_token)
