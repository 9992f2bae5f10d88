"""Layouts of the families beside Qwen, against golden values of the real processors (tests/data/golden)."""

from __future__ import annotations

from typing import Any

import pytest
from golden import clip_of, count, differences, files, golden, known_layout, run_lengths, size_of, vocabulary

from processors import FamilyLayout, LayoutOptions, LayoutRefused, Refusal, Replacement
from processors.families import find_layout
from processors.families.kimi import KimiGrid
from processors.families.nemotron_omni import PatchBudget
from processors.families.nemotron_video import NemotronVideo, frame_patches, separators
from sightline_types import DegradeReason, EmbedRun, ImageSize, Modality, VideoShape


def llava(**vision: Any) -> FamilyLayout:
    config = {"model_type": "llava", "image_token_index": 32000}
    vision_config = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14} | vision
    return known_layout(files(config | {"vision_config": vision_config}))


def llava_next(pinpoints: str) -> FamilyLayout:
    meta = golden("llava_next")["meta"]
    config = {
        "model_type": "llava_next",
        "image_token_index": 32000,
        "image_grid_pinpoints": meta["image_grid_pinpoints"][pinpoints],
        "vision_config": {"image_size": 336, "patch_size": 14},
    }
    return known_layout(files(config))


LLAMA4_TOKENS = {
    "<|image_start|>": 200080,
    "<|image_end|>": 200081,
    "<|tile_x_separator|>": 200084,
    "<|tile_y_separator|>": 200085,
    "<|image|>": 200090,
    "<|patch|>": 200092,
}


def llama4(**options: Any) -> FamilyLayout:
    config = {
        "model_type": "llama4",
        "image_token_index": 200092,
        "boi_token_index": 200080,
        "eoi_token_index": 200081,
        "vision_config": {"image_size": 336, "patch_size": 14, "pixel_shuffle_ratio": 0.5},
    }
    settings = golden("llama4")["meta"]["processor_config"]
    return known_layout(files(config, settings, tokenizer=vocabulary(LLAMA4_TOKENS)), **options)


KIMI_TOKENS = {
    "<|media_begin|>": 163602,
    "<|media_content|>": 163603,
    "<|media_end|>": 163604,
    "<|media_pad|>": 163605,
    "<|kimi_image_placeholder|>": 163606,
}


def kimi(family: str) -> FamilyLayout:
    config = {"model_type": family, "media_placeholder_token_id": 163605}
    settings = {"media_proc_cfg": golden(family)["meta"]["media_proc_cfg"]}
    return known_layout(files(config, settings, tokenizer=vocabulary(KIMI_TOKENS)))


PIXTRAL_TOKENS = {"[IMG]": 10, "[IMG_BREAK]": 12, "[IMG_END]": 13}


