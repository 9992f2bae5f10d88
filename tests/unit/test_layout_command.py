"""`sightline layout`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clips import clip
from golden import golden
from picture_files import encoded, picture
from test_more_families import LLAMA4_TOKENS
from tiny_files import tiny_tokenizer

from app.cli import main
from processors import identity_of_bytes


def folder_of(path: Path, family: str) -> Path:
    """A folder with the golden file's configuration, and no tokenizer."""
    meta = golden(family)["meta"]
    config: dict[str, Any] = {"model_type": family, **meta.get("token_ids", {})}
    settings = meta.get("processor_config") or meta.get("image_processor_config") or {}
    if family == "kimi_k25":
        settings = {"media_proc_cfg": meta["media_proc_cfg"]}
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    if "video_processor_config" in meta:
        text = json.dumps(meta["video_processor_config"])
        (path / "video_preprocessor_config.json").write_text(text)
    return path


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("family", ("qwen2_vl", "qwen3_5", "kimi_k25"))
def test_each_golden_row_is_answered_with_its_count(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = golden(family)["image"]
    items = [f"image:{row['width']}x{row['height']}" for row in rows]
    folder = folder_of(tmp_path, family)
    assert main(["layout", "--model", str(folder), "--each", "--json", *items]) == 0
    answers = printed(capsys)
    assert [answer["item"] for answer in answers] == items
    assert [answer["tokens"] for answer in answers] == [row.get("num_tokens") for row in rows]
    assert [answer["refusal"] is None for answer in answers] == ["error" not in row for row in rows]


def test_several_items_are_one_request_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    assert main(["layout", "--model", str(folder), "--json", "image:28x28", "video:28x28:3@25"]) == 0
    (answer,) = printed(capsys)
    assert answer["tokens"] == 12
    assert answer["layout"] == [[151655, 4], [151656, 8]]
    assert answer["spans"] == [
        {"offset": 0, "length": 4, "identity": None},
        {"offset": 4, "length": 8, "identity": None},
    ]


def test_a_clip_with_times_needs_a_tokenizer_and_takes_its_indices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "qwen3_vl")
    clip = ["video:64x48:2@50:indices=3828,3877", "--json"]
    assert main(["layout", "--model", str(folder), *clip]) == 2
    refusal = printed(capsys)[0]["refusal"]
    assert refusal["reason"] == "unsupported_modality" and "no tokenizer" in refusal["detail"]
    tiny_tokenizer().save_pretrained(folder)
    assert main(["layout", "--model", str(folder), *clip]) == 0
    assert printed(capsys)[0]["tokens"] == len("<77.1 seconds>") + 1 + 4 + 1


def test_a_file_has_a_size_and_an_identity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = folder_of(tmp_path, "qwen2_vl"), encoded(picture(width=56, height=84), "PNG")
    file = tmp_path / "picture.png"
    file.write_bytes(data)
    assert main(["layout", "--model", str(folder), str(file)]) == 0
    shown = capsys.readouterr().out
    assert "tokens  6" in shown and "6x151655" in shown and identity_of_bytes(data).hex in shown


def test_a_refusal_says_its_reason_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(folder_of(tmp_path, "qwen2_vl"))
    assert main(["layout", "--model", folder, "image:4000x2"]) == 2
    assert "size_refused" in capsys.readouterr().out
    strange = tmp_path / "strange.svg"
    strange.write_text("<svg/>")
    assert main(["layout", "--model", folder, str(strange)]) == 2
    assert "size_unknown" in capsys.readouterr().out
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    assert main(["layout", "--model", folder, "image:4x4"]) == 2
    assert "unsupported_family" in capsys.readouterr().out


def test_a_private_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(folder_of(tmp_path, "qwen2_vl"))
    assert main(["layout", "--model", folder, "--json", "http://127.0.0.1:9/x.png"]) == 2
    assert "allow_private_addresses" in printed(capsys)[0]["refusal"]["detail"]


