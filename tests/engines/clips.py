"""Video files for the engine tests, made on the spot."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np

from tests.engines import pictures as make

#: With the tiny Qwen3-VL: 12 frames make 6 groups of 5 x 4 tokens and their times, over five blocks of 32.
SIZE = (160, 128)
FRAMES = 12


def clip(
    seed: int,
    size: tuple[int, int] = SIZE,
    num_frames: int = FRAMES,
    fps: int = 10,
    codec: str = "libx264",
    container: str = "mp4",
) -> bytes:
    """Moving noise, coarse enough for a codec to keep it."""
    width, height = size
    coarse = np.random.default_rng(seed).integers(0, 255, (num_frames, 4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for pixels in coarse:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            output.mux(stream.encode(frame.reformat(width, height, "yuv420p")))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def remuxed(data: bytes, container: str) -> bytes:
    """The same packets in another container."""
    return _copied(data, container, 1)


def slowed(data: bytes, factor: int) -> bytes:
    """The same frames, `factor` times as long each: another frame rate."""
    return _copied(data, "mp4", factor)


def _copied(data: bytes, container: str, factor: int) -> bytes:
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        stream = source.streams.video[0]
        copied = output.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.dts is None:
                continue
            packet.dts, packet.pts = packet.dts * factor, packet.pts * factor
            packet.duration *= factor
            packet.stream = copied
            output.mux(packet)
    return buffer.getvalue()


def video_part(url: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url}}


def inline(data: bytes) -> dict[str, Any]:
    return video_part(make.data_url(data, "video/mp4"))
