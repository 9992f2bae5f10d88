"""The pool of decoder processes: limits, crashes, hangs, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from clips import clip

from processors import DecoderFailed, MediaTooLarge, Sampling, VideoConfig, VideoDecoders, VideoUndecodable
from processors.video_decode import decode_video

#: Long enough to be stopped within.
LONG = clip(60, 640, 480)
SHORT = clip(6)


@contextlib.asynccontextmanager
async def pool(**settings: object) -> AsyncIterator[VideoDecoders]:
    decoders = VideoDecoders(VideoConfig.model_validate({"timeout_s": 120} | settings))
    try:
        yield decoders
    finally:
        await decoders.aclose()
        assert decoders.processes == ()


async def when_busy(decoders: VideoDecoders, act: Callable[[int], object]) -> None:
    """Act on the process that decodes, once it has begun."""
    while not decoders.busy:
        await asyncio.sleep(0)
    act(decoders.busy[0])


async def test_a_process_decodes_as_this_one_would() -> None:
    async with pool() as decoders:
        ours = decode_video(SHORT, Sampling(), VideoConfig().limits)
        theirs = await decoders.decode(SHORT, Sampling())
    assert theirs.shape == ours.shape
    assert np.array_equal(theirs.frames, ours.frames)


async def test_a_process_serves_one_clip_after_another() -> None:
    async with pool(workers=1) as decoders:
        assert decoders.processes == ()  # none before the first video
        await decoders.decode(SHORT, Sampling())
        first = decoders.processes
        await asyncio.gather(*(decoders.decode(SHORT, Sampling()) for _ in range(3)))
        assert decoders.processes == first


async def test_there_are_never_more_processes_than_workers() -> None:
    async with pool(workers=2) as decoders:
        await asyncio.gather(*(decoders.decode(SHORT, Sampling()) for _ in range(6)))
        assert len(decoders.processes) == 2


@pytest.mark.parametrize(
    ("data", "settings", "kind", "words"),
    [
        (b"no video " * 50, {}, VideoUndecodable, "no container"),
        (SHORT.replace(b"avc1", b"zzzz"), {}, VideoUndecodable, "zzzz"),
        (SHORT, {"max_decoded_bytes": 1000}, MediaTooLarge, "video.max_decoded_bytes"),
        (SHORT, {"max_source_frames": 2}, MediaTooLarge, "video.max_source_frames"),
    ],
)
async def test_what_the_file_is_to_blame_for_comes_back_and_ends_no_process(
    data: bytes, settings: dict[str, int], kind: type[Exception], words: str
) -> None:
    async with pool(workers=1, **settings) as decoders:
        with pytest.raises(kind, match=words):
            await decoders.decode(data, Sampling())
        assert len(decoders.processes) == 1


async def test_a_decoder_that_is_killed_fails_its_request_only() -> None:
    async with pool(workers=1) as decoders:
        killing = asyncio.create_task(when_busy(decoders, lambda pid: os.kill(pid, signal.SIGKILL)))
        with pytest.raises(DecoderFailed, match="died"):
            await decoders.decode(LONG, Sampling())
        await killing
        assert (await decoders.decode(SHORT, Sampling())).shape.num_frames == 6


async def test_a_decoder_that_hangs_is_ended_at_the_time_limit() -> None:
    async with pool(workers=1, timeout_s=0.5) as decoders:
        stopping = asyncio.create_task(when_busy(decoders, lambda pid: os.kill(pid, signal.SIGSTOP)))
        with pytest.raises(DecoderFailed, match=r"video\.timeout_s") as caught:
            await decoders.decode(LONG, Sampling())
        await stopping
        assert caught.value.status == 408
        assert decoders.processes == ()


async def test_a_request_that_finds_no_decoder_free_is_told_so() -> None:
    async def stop_each(decoders: VideoDecoders) -> None:
        while True:
            for pid in decoders.busy:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.01)

    async with pool(workers=1, timeout_s=0.5) as decoders:
        stopping = asyncio.create_task(stop_each(decoders))
        work = [decoders.decode(LONG, Sampling()) for _ in range(3)]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        stopping.cancel()
    # The last has waited as long as it may, whether or not the second still got a decoder.
    statuses = [getattr(outcome, "status", None) for outcome in outcomes]
    assert statuses in ([408, 408, 503], [408, 503, 503])
    assert "video.workers" in str(outcomes[2])


async def test_a_client_that_leaves_frees_its_decoder() -> None:
    async with pool(workers=1) as decoders:
        leaving = asyncio.create_task(decoders.decode(LONG, Sampling()))
        await when_busy(decoders, lambda pid: leaving.cancel())
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (await decoders.decode(SHORT, Sampling())).shape.num_frames == 6


async def test_an_idle_decoder_that_died_is_replaced() -> None:
    async with pool(workers=1) as decoders:
        await decoders.decode(SHORT, Sampling())
        (process,) = decoders.processes
        psutil.Process(process).kill()
        while decoders.processes:
            await asyncio.sleep(0.01)
        assert (await decoders.decode(SHORT, Sampling())).shape.num_frames == 6


async def test_a_decoder_inherits_no_more_than_it_needs() -> None:
    """It is a fresh interpreter with FFmpeg in it, not a copy of a server that has threads and locks."""
    async with pool(workers=1) as decoders:
        await decoders.decode(SHORT, Sampling())
        loaded = {Path(file.path).name for file in psutil.Process(decoders.processes[0]).memory_maps()}
    assert any("avcodec" in name for name in loaded)
    assert not any("torch" in name or "tokenizers" in name for name in loaded)


def test_a_decoder_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    script = tmp_path / "parent.py"
    (tmp_path / "clip.mp4").write_bytes(SHORT)
    script.write_text(
        "import asyncio, os, sys, types\n"
        "face = sys.modules['processors'] = types.ModuleType('processors')\n"
        f"face.__path__ = [{str(root / 'processors')!r}]\n"  # without what a decoder does not need
        "from processors.video_config import VideoConfig\n"
        "from processors.video_pool import Sampling, VideoDecoders\n"
        "async def main():\n"
        "    decoders = VideoDecoders(VideoConfig())\n"
        f"    await decoders.decode(open({str(tmp_path / 'clip.mp4')!r}, 'rb').read(), Sampling())\n"
        "    print(decoders.processes[0], flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        check=False,
    )
    decoder = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(decoder).wait(timeout=60)
    assert not psutil.pid_exists(decoder)