def pixtral(which: str) -> FamilyLayout:
    if which == "pixtral_12b":
        config: dict[str, Any] = {"model_type": "llava", "image_token_index": 10}
        vision, longest = {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}, 1024
    else:
        config = {"model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2}
        vision, longest = {"model_type": "pixtral", "image_size": 1540, "patch_size": 14}, 1540
    model = files(
        config | {"vision_config": vision},
        {"size": {"longest_edge": longest}},
        tokenizer=vocabulary(PIXTRAL_TOKENS),
    )
    return known_layout(model)


def phi3(num_crops: int) -> FamilyLayout:
    settings = {"num_crops": num_crops, "num_img_tokens": 144}
    tokens = {"<s>": 1, "<|user|>": 32010, "<|end|>": 32007, "<|image|>": 32044}
    return known_layout(files({"model_type": "phi3_v"}, settings, tokenizer=vocabulary(tokens, "<s>")))


def nemotron(max_model_len: int | None = 131072, vision: dict[str, Any] | None = None, **options: Any) -> Any:
    meta = golden("nemotron_omni")["meta"]
    config = {
        "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
        "img_context_token_id": 18,
        **meta["config"],
    }
    config["vision_config"] = config["vision_config"] | (vision or {})
    tokens = {"<image>": 18, "<img>": 19, "</img>": 20}
    model = files(config, tokenizer=vocabulary(tokens))
    return known_layout(model, max_model_len=max_model_len, **options)


def glm4v() -> FamilyLayout:
    meta = golden("glm4v")["meta"]
    return known_layout(files({"model_type": "glm4v", **meta["config"]}, meta["processor_config"]))


# Every row


@pytest.mark.parametrize(
    ("family", "section", "layout"),
    [
        ("llava", "image", llava()),
        ("llava_next", "image", llava_next("v1.6")),
        ("llava_next", "image_synthetic_anyres9_336", llava_next("synthetic_anyres9_336")),
        ("llama4", "image", llama4()),
        ("kimi_k25", "image", kimi("kimi_k25")),
        ("glm4v", "image", glm4v()),
        ("pixtral", "image_pixtral_12b", pixtral("pixtral_12b")),
        ("pixtral", "image_mistral_small_3_1", pixtral("mistral_small_3_1")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pictures_count_as_the_real_processors_count_them(
    family: str, section: str, layout: FamilyLayout
) -> None:
    rows = golden(family)[section]
    assert len(rows) > 50
    assert differences(layout, rows) == []


def test_llama4_lays_tiles_and_separators_out_as_the_real_processor_does() -> None:
    layout = llama4()
    for row in golden("llama4")["image"]:
        plan = layout.replacement(size_of(row))
        assert run_lengths(plan.ids) == [[LLAMA4_TOKENS[token], n] for token, n in row["layout_rle"]]
        assert sum(run.length for run in plan.embeds) == row["num_embed_tokens"]


@pytest.mark.parametrize("which", ("pixtral_12b", "mistral_small_3_1"))
def test_pixtral_breaks_its_rows_as_the_real_processor_does(which: str) -> None:
    layout = pixtral(which)
    for row in golden("pixtral")[f"image_{which}"]:
        if "error" in row:
            continue
        columns = [[10, row["cols"]], [12, 1]] * row["rows"]
        plan = layout.replacement(size_of(row))
        assert run_lengths(plan.ids) == [*columns[:-1], [13, 1]]
        assert sum(run.length for run in plan.embeds) == row["num_embed_tokens"]


def test_kimi_k3_frames_each_picture_with_its_own_size() -> None:
    layout = kimi("kimi_k3")
    letters = layout.encode  # type: ignore[attr-defined]
    for row in golden("kimi_k3")["image"]:
        plan = layout.replacement(size_of(row))
        head = [163602, *letters(f"image {row['width']}x{row['height']}"), 163603]
        assert plan.ids.tolist() == [*head, *[163605] * row["num_tokens"], 163604]
        assert plan.embeds == (EmbedRun(len(head), row["num_tokens"]),)


def test_kimis_pad_is_the_tokenizers_where_config_json_has_another() -> None:
    settings = {"media_proc_cfg": golden("kimi_k25")["meta"]["media_proc_cfg"]}
    config = {"model_type": "kimi_k25", "media_placeholder_token_id": 7}
    assert known_layout(files(config, settings)).placeholders == {Modality.IMAGE: 7}
    tokenizer = vocabulary(KIMI_TOKENS)
    assert known_layout(files(config, settings, tokenizer=tokenizer)).placeholders == {Modality.IMAGE: 163605}


def test_kimis_limits_may_stand_in_config_json() -> None:
    settings = {"media_proc_cfg": golden("kimi_k3")["meta"]["media_proc_cfg"]}
    model = files({"model_type": "kimi_k3", **settings}, tokenizer=vocabulary(KIMI_TOKENS))
    assert known_layout(model).fingerprint([Modality.IMAGE]) == kimi("kimi_k3").fingerprint([Modality.IMAGE])


@pytest.mark.parametrize("family", ("kimi_k25", "kimi_k3"))
def test_a_chunk_of_kimis_frames_counts_as_one_frame(family: str) -> None:
    data = golden(family)
    settings = data["meta"]["media_proc_cfg"]
    grid = KimiGrid.read(settings | {"in_patch_limit": settings["in_patch_limit_each_frame"]})
    assert grid is not None
    assert [grid.num_tokens(size_of(row)) for row in data["video_chunk"]] == [
        row["num_tokens"] for row in data["video_chunk"]
    ]


def test_phi3_counts_as_its_published_formula() -> None:
    rows = golden("phi3_v")["image"]
    assert len(rows) > 100
    for crops in {row["num_crops"] for row in rows}:
        own = [row for row in rows if row["num_crops"] == crops]
        assert differences(phi3(crops), own) == []


def test_nemotron_frames_each_picture() -> None:
    for row in golden("nemotron_omni")["image"]:
        layout = nemotron(row["max_model_len"])
        plan = layout.try_replacement(size_of(row))
        if "error" in row:
            assert isinstance(plan, Refusal)
            continue
        assert run_lengths(plan.ids) == [[19, 1], [18, row["num_tokens"]], [20, 1]]
        assert plan.embeds == (EmbedRun(1, row["num_tokens"]),)


def test_nemotrons_pictures_share_a_budget() -> None:
    budget = PatchBudget(16, 1024, 13312)
    for row in golden("nemotron_omni")["image_batch"]:
        sizes = [ImageSize(*size) for size in row["sizes"]]
        grids = budget.grids(sizes, row["max_model_len"] - row["text_prompt_length"] - 4)
        assert [list(grid) for grid in grids] == row["patch_grid_wh"]
        if row["text_prompt_length"] == 0:  # what vLLM 0.32 counts
            plans = nemotron(row["max_model_len"]).replacements(sizes)
            assert [len(plan.ids) - 2 for plan in plans] == row["num_tokens"]


def test_nemotrons_clips_are_the_real_processors_text_and_runs() -> None:
    for row in golden("nemotron_omni")["video"]:
        names = ("video_temporal_patch_size", "video_target_num_patches", "video_maintain_aspect_ratio")
        vision = {name: row[name] for name in names}
        layout = nemotron(vision=vision, video_pruning_rate=row["video_pruning_rate"])
        video: NemotronVideo = layout.video
        rows, columns = frame_patches(size_of(row), row["video_target_num_patches"], row[names[2]])
        assert [columns * 16, rows * 16] == row["target_wh"]
        assert video.counts(clip_of(row)) == row["tokens_per_tubelet"]
        texts = [value for kind, value in row["layout"] if kind == "text"]
        assert separators(row["frames_indices"], row["fps"], row[names[0]]) == texts
        plan = layout.replacement(clip_of(row))
        expected: list[int] = []
        for kind, value in row["layout"]:
            token = {"<img>": 19, "<image>": 18, "</img>": 20}.get(kind)
            expected += video.encode(value) if token is None else [token] * value
        assert plan.ids.tolist() == expected and plan.embeds == ()


# Traps and refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"height": 1024, "width": 1024}},
        {"size": 1024},
        {"do_resize": False},
        {"size": {"longest_edge": 0}},
    ],
)
def test_a_pixtral_that_shrinks_pictures_otherwise_has_no_layout(settings: dict[str, Any]) -> None:
    vision = {"model_type": "pixtral", "image_size": 1024, "patch_size": 16}
    for config in ({"model_type": "llava"}, {"model_type": "mistral3"}):
        whole = config | {"image_token_index": 10, "vision_config": vision}
        tokenizer = vocabulary(PIXTRAL_TOKENS)
        assert find_layout(files(whole, tokenizer=tokenizer)) is not None
        assert find_layout(files(whole, settings, tokenizer=tokenizer)) is None


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llava", {"do_center_crop": False}),
        ("llava", {"do_resize": False}),
        ("llava_next", {"image_grid_pinpoints": [[336, 336]]}),
        ("llava_next", {"crop_size": {"height": 224, "width": 224}}),
        ("llava_next", {"crop_size": 224}),
    ],
)
def test_a_processor_that_cuts_other_pictures_than_the_model_takes_leaves_no_layout(
    family: str, settings: dict[str, Any]
) -> None:
    config = {"model_type": family, "image_token_index": 9, "image_grid_pinpoints": [[336, 672], [672, 336]]}
    own = {"crop_size": {"height": 336, "width": 336}}
    assert find_layout(files(config, own)) is not None
    assert find_layout(files(config, own | settings)) is None


