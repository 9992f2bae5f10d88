"""Small video files, made on the spot."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def pictures(num_frames: int = 12, width: int = 96, height: int = 64, seed: int = 0) -> list[Pixels]:
    """Smooth pictures that all differ; `seed` shifts their colours."""
    y, x = np.mgrid[:height, :width]
    return [
        np.stack([x * 2 + i * 5, y * 3 + seed * 40, np.full_like(x, i * 9 + seed * 90)], -1).astype(np.uint8)
        for i in range(num_frames)
    ]


def clip(
    num_frames: int = 12,
    width: int = 96,
    height: int = 64,
    *,
    fps: int | Fraction = 10,
    codec: str = "libx264",
    container: str = "mp4",
    pixel_format: str = "yuv420p",
    times: list[int] | None = None,
    seed: int = 0,
    with_audio: bool = False,
    options: dict[str, str] | None = None,
) -> bytes:
    """An encoded video. times: of each frame, in units of 1/fps, for a variable rate."""
    buffer = io.BytesIO()
    with scheduling_kept(), av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps, options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        audio = output.add_stream("aac", rate=8000) if with_audio else None
        for index, pixels in enumerate(pictures(num_frames, width, height, seed)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[index], 1 / Fraction(fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate = 8000
            output.mux(audio.encode(silence))
            output.mux(audio.encode(None))
    return buffer.getvalue()


@contextmanager
def scheduling_kept() -> Iterator[None]:
    """SVT-AV1 makes the thread that encodes, and with it all processes that it starts later, real-time at
    the highest priority where it may: as root."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def remuxed(data: bytes, container: str, rotation: int | None = None) -> bytes:
    """The same packets in another container, or turned. (Encoding twice need not give the same.)"""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        stream = source.streams.video[0]
        copied = output.add_stream_from_template(stream)
        if rotation is not None:
            copied.set_display_rotation(rotation)
        for packet in source.demux(stream):
            if packet.dts is not None:
                packet.stream = copied
                output.mux(packet)
    return buffer.getvalue()
