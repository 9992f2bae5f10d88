"""Layouts of the families, against golden values of the real processors (tests/data/golden)."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_files import IMAGE_PAD, PREPROCESSORS, tiny_tokenizer

from processors import ImageLayout, ModelFiles, SizeRefused, layout_for, layout_from_processor
from processors.families.qwen_vl import image_limits, resized
from processors.layout import expand
from sightline_types import ImageSize

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def golden(family: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{family}.json").read_text())
    return loaded


def files(config: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> ModelFiles:
    return ModelFiles(config, preprocessor or {}, tiny_tokenizer())


def golden_layout(family: str, kwargs: dict[str, Any] | None = None) -> ImageLayout:
    """The layout of the golden file's own model; `kwargs` as the processor would merge them."""
    data = golden(family)
    meta = data["meta"]
    preprocessor = meta.get("processor_config") or meta["image_processor_config"]
    config = {"model_type": family, "image_token_id": meta["token_ids"]["image_token_id"]}
    if kwargs:
        preprocessor = {**{k: v for k, v in preprocessor.items() if not k.endswith("_pixels")}, **kwargs}
    layout = layout_for(files(config, preprocessor))
    assert layout is not None
    return layout


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_equal_the_real_processors_on_every_row(family: str) -> None:
    layout, rows = golden_layout(family), golden(family)["image"]
    assert len(rows) > 90
    for row in rows:
        size = ImageSize(row["width"], row["height"])
        if "error" in row:
            with pytest.raises(SizeRefused, match="aspect ratio"):
                layout.num_tokens(size)
        else:
            assert (size, layout.num_tokens(size)) == (size, row["num_tokens"])


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_under_other_limits_equal_the_real_processors_on_every_row(family: str) -> None:
    for row in golden(family)["image_kwargs"]:
        layout = golden_layout(family, row["mm_processor_kwargs"])
        size = ImageSize(row["width"], row["height"])
        assert (size, layout.num_tokens(size)) == (size, row["num_tokens"])


def test_a_whole_prompt_expands_to_the_engines_ids() -> None:
    layout, rows = golden_layout("qwen3_vl"), golden("qwen3_vl")["image_full_prompt"]
    assert rows
    for row in rows:
        replacement = layout.replacement(ImageSize(row["width"], row["height"]))
        expansion = expand(row["prompt_ids_unexpanded"], layout.placeholder_id, [replacement])
        runs = [[key, len(list(run))] for key, run in groupby(expansion.token_ids.tolist())]
        assert runs == row["expanded_rle"]
        assert [(p.offset, p.length) for p in expansion.placed] == [(row["offset"], row["length"])]


def test_a_slim_picture_may_round_to_nothing_before_the_lower_limit_lifts_it() -> None:
    assert golden_layout("qwen2_vl").num_tokens(ImageSize(2000, 10)) == 29


def test_a_ratio_of_just_200_is_allowed() -> None:
    layout = golden_layout("qwen2_vl")
    assert layout.num_tokens(ImageSize(200, 1)) > 0
    with pytest.raises(SizeRefused):
        layout.num_tokens(ImageSize(201, 1))


@settings(deadline=None, max_examples=200)
@given(width=st.integers(1, 9000), height=st.integers(1, 9000), family=st.sampled_from(FAMILIES))
def test_a_resized_picture_keeps_the_limits(width: int, height: int, family: str) -> None:
    size = ImageSize(width, height)
    if max(width, height) > 200 * min(width, height):
        return
    limits = {"qwen3_vl": (32, 65536, 16777216)}.get(family, (28, 3136, 12845056))
    tall, wide = resized(size, *limits)
    factor, least, most = limits
    assert tall % factor == wide % factor == 0
    assert least <= tall * wide
    assert tall * wide <= most or min(tall, wide) == factor


@pytest.mark.parametrize(
    ("preprocessor", "limits"),
    [
        ({}, (3136, 1003520)),
        ({"min_pixels": 5, "max_pixels": 7}, (5, 7)),
        ({"size": {"shortest_edge": 1, "longest_edge": 2}}, (1, 2)),
        ({"size": {"shortest_edge": 1, "longest_edge": 2}, "max_pixels": 9}, (1, 9)),
        ({"size": {"height": 1, "width": 2}}, None),
        ({"size": {"shortest_edge": 1}}, None),
        ({"size": {"shortest_edge": 1}, "max_pixels": 9}, (1, 9)),
    ],
)
def test_limits_come_from_size_and_then_from_the_flat_keys(
    preprocessor: dict[str, Any], limits: object
) -> None:
    assert image_limits(preprocessor) == limits


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_vl", "image_token_id": 9},
        {"model_type": "qwen3_vl_moe", "image_token_id": 9},
        {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 9},
    ],
)
def test_a_family_is_known_by_its_configuration(config: dict[str, Any]) -> None:
    layout = layout_for(files(config))
    assert layout is not None and layout.placeholder_id == 9