def test_glms_limits_are_those_of_its_size_alone() -> None:
    meta = golden("glm4v")["meta"]
    config, settings = {"model_type": "glm4v", **meta["config"]}, meta["processor_config"]
    flat = known_layout(files(config, settings | {"min_pixels": 90_000, "max_pixels": 100_000}))
    assert flat.fingerprint([Modality.IMAGE]) == glm4v().fingerprint([Modality.IMAGE])


@pytest.mark.parametrize("family", ("llama4", "internvl"))
def test_sections_of_kwargs_are_not_read_where_the_processor_reads_none(family: str) -> None:
    meta = golden(family)["meta"]
    tokens = LLAMA4_TOKENS if family == "llama4" else meta["tokens"]
    config = {"model_type": family, "vision_config": {}} | meta.get("config", {})
    model = files(config, meta["processor_config"], tokenizer=vocabulary(tokens))
    assert find_layout(model) is not None
    options = LayoutOptions(processor_kwargs={"images_kwargs": {"max_patches": 2}})
    assert find_layout(model, options) is None


@pytest.mark.parametrize(
    ("vision", "strategy", "tokens"),
    [
        ({}, "default", 576),
        ({}, "full", 577),
        ({}, "class", 1),
        ({"model_type": "siglip_vision_model", "image_size": 384}, "full", 729),
    ],
)
def test_llava_counts_what_its_strategy_selects(vision: dict[str, Any], strategy: str, tokens: int) -> None:
    config = {
        "model_type": "llava",
        "image_token_index": 32000,
        "vision_feature_select_strategy": strategy,
        "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14} | vision,
    }
    assert count(known_layout(files(config)), ImageSize(5, 7)) == tokens


