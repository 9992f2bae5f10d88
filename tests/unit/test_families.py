"""Layouts of the families, against golden values of the real processors (tests/data/golden)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from golden import clip_of, count, differences, files, golden, known_layout, qwen, run_lengths, size_of
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_files import tiny_tokenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from processors import LayoutOptions, LayoutRefused, Refusal, layout_for
from processors.families.evs import retained_tokens
from processors.families.smart_resize import PatchGrid, pixel_limits, resized
from processors.layout import Replacement, embed_runs, expand
from sightline_types import DegradeReason, EmbedRun, ImageSize, Modality, VideoShape

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
TIMED = ("qwen3_vl", "qwen3_5")


def timed_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Just the tokens of a timestamp, with their ids in the family's real vocabulary (its golden file)."""
    seconds = {"qwen3_vl": 6486, "qwen3_5": 6283}[family]
    vocabulary = {"<": 27, ".": 13, ">": 29, " seconds": seconds, "?": 0}
    vocabulary |= {str(digit): 15 + digit for digit in range(10)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" seconds|."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# Every row


@pytest.mark.parametrize("family", QWEN)
def test_pictures_count_as_the_real_processors_count_them(family: str) -> None:
    rows = golden(family)["image"]
    assert len(rows) > 90
    assert differences(qwen(family), rows) == []


@pytest.mark.parametrize("family", QWEN)
def test_processor_kwargs_change_the_counts_as_the_real_processors_do(family: str) -> None:
    for row in golden(family)["image_kwargs"]:
        assert differences(qwen(family, processor_kwargs=row["mm_processor_kwargs"]), [row]) == []


@pytest.mark.parametrize("family", ("qwen2_vl", "qwen2_5_vl"))
def test_flat_clips_count_as_the_real_processors_count_them(family: str) -> None:
    rows = golden(family)["video"]
    assert [count(qwen(family), clip_of(row)) for row in rows] == [row["num_tokens"] for row in rows]


@pytest.mark.parametrize("section", ("video", "video_timestamps"))
@pytest.mark.parametrize("family", TIMED)
def test_timed_clips_are_the_real_processors_ids(family: str, section: str) -> None:
    layout = qwen(family, timed_tokenizer(family))
    for row in golden(family)[section]:
        plan = layout.try_replacement(clip_of(row))
        if "error" in row:
            assert isinstance(plan, Refusal) and plan.reason is DegradeReason.VIDEO_REFUSED
            continue
        assert isinstance(plan, Replacement)
        assert run_lengths(plan.ids) == row["replacement_rle"]
        assert hashlib.sha256(plan.ids.astype("<u4").tobytes()).hexdigest() == row["replacement_sha256_u32le"]
        assert sum(run.length for run in plan.embeds) == row["num_embed_tokens"]


@pytest.mark.parametrize("family", TIMED)
def test_pruned_clips_are_the_engines_ids(family: str) -> None:
    rows = [row for row in golden(family)["video"] if "pruned_rle" in row]
    assert rows
    for row in rows:
        pruned = qwen(family, timed_tokenizer(family), video_pruning_rate=row["video_pruning_rate"])
        plan = pruned.replacement(clip_of(row))
        assert run_lengths(plan.ids) == row["pruned_rle"]
        assert plan.embeds == ()  # vLLM (0.32, `get_video_repl`) fills the text between the groups, too


@pytest.mark.parametrize("family", (*TIMED, "nemotron_omni"))
def test_pruning_keeps_as_many_tokens_as_the_engine(family: str) -> None:
    for row in golden(family)["evs_count"]:
        kept = retained_tokens(row["tokens_per_group"], row["num_groups"], row["video_pruning_rate"])
        assert kept == row["retained"]


@pytest.mark.parametrize("family", TIMED)
def test_a_whole_prompt_expands_to_the_engines_ids(family: str) -> None:
    layout, rows = qwen(family), golden(family)["image_full_prompt"]
    assert rows
    for row in rows:
        expansion = layout.expand(row["prompt_ids_unexpanded"], layout.replacements([size_of(row)]))
        assert run_lengths(expansion.token_ids) == row["expanded_rle"]
        assert [(p.offset, p.length) for p in expansion.placed] == [(row["offset"], row["length"])]


# Traps


def test_a_slim_picture_may_round_to_nothing_before_the_lower_limit_lifts_it() -> None:
    assert count(qwen("qwen2_vl"), ImageSize(2000, 10)) == 29


def test_a_ratio_of_just_200_is_allowed() -> None:
    layout = qwen("qwen2_vl")
    assert count(layout, ImageSize(200, 1))
    refusal = layout.try_replacement(ImageSize(201, 1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is DegradeReason.SIZE_REFUSED and "201x1" in refusal.detail


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 20000),
    st.integers(1, 20000),
    st.sampled_from([(28, 3136, 12845056), (32, 65536, 16777216), (28, 3136, 1003520)]),
)
def test_resized_sides_are_multiples_within_the_limits(
    width: int, height: int, limits: tuple[int, int, int]
) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(LayoutRefused):
            resized(ImageSize(width, height), *limits)
        return
    tall, wide = resized(ImageSize(width, height), *limits)
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
    assert pixel_limits(preprocessor) == limits


def test_a_size_in_the_kwargs_wins_over_flat_limits_of_the_files() -> None:
    files_say = {"min_pixels": 5, "max_pixels": 7}
    grid = PatchGrid.read(files_say, {"size": {"shortest_edge": 1, "longest_edge": 2}})
    assert grid is not None and (grid.min_pixels, grid.max_pixels) == (1, 2)
    grid = PatchGrid.read(files_say, {"max_pixels": 9})
    assert grid is not None and (grid.min_pixels, grid.max_pixels) == (5, 9)


# Which family


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_vl", "image_token_id": 9},
        {"model_type": "qwen3_vl_moe", "image_token_id": 9},
        {"model_type": "qwen3_5_moe", "image_token_id": 9},
        {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 9},
    ],
)
def test_a_family_is_known_by_its_configuration(config: dict[str, Any]) -> None:
    layout = layout_for(files(config))
    assert layout is not None and layout.placeholders[Modality.IMAGE] == 9