@pytest.mark.parametrize(
    ("config", "preprocessor"),
    [
        ({"model_type": "llava", "image_token_id": 9, "_name_or_path": "my/qwen3_vl"}, {}),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, {}),
        ({"model_type": "qwen3_vl"}, {}),
        ({"model_type": "qwen3_vl", "image_token_id": 9}, {"do_resize": False}),
        ({"model_type": "qwen3_vl", "image_token_id": 9}, {"size": 224}),
        ({}, {}),
    ],
)
def test_what_is_not_known_exactly_has_no_layout(
    config: dict[str, Any], preprocessor: dict[str, Any]
) -> None:
    assert layout_for(files(config, preprocessor)) is None


def test_the_layout_of_an_installed_processor_has_the_files_fingerprint() -> None:
    config = {"model_type": "qwen3_vl", "image_token_id": IMAGE_PAD}
    ours = layout_for(files(config, PREPROCESSORS["qwen3_vl"]))
    theirs = layout_from_processor("qwen3_vl", IMAGE_PAD, 16, 2, 65536, 16777216)
    assert ours is not None and ours.fingerprint == theirs.fingerprint


def test_every_parameter_enters_the_fingerprint() -> None:
    base = ("qwen3_vl", 9, 16, 2, 65536, 16777216)
    others = [("qwen2_vl", *base[1:])]
    others += [(*base[:i], base[i] + 1, *base[i + 1 :]) for i in range(1, 6)]  # type: ignore[operator]
    prints = {layout_from_processor(*args).fingerprint for args in (base, *others)}  # type: ignore[arg-type]
    assert len(prints) == 7


def test_an_installed_processor_of_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match="llava"):
        layout_from_processor("llava", 9, 14, 2, 1, 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")  # of importing torchvision, not ours
def test_the_installed_processor_agrees(family: str) -> None:
    from transformers import AutoImageProcessor  # noqa: F401  (registers the class)
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(**PREPROCESSORS[family])
    layout = layout_from_processor(
        family, 9, processor.patch_size, processor.merge_size, *_edges(processor.size)
    )
    for width, height in ((1, 1), (42, 70), (2000, 10), (1081, 1923), (6000, 4000), (2232, 8928)):
        patches = processor.get_number_of_image_patches(height, width, {})
        assert layout.num_tokens(ImageSize(width, height)) == patches // processor.merge_size**2


def _edges(size: Any) -> tuple[int, int]:
    return size["shortest_edge"], size["longest_edge"]


# Expansion of a whole prompt

PAD = 7


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[np.ndarray | None]]:
    ids = draw(st.lists(st.integers(5, 9), max_size=30))
    lengths = st.one_of(st.none(), st.integers(1, 12))
    chosen = [draw(lengths) for _ in range(ids.count(PAD))]
    return ids, [None if n is None else np.full(n, PAD, np.int64) for n in chosen]


@settings(deadline=None, max_examples=200)
@given(prompts())
def test_expansion_equals_replacing_one_by_one(prompt: tuple[list[int], list[np.ndarray | None]]) -> None:
    ids, replacements = prompt
    expansion = expand(ids, PAD, replacements)
    expected: list[int] = []
    spans, first_left, items = [], None, iter(replacements)
    for token in ids:
        replacement = next(items) if token == PAD else None
        if replacement is not None:
            spans.append((len(expected), len(replacement)))
            expected += replacement.tolist()
            continue
        if token == PAD and first_left is None:
            first_left = len(expected)
        expected.append(token)
    assert expansion.token_ids.tolist() == expected
    assert [(p.offset, p.length) for p in expansion.placed] == spans
    assert expansion.exact_until == (len(expected) if first_left is None else first_left)


@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_items_than_placeholders_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="1 placeholders"):
        expand([1, PAD, 2], PAD, [None] * count)
