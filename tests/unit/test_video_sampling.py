"""Which frames of a clip are taken: our own rule, and those of the engines' loaders."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
from golden import golden
from hypothesis import given, settings
from hypothesis import strategies as st

from processors.video_sampling import Sampling, SamplingRule, frame_indices, loader_rule

CLIPS = {"total": st.integers(1, 20000), "fps": st.floats(0.5, 240), "most": st.integers(1, 768)}


@pytest.mark.parametrize("rule", get_args(SamplingRule))
@given(**CLIPS)
@settings(deadline=None, max_examples=60)
def test_every_rule_takes_some_frames_of_the_clip_in_order(
    rule: SamplingRule, total: int, fps: float, most: int
) -> None:
    indices = frame_indices(Sampling(rule, most), total, fps)
    assert 1 <= len(indices) <= min(most, total)
    assert list(indices) == sorted(set(indices))
    assert indices[0] == 0 and indices[-1] < total


@given(**CLIPS)
@settings(deadline=None, max_examples=200)
def test_our_rule_is_even_and_ends_with_the_last_frame(total: int, fps: float, most: int) -> None:
    indices = frame_indices(Sampling("uniform", most), total, fps)
    assert len(indices) == min(most, total)
    gaps = {after - before for before, after in itertools.pairwise(indices)}
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert len(indices) == 1 or indices[-1] == total - 1


@pytest.mark.parametrize(
    "row",
    [*golden("qwen3_vl")["sampling"], *golden("qwen3_5")["sampling"]],
    ids=lambda row: str(row["total_num_frames"]),
)
def test_the_loaders_rules_are_the_engines(row: dict[str, object]) -> None:
    total, fps = int(str(row["total_num_frames"])), float(str(row["fps"]) if row["fps"] else 24)
    assert list(frame_indices(Sampling("qwen3_vl", 768), total, fps)) == row["qwen3_vl_loader_default"]
    assert list(frame_indices(Sampling("opencv", 32), total, fps)) == row["opencv_loader_num_frames_32"]


def test_nemotrons_loader_samples_as_opencvs() -> None:
    assert loader_rule("vllm", {}) == "opencv"
    for row in golden("nemotron_omni")["sampling"]:
        indices = frame_indices(Sampling("opencv", 32), row["total_num_frames"], row["fps"])
        assert list(indices) == row["nemotron_vl_loader_num_frames_32"]


def test_num_frames_is_a_maximum_for_a_loaders_rule_too() -> None:
    assert len(frame_indices(Sampling("qwen3_vl", 32), 9000, 30.0)) == 32
    assert frame_indices(Sampling("qwen2_vl", 6), 100, 10.0) == (0, 16, 33, 50, 66, 83)


def test_sglang_takes_an_even_number_truncated() -> None:
    assert frame_indices(Sampling("sglang_qwen", 768), 50, 10.0) == (0, 5, 10, 16, 21, 27, 32, 38, 43, 49)


@pytest.mark.parametrize(
    ("engine", "processor", "rule"),
    [
        ("vllm", "Qwen3VLVideoProcessor", "qwen3_vl"),
        ("vllm", "Qwen2VLVideoProcessor", "qwen2_vl"),
        ("vllm", "Another", "opencv"),
        ("vllm", None, "opencv"),
        ("sglang", "Qwen3VLVideoProcessor", "sglang_qwen"),
        ("sglang", None, "opencv"),
    ],
)
def test_the_loader_is_found_by_engine_and_video_processor(
    engine: str, processor: str | None, rule: str
) -> None:
    assert loader_rule(engine, {"video_processor_type": processor} if processor else {}) == rule


@pytest.mark.parametrize(("total", "fps"), [(0, 10.0), (3, 0.0)])
def test_nothing_is_sampled_of_nothing(total: int, fps: float) -> None:
    with pytest.raises(ValueError, match="nothing to sample"):
        frame_indices(Sampling(), total, fps)


def test_a_limit_of_no_frames_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        Sampling("uniform", 0)
