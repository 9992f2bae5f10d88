"""Layouts against golden files that `tools/make_golden.py` wrote with vLLM's installed processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import files, golden, known_layout, run_lengths, size_of, vocabulary

from processors import FamilyLayout, LayoutOptions, Refusal
from processors.families import find_layout
from processors.layout import Replacement
from sightline_types import ImageSize, Modality

FAMILIES = ("gemma3", "internvl", "internvl_chat", "qwen2_5_omni", "qwen3_omni_moe")


def layout_of(family: str, **more: Any) -> FamilyLayout:
    meta = golden(family)["meta"]
    config = {**meta["config"], **more}
    return known_layout(files(config, meta["processor_config"], tokenizer=vocabulary(meta["tokens"])))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_picture_is_the_processors_ids_and_embeddings(family: str) -> None:
    layout, rows = layout_of(family), golden(family)["image"]
    assert len(rows) > 50
    for row in rows:
        plan = layout.try_replacement(size_of(row))
        if "error" in row:
            assert isinstance(plan, Refusal), row
            continue
        assert isinstance(plan, Replacement), row
        assert run_lengths(plan.ids) == row["replacement_rle"], row
        assert sum(run.length for run in plan.embeds) in (0, row["num_embed_tokens"])


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "internvl_chat"])
def test_whole_prompts_expand_as_the_processor_expands_them(family: str) -> None:
    layout, rows = layout_of(family), golden(family)["image_full_prompt"]
    assert len(rows) >= 6
    for row in rows:
        sizes = [ImageSize(*size) for size in row["sizes"]]
        plans = layout.replacements(sizes)
        if "error" in row:
            with pytest.raises(ValueError, match="a line end follows a picture"):
                layout.expand(row["prompt_ids_unexpanded"], plans)
            continue
        expansion = layout.expand(row["prompt_ids_unexpanded"], plans)
        assert run_lengths(expansion.token_ids) == row["expanded_rle"], row
        assert [[placed.offset, placed.length] for placed in expansion.placed] == row["ranges"], row


def test_touching_pictures_of_gemma_share_a_token() -> None:
    layout = layout_of("gemma3")
    begin = layout.placeholders[Modality.IMAGE]
    plans = layout.replacements([ImageSize(9, 9)] * 2)
    expansion = layout.expand([begin, begin], plans)
    first, second = expansion.placed
    assert second.offset == first.offset + first.length - 1
    assert len(expansion.token_ids) == 2 * first.length - 1


def test_what_follows_a_picture_of_unknown_size_is_not_exact_for_gemma() -> None:
    layout = layout_of("gemma3")
    begin = layout.placeholders[Modality.IMAGE]
    one, two = (golden("gemma3")["meta"]["tokens"]["\n" * count] for count in (1, 2))
    unknown = layout.try_replacement(None)
    expansion = layout.expand([one, two, 7, begin, 8], [unknown])
    assert expansion.token_ids.tolist()[1:] == [7, begin, 8]
    assert expansion.exact_until == 2


@pytest.mark.parametrize(
    ("family", "kwargs"),
    [
        ("gemma3", {"do_pan_and_scan": True}),
        ("internvl", {"crop_to_patches": False}),
        ("internvl_chat", {"image_size": 224}),
        ("internvl_chat", {"max_dynamic_patch": 3}),
    ],
)
def test_processor_kwargs_that_are_not_proven_leave_no_layout(family: str, kwargs: dict[str, object]) -> None:
    meta = golden(family)["meta"]
    model = files(meta["config"], meta["processor_config"], tokenizer=vocabulary(meta["tokens"]))
    assert find_layout(model, LayoutOptions(processor_kwargs=kwargs)) is None


@pytest.mark.parametrize("family", ("gemma3", "internvl"))
def test_a_pictures_tokens_are_the_processors_where_the_model_says_others(family: str) -> None:
    meta = golden(family)["meta"]
    settings, tokenizer = meta["processor_config"], vocabulary(meta["tokens"])
    layout = known_layout(files(meta["config"], settings | {"image_seq_length": 16}, tokenizer=tokenizer))
    (plan,) = layout.replacements([ImageSize(2, 2)])
    assert isinstance(plan, Replacement) and sum(run.length for run in plan.embeds) % 16 == 0
    assert plan.ids.size < layout_of(family).replacement(ImageSize(2, 2)).ids.size
    unsized = files(meta["config"], settings | {"do_resize": False}, tokenizer=tokenizer)
    assert find_layout(unsized, LayoutOptions()) is None


def test_internvl_without_dynamic_tiles_has_one_a_picture() -> None:
    layout = layout_of("internvl_chat", dynamic_image_size=False)
    (plan,) = layout.replacements([ImageSize(4000, 300)])
    assert isinstance(plan, Replacement) and len(plan.ids) == 256 + 2


def test_an_omni_models_ids_stand_in_its_thinkers_section() -> None:
    meta = golden("qwen2_5_omni")["meta"]
    thinker = meta["config"]["thinker_config"] | {"image_token_index": 5}
    config = {"model_type": "qwen2_5_omni", "thinker_config": thinker}
    layout = known_layout(files(config, meta["processor_config"]))
    assert layout.placeholders == {Modality.IMAGE: 5}
    (plan,) = layout.replacements([ImageSize(56, 56)])
    assert isinstance(plan, Replacement) and plan.ids.tolist() == [5] * 4
    assert plan.ids.dtype == np.int64