def test_llama4s_placeholder_is_not_its_image_token_index() -> None:
    assert llama4().placeholders == {Modality.IMAGE: 200090}


def test_a_layout_whose_tokens_are_nowhere_is_refused_by_name() -> None:
    config = {"model_type": "llama4", "image_token_index": 9, "vision_config": {}}
    with pytest.raises(LayoutRefused, match=r"<\|image\|>") as caught:
        find_layout(files(config))
    assert caught.value.reason is DegradeReason.LAYOUT_PARAMETER_MISSING


def test_nemotron_without_a_context_length_is_refused_by_name() -> None:
    plan = nemotron(None).try_replacement(ImageSize(640, 480))
    assert isinstance(plan, Refusal) and plan.reason is DegradeReason.LAYOUT_PARAMETER_MISSING


def test_nemotrons_clip_is_exact_alone_only() -> None:
    clip = VideoShape(ImageSize(640, 360), 2, 30.0, (0, 1))
    assert isinstance(nemotron().replacements([clip])[0], Replacement)
    for mixed in ([clip, clip], [clip, ImageSize(64, 64)]):
        for plan in nemotron().replacements(mixed):
            assert isinstance(plan, Refusal) and plan.reason is DegradeReason.MEDIA_MIX


def test_nemotrons_pictures_hold_only_cold_where_their_budget_binds() -> None:
    picture = ImageSize(1920, 1080)
    assert nemotron(4096).holds_only_cold([picture] * 3)
    assert not nemotron(4096).holds_only_cold([picture])
    assert not nemotron(131072).holds_only_cold([picture] * 3)


def test_beside_a_picture_of_unknown_size_nemotrons_others_are_estimates() -> None:
    known, unknown = nemotron().replacements([ImageSize(512, 512), None])
    assert isinstance(known, Refusal) and isinstance(unknown, Refusal)
    assert (known.reason, known.num_tokens) == (DegradeReason.SIZE_UNKNOWN, 258)


def test_nemotrons_clip_takes_the_place_of_its_text() -> None:
    layout, clip = nemotron(), VideoShape(ImageSize(64, 64), 1, 30.0, (0,))
    encode = layout.video.encode
    plan = layout.replacement(clip)
    expansion = layout.expand([*encode("look "), *encode("<video>\n"), *encode("end")], [plan])
    assert expansion.token_ids.tolist() == [*encode("look "), *plan.ids.tolist(), *encode("\nend")]
    assert [(p.offset, p.length) for p in expansion.placed] == [(5, len(plan.ids))]


def test_phi3_tokenizes_every_piece_of_text_with_its_own_start() -> None:
    layout = phi3(4)
    tokenizer = layout.tokenizer  # type: ignore[attr-defined]
    text = tokenizer.encode("<|user|>a<|image_1|>b", add_special_tokens=False)
    plan = layout.replacement(ImageSize(336, 336))
    expansion = layout.expand([1, *text], [plan])
    pieces = [tokenizer("<|user|>a").input_ids, plan.ids.tolist(), tokenizer("b").input_ids]
    assert expansion.token_ids.tolist() == [token for piece in pieces for token in piece]
    with pytest.raises(ValueError, match="0 placeholders"):
        layout.expand(tokenizer.encode("none"), [plan])


@pytest.mark.parametrize("layout", [llava(), llama4(), kimi("kimi_k25"), pixtral("pixtral_12b"), phi3(4)])
def test_a_clip_is_refused_where_only_pictures_are_exact(layout: FamilyLayout) -> None:
    plan = layout.try_replacement(VideoShape(ImageSize(64, 64), 2, 30.0, (0, 1)))
    assert isinstance(plan, Refusal) and plan.reason is DegradeReason.UNSUPPORTED_MODALITY


def test_families_that_are_unproven_on_sglang_have_no_layout_there() -> None:
    config = {"model_type": "llava", "image_token_index": 32000, "vision_config": {}}
    assert find_layout(files(config), LayoutOptions(engine="sglang")) is None
    assert find_layout(files(config)) is not None
