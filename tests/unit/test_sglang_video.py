"""Requests with clips as SGLang is given them: expanded by the model's own processor, pictures first."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from golden import files, golden, known_layout
from PIL import Image

from deployments.engines.sglang_layouts import layouts
from deployments.engines.sglang_media import MediaKeys, probe_prompt
from deployments.engines.sglang_video import ClipProcessor, foreseen_ids, images_first
from processors import DecodedVideo, ModelFiles, Shape
from processors.families.qwen2_vl import Qwen2VLLayout
from processors.families.smart_resize import PatchGrid
from sightline_types import DegradeReason, ImageSize, KeyScheme, Modality, VideoShape

IMAGE, VIDEO, TEXT = 7, 8, 1
GRID = PatchGrid.read({"patch_size": 14, "merge_size": 2, "min_pixels": 784, "max_pixels": 7840})
CLIP = VideoShape(ImageSize(4, 2), 2, 10.0, (0, 9), 10)


class Processor:
    """A picture becomes 70 70, a clip 80 81; both are refused where they are one pixel high."""

    image_token, video_token = "<image>", "<video>"

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        self.calls.append(kwargs)
        if "images" in kwargs:
            (picture,) = kwargs["images"]
            if picture.height == 1:
                raise ValueError("too flat")
            return {
                "input_ids": np.array([[70, 70]]),
                "pixel_values": np.full((1, 2), picture.width, np.float32),
                "image_grid_thw": np.array([[1, 1, 1]]),
            }
        (frames,) = kwargs["videos"]
        return {
            "input_ids": np.array([[80, 81]]),
            "pixel_values_videos": np.full((2, 2), len(frames), np.float32),
            "video_grid_thw": np.array([[1, 1, 2]]),
        }

    def __deepcopy__(self, memo: object) -> Processor:
        return self


def clip_processor(processor: Processor, merges_clips: bool = False) -> ClipProcessor:
    own = SimpleNamespace(_processor=processor, image_config={"max_pixels": 9})
    return ClipProcessor(own, Qwen2VLLayout("qwen2_vl", IMAGE, GRID, VIDEO, GRID, merges_clips=merges_clips))


def clip() -> DecodedVideo:
    return DecodedVideo(np.zeros((2, 2, 4, 3), np.uint8), CLIP)


def picture(width: int = 5, height: int = 5) -> Image.Image:
    return Image.new("RGB", (width, height))


async def test_each_placeholder_becomes_what_the_processor_makes_of_its_item() -> None:
    ready = await clip_processor(Processor()).ready(
        [TEXT, VIDEO, TEXT, IMAGE, VIDEO], [clip(), picture(), clip()]
    )
    assert ready.token_ids == [TEXT, 80, 81, TEXT, 70, 70, 80, 81]


async def test_one_output_holds_all_items_with_the_pictures_first() -> None:
    media = [clip(), picture(5), clip(), picture(6)]
    data = (await clip_processor(Processor()).ready([VIDEO, IMAGE, VIDEO, IMAGE], media)).data
    assert list(data) == [
        "format",
        "pixel_values",
        "image_grid_thw",
        "pixel_values_videos",
        "video_grid_thw",
    ]
    assert data["pixel_values"].tolist() == [[5, 5], [6, 6]]
    assert data["video_grid_thw"].tolist() == [[1, 1, 2]] * 2
    assert images_first([Modality.VIDEO, Modality.IMAGE, Modality.VIDEO, Modality.IMAGE]) == [1, 3, 0, 2]


async def test_frames_are_not_sampled_again_and_keep_their_times() -> None:
    processor = Processor()
    await clip_processor(processor).ready([VIDEO], [clip()])
    (call,) = processor.calls
    assert call["do_sample_frames"] is False
    (metadata,) = call["video_metadata"]
    assert (metadata["fps"], metadata["frames_indices"], metadata["total_num_frames"]) == (10.0, [0, 9], 10)


@pytest.mark.parametrize(
    ("tokens", "media"),
    [([VIDEO], []), ([VIDEO], [clip(), clip()]), ([IMAGE], [clip()]), ([IMAGE], [picture(5, 1)])],
    ids=["too few", "too many", "another kind", "refused"],
)
async def test_what_the_processor_cannot_take_is_an_error(tokens: list[int], media: list[Any]) -> None:
    with pytest.raises(ValueError):
        await clip_processor(Processor()).ready(tokens, media)


def qwen_files(family: str) -> ModelFiles:
    meta = golden(family)["meta"]
    config = {"model_type": family, **meta["token_ids"]}
    image = meta.get("processor_config") or meta["image_processor_config"]
    return files(config, image, video=meta.get("video_processor_config") or image)


async def test_several_clips_that_the_engine_takes_for_one_are_not_apart_and_routed_by_name() -> None:
    clips = clip_processor(Processor(), merges_clips=True)
    assert (await clips.ready([VIDEO, IMAGE], [clip(), picture()])).are_apart
    assert not (await clips.ready([VIDEO, VIDEO], [clip(), clip()])).are_apart
    on_vllm, on_sglang = (known_layout(qwen_files("qwen2_vl"), engine=name) for name in ("vllm", "sglang"))
    assert on_sglang.holds_only_cold([CLIP, CLIP])
    assert not on_sglang.holds_only_cold([CLIP, ImageSize(9, 9)])
    assert not on_vllm.holds_only_cold([CLIP, CLIP])


class Engine:
    """Clips come out as the registry foresees them, `more` tokens apart."""

    def __init__(self, layout: Any, more: int = 0) -> None:
        self._layout = layout
        self._more = more

    async def engine_ids(self, _: Any, token_ids: list[int], shapes: tuple[Shape, ...]) -> list[int] | None:
        ids = foreseen_ids(self._layout, token_ids, shapes)
        return None if ids is None else ids + [TEXT] * self._more


@pytest.mark.parametrize("more", [0, 1])
async def test_clips_are_exact_where_the_engine_agrees_and_by_name_where_it_does_not(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen_files("qwen3_vl")
    layout = known_layout(model, engine="sglang")

    async def run(_: Any, token_ids: list[int], sizes: tuple[ImageSize, ...]) -> Any:
        ids = foreseen_ids(layout, token_ids, sizes)
        if ids is None:
            raise ValueError("refused")
        return SimpleNamespace(input_ids=ids, mm_items=sizes)

    monkeypatch.setattr("deployments.engines.sglang_layouts.run_processor", run)
    keys = MediaKeys(KeyScheme.SGLANG_WIDE, True)
    found = await layouts(None, model, keys, Engine(layout, more))  # type: ignore[arg-type]
    assert [one.exact for one in found] == [True, not more, not more]
    if more:
        assert {one.reason for one in found[1:]} == {DegradeReason.CONTRACT_MISMATCH}
        assert "tokens, the registry" in found[1].detail


@pytest.mark.parametrize(
    ("fault", "detail"),
    [("merges", "640x480.*finds 1 items in a request with 3"), ("refuses", "refuses, unlike the registry")],
)
async def test_pictures_that_sglang_takes_otherwise_are_not_exact_and_the_request_is_named(
    fault: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen_files("qwen3_vl")
    layout = known_layout(model, engine="sglang")

    async def run(_: Any, token_ids: list[int], sizes: tuple[ImageSize, ...]) -> Any:
        ids = foreseen_ids(layout, token_ids, sizes)
        if ids is None or (fault == "refuses" and sizes[0].width == 3000):
            raise ValueError("refused")
        return SimpleNamespace(input_ids=ids, mm_items=sizes[:1] if fault == "merges" else sizes)

    monkeypatch.setattr("deployments.engines.sglang_layouts.run_processor", run)
    (found,) = await layouts(None, model, MediaKeys(KeyScheme.SGLANG_WIDE, True), None)
    assert (found.exact, found.reason) == (False, DegradeReason.CONTRACT_MISMATCH)
    assert re.search(detail, found.detail), found.detail


def test_a_probed_placeholder_stands_in_the_frame_of_the_familys_templates() -> None:
    """0.5.13 finds none without it."""
    model = qwen_files("qwen3_vl")
    layout = known_layout(model, engine="sglang")
    before, after = (
        model.tokenizer.encode(text, add_special_tokens=False)
        for text in ("<|vision_start|>", "<|vision_end|>")
    )
    prompt = probe_prompt(layout, model)
    place = prompt.index(layout.placeholders[Modality.IMAGE])
    assert before and prompt[place - len(before) : place] == before
    assert after and prompt[place + 1 : place + 1 + len(after)] == after
