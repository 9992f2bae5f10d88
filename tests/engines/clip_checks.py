"""What every engine's clips are held to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from processors import MediaConfig, ModelFiles, PromptBuilder
from sightline_types import DegradeReason
from tests.engines import clips
from tests.engines.bench import Bench, Seen, check_lengths
from tests.engines.service import QUESTION, messages

__all__ = ["check_clip_lengths", "check_replica_decoded", "clip"]


def clip(seed: int, **more: Any) -> dict[str, Any]:
    return clips.inline(clips.clip(seed, **more))


async def check_clip_lengths(bench: Bench, shapes: Iterable[tuple[tuple[int, int], int, int]]) -> None:
    """shapes: size, frames, frames a second."""
    for number, (size, num_frames, fps) in enumerate(shapes):
        part = clip(number, size=size, num_frames=num_frames, fps=fps)
        seen = await check_lengths(bench, messages(part, "What?"))
        assert seen.prompt.is_exact, (size, num_frames, fps, seen.prompt.reasons)


async def check_replica_decoded(bench: Bench, picture: dict[str, Any]) -> Seen:
    """A clip that is not decoded before the choice, asked twice: the second time."""
    turns = messages(picture, clip(81, num_frames=20), QUESTION)
    media, files = MediaConfig(identity="content"), ModelFiles.load(bench.contract.model)
    exact = bench.prompts
    bench.prompts = PromptBuilder(files, media, enable_multimodal=True, fetcher=bench.fetcher)
    try:
        await bench.ask(turns)
        again = await bench.ask(turns)
    finally:
        bench.prompts = exact
    assert again.prompt.reasons == (DegradeReason.VIDEO_DECODED_BY_ENGINE,)
    # Foretold as far as it is known; the engine itself also finds the clip again.
    assert 0 < again.predicted_cached < again.cached_tokens
    return again