def test_a_tokenizer_that_a_layout_needs_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"model_type": "llama4", "image_token_index": LLAMA4_TOKENS["<|patch|>"], "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["layout", "--model", str(tmp_path), "--json", "image:4x4"]) == 2
    refusal = printed(capsys)[0]["refusal"]
    assert refusal["reason"] == "layout_parameter_missing" and "<|image|>" in refusal["detail"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["image:4x4"],
        ["--model", "{model}"],
        ["--model", "{model}", "picture:4x4"],
        ["--model", "{model}", "image:4"],
        ["--model", "{model}", "image:0x4"],
        ["--model", "{model}", "video:4x4:2@30:indices=1"],
        ["--model", "{model}", "image:\u0663x\u0664"],
        ["--model", "{model}", "video:640x360:99999999"],
        ["--model", "{model}", "--max-model-len", "0", "image:4x4"],
        ["--model", "{model}", "--video-pruning-rate", "nan", "image:4x4"],
        ["--model", "{model}", "nowhere.png"],
        ["--model", "{model}", "--engine", "other", "image:4x4"],
        ["--model", "{model}", "--processor-kwargs", "[]", "image:4x4"],
        ["--model", "{model}/nowhere", "image:4x4"],
    ],
)
def test_a_wrong_call_ends_with_1(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(folder_of(tmp_path, "qwen2_vl"))
    assert main(["layout", *(word.replace("{model}", folder) for word in words)]) == 1
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", "[" * 100_000),
        ("preprocessor_config.json", "[]"),
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_a_broken_file_in_the_folder_ends_with_1(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    (folder / name).write_text(text)
    assert main(["layout", "--model", str(folder), "image:28x28"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("sightline: ") and name in error


@pytest.mark.parametrize(
    "settings",
    [
        {"patch_size": 0},
        {"merge_size": -1},
        {"patch_size": "large"},
        {"size": {"shortest_edge": 56, "longest_edge": "large"}},
        {"max_pixels": float("inf")},
    ],
)
def test_settings_that_are_no_numbers_are_refused_by_name(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert main(["layout", "--model", str(folder), "--json", "image:28x28"]) == 2
    assert printed(capsys)[0]["refusal"]["reason"] == "unsupported_family"


VISION = {"image_size": 336, "patch_size": 14}
NEXT = {"model_type": "llava_next", "image_token_index": 5, "vision_config": VISION}
KIMI = {"model_type": "kimi_k25", "media_placeholder_token_id": 7}
KIMI_LIMITS = {"in_patch_limit": 5, "patch_limit_on_one_side": 3}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llava", "image_token_index": 5, "vision_config": VISION | {"patch_size": 0}},
        {"model_type": "llava", "image_token_index": 5, "vision_config": VISION | {"image_size": 7}},
        {"model_type": "qwen2_vl", "image_token_id": True},
        NEXT | {"image_grid_pinpoints": "large"},
        NEXT | {"image_grid_pinpoints": [[336, 672], [336]]},
        NEXT | {"image_grid_pinpoints": [[0, 0]]},
        NEXT | {"image_grid_pinpoints": [[336, 336]], "vision_config": VISION | {"patch_size": 500}},
        KIMI | {"media_proc_cfg": KIMI_LIMITS | {"in_patch_limit": "many"}},
        KIMI | {"media_proc_cfg": KIMI_LIMITS | {"in_patch_limit": -5}},
        KIMI | {"media_proc_cfg": KIMI_LIMITS | {"patch_size": 0}},
        KIMI | {"media_proc_cfg": KIMI_LIMITS | {"merge_kernel_size": []}},
        KIMI | {"media_proc_cfg": KIMI_LIMITS | {"fixed_output_tokens": 0}},
        {"model_type": "internvl_chat", "vision_config": VISION, "min_dynamic_patch": 1,
         "max_dynamic_patch": 6, "downsample_ratio": "half"},
        {"model_type": "llama4", "vision_config": VISION | {"pixel_shuffle_ratio": 9}},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_a_refusal_and_no_crash(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["layout", "--model", str(tmp_path), "--json", "image:640x480"]) == 2
    assert printed(capsys)[0]["refusal"]["reason"] in ("unsupported_family", "layout_parameter_missing")


def test_a_file_may_be_named_by_its_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = folder_of(tmp_path, "qwen2_vl"), tmp_path / "a picture.png"
    file.write_bytes(encoded(picture(width=56, height=84), "PNG"))
    assert main(["layout", "--model", str(folder), "--json", file.as_uri()]) == 0
    assert printed(capsys)[0]["tokens"] == 6


def test_architectures_that_are_no_list_name_no_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": 5}')
    assert main(["layout", "--model", str(tmp_path), "--json", "image:28x28"]) == 2
    assert printed(capsys)[0]["refusal"]["reason"] == "unsupported_family"


def test_a_video_file_is_laid_out_by_the_frames_that_would_be_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = folder_of(tmp_path, "qwen2_vl"), tmp_path / "clip.mp4"
    file.write_bytes(clip(4, 56, 84))
    assert main(["layout", "--model", str(folder), "--json", str(file)]) == 0
    (answer,) = printed(capsys)
    assert answer["layout"] == [[151656, 12]]
    assert answer["spans"][0]["identity"] is not None