@pytest.mark.parametrize(
    ("config", "preprocessor"),
    [
        ({"model_type": "unheard_of", "image_token_id": 9, "_name_or_path": "my/qwen3_vl"}, {}),
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


def test_every_parameter_enters_the_fingerprint() -> None:
    base = {"patch_size": 16, "merge_size": 2, "min_pixels": 65536, "max_pixels": 16777216}
    config = {"model_type": "qwen3_vl", "image_token_id": 9}
    models_seen = [files(config, base), files(config | {"model_type": "qwen2_vl"}, base)]
    models_seen += [files(config | {"image_token_id": 8}, base)]
    models_seen += [files(config, base | {name: value + 1}) for name, value in base.items()]
    prints = {known_layout(model).fingerprint({Modality.IMAGE}) for model in models_seen}
    assert len(prints) == 7


def test_a_request_with_clips_has_another_fingerprint_than_one_with_pictures() -> None:
    layout = qwen("qwen2_vl")
    pictures, clips = layout.fingerprint({Modality.IMAGE}), layout.fingerprint({Modality.VIDEO})
    both = layout.fingerprint([Modality.VIDEO, Modality.IMAGE, Modality.VIDEO])
    assert len({pictures, clips, both}) == 3
    pruned = qwen("qwen2_5_vl", video_pruning_rate=0.5), qwen("qwen2_5_vl")
    assert len({layout.fingerprint({Modality.VIDEO}) for layout in pruned}) == 2
    assert len({layout.fingerprint({Modality.IMAGE}) for layout in pruned}) == 1


# Clips that are not exact


def test_a_clip_of_unknown_times_is_refused_by_name() -> None:
    layout = qwen("qwen3_vl", tiny_tokenizer())
    for clip in (VideoShape(ImageSize(64, 48), 4), VideoShape(ImageSize(64, 48), 4, 25.0, (0, 1))):
        refusal = layout.try_replacement(clip)
        assert isinstance(refusal, Refusal) and refusal.reason is DegradeReason.LAYOUT_PARAMETER_MISSING


@pytest.mark.parametrize(
    ("settings_more", "options"),
    [
        ({"cap_pixels_per_frame": True}, {}),
        ({"temporal_patch_size": 4}, {}),
        ({"do_resize": False}, {}),
        ({"merge_size": 4}, {}),
        ({"video_processor_type": "Glm4vVideoProcessor"}, {}),
        ({"video_processor_type": None, "image_processor_type": "Glm4vImageProcessor"}, {}),
        ({"auto_map": {"AutoVideoProcessor": "processing.Mine"}}, {}),
        ({}, {"processor_kwargs": {"fps": 1}}),
        ({}, {"processor_kwargs": {"videos_kwargs": {"size": {"shortest_edge": 1}}}}),
    ],
)
@pytest.mark.parametrize("family", ("qwen2_vl", "qwen3_vl"))
def test_a_clip_under_unproven_settings_is_refused_and_pictures_are_not(
    family: str, settings_more: dict[str, Any], options: dict[str, Any]
) -> None:
    meta = golden(family)["meta"]
    image = meta.get("processor_config") or meta["image_processor_config"]
    model = files({"model_type": family, **meta["token_ids"]}, image, video=image | settings_more)
    layout = known_layout(model, **options)
    refusal = layout.try_replacement(VideoShape(ImageSize(64, 48), 2, 25.0, (0, 1)))
    assert isinstance(refusal, Refusal) and refusal.reason is DegradeReason.UNSUPPORTED_MODALITY
    assert count(layout, ImageSize(64, 48))


@pytest.mark.parametrize("family", ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
def test_frames_of_one_row_which_the_processor_takes_for_one_colour_are_refused(family: str) -> None:
    layout = qwen(family, tiny_tokenizer())
    lying, standing = (VideoShape(ImageSize(*size), 2, 25.0, (0, 1)) for size in ((64, 1), (1, 64)))
    refusal = layout.try_replacement(lying)
    assert isinstance(refusal, Refusal) and refusal.reason is DegradeReason.VIDEO_REFUSED
    assert count(layout, standing) and count(layout, ImageSize(64, 1))


def test_the_limits_of_qwen3s_clips_are_those_of_their_size_alone() -> None:
    meta = golden("qwen3_vl")["meta"]
    config = {"model_type": "qwen3_vl", **meta["token_ids"]}
    clip = VideoShape(ImageSize(640, 360), 6, 30.0, tuple(range(6)))
    counts = set()
    for flat in ({}, {"min_pixels": 9, "max_pixels": 90_000}):
        video = meta["video_processor_config"] | flat
        layout = known_layout(files(config, meta["image_processor_config"], video=video))
        counts.add(count(layout, clip))
    assert len(counts) == 1 and None not in counts


def test_qwen3s_clips_under_the_pictures_own_settings_are_another_processors() -> None:
    """Without a file of its own, transformers makes the video processor after the image processor's class."""
    meta = golden("qwen3_vl")["meta"]
    image = meta["image_processor_config"] | {"image_processor_type": "Qwen2VLImageProcessor"}
    layout = known_layout(files({"model_type": "qwen3_vl", **meta["token_ids"]}, image, video=image))
    assert layout.modalities == {Modality.IMAGE}


@pytest.mark.parametrize("kwargs", [{"patch_size": 7}, {"images_kwargs": {"merge_size": 1}}])
def test_a_processor_whose_patches_are_not_the_models_has_no_layout(kwargs: dict[str, Any]) -> None:
    model = files({"model_type": "qwen2_vl", "image_token_id": 9})
    assert layout_for(model, LayoutOptions(processor_kwargs=kwargs)) is None
    assert layout_for(model, LayoutOptions(processor_kwargs={"use_fast": True, "resample": 2})) is not None


# Expansion of a whole prompt

PAD, CLIP_PAD = 7, 8


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[Replacement | Refusal]]:
    ids = draw(st.lists(st.integers(5, 9), max_size=30))
    lengths = st.one_of(st.none(), st.integers(1, 12))
    chosen = [draw(lengths) for token in ids if token in (PAD, CLIP_PAD)]
    refusal = Refusal(DegradeReason.SIZE_UNKNOWN)
    return ids, [refusal if n is None else Replacement(np.full(n, PAD, np.int64)) for n in chosen]


@settings(deadline=None, max_examples=200)
@given(prompts())
def test_expansion_equals_replacing_one_by_one(prompt: tuple[list[int], list[Replacement | Refusal]]) -> None:
    ids, replacements = prompt
    expansion = expand(ids, (PAD, CLIP_PAD), replacements)
    expected: list[int] = []
    spans, first_left, items = [], None, iter(replacements)
    for token in ids:
        item = next(items) if token in (PAD, CLIP_PAD) else None
        if isinstance(item, Replacement):
            spans.append((len(expected), len(item.ids)))
            expected += item.ids.tolist()
            continue
        if item is not None and first_left is None:
            first_left = len(expected)
        expected.append(token)
    assert expansion.token_ids.tolist() == expected
    assert [(p.offset, p.length) for p in expansion.placed] == spans
    assert expansion.exact_until == (len(expected) if first_left is None else first_left)


@pytest.mark.parametrize("items", [0, 2])
def test_another_number_of_items_than_placeholders_is_an_error(items: int) -> None:
    with pytest.raises(ValueError, match="1 placeholders"):
        expand([1, PAD, 2], (PAD,), [Refusal(DegradeReason.SIZE_UNKNOWN)] * items)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_embed_runs_are_exactly_the_places_of_the_token(ids: list[int]) -> None:
    runs = embed_runs(np.array(ids, dtype=np.int64), 1)
    covered = [position for start, length in runs for position in range(start, start + length)]
    assert covered == [position for position, token in enumerate(ids) if token == 1]
    assert all(isinstance(run, EmbedRun) and run.length > 0 for run in runs)
