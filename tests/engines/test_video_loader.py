"""A replica's decoding and sampling against vLLM's own loaders (OpenCV): the same frames, pixel for pixel."""

from __future__ import annotations

import numpy as np
import pytest

from processors import Sampling, VideoConfig
from processors.video_decode import decode_video
from processors.video_sampling import SamplingRule, frame_indices
from tests.engines import clips
from tests.engines.bench import ENGINE_IN_PROCESS

pytestmark = ENGINE_IN_PROCESS

RULES: tuple[SamplingRule, ...] = ("qwen3_vl", "qwen2_vl", "opencv")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("codec", "container"),
    [("libx264", "mp4"), ("libx265", "mp4"), ("libvpx-vp9", "webm"), ("libvpx", "webm"), ("mpeg4", "avi")],
)
def test_frames_are_those_of_the_engines_loader(rule: SamplingRule, codec: str, container: str) -> None:
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    data = clips.clip(300, num_frames=75, fps=15, codec=codec, container=container)
    ours = decode_video(data, Sampling(rule, 8), VideoConfig().limits)
    limit = {"num_frames": 8} if rule == "opencv" else {"max_frames": 8}
    theirs, metadata = VIDEO_LOADER_REGISTRY.load(rule).load_bytes(data, **limit)
    assert list(ours.shape.frame_indices) == metadata["frames_indices"]
    assert ours.shape.source_fps == pytest.approx(metadata["fps"])
    assert ours.shape.total_frames == metadata["total_num_frames"]
    assert np.array_equal(ours.frames, theirs)


@pytest.mark.parametrize("rule", RULES)
def test_indices_are_those_of_the_engines_loader(rule: SamplingRule) -> None:
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
    from vllm.multimodal.video_decoders import VideoSourceMetadata, VideoTargetMetadata

    loader = VIDEO_LOADER_REGISTRY.load(rule)
    random = np.random.default_rng(1)
    for _ in range(500):
        total, fps = int(random.integers(2, 12000)), float(random.choice([10, 24, 25, 30000 / 1001, 60]))
        target = VideoTargetMetadata(32, -1 if rule == "opencv" else 2, 300)
        source = VideoSourceMetadata(total, fps, total / fps)
        theirs = loader.compute_frames_index_to_sample(source, target, max_frames=32)
        assert list(frame_indices(Sampling(rule, 32), total, fps)) == list(dict.fromkeys(theirs))[:32]
