"""Frames from an encoded video, with FFmpeg's decoders (through PyAV).

    UnsupportedMedia
    └── VideoUndecodable    415: a container or codec without a decoder here, or no frame; 400: a broken file

This module, `video_sampling` and `video_worker` are all of this package that a decoder process loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from processors.errors import MediaTooLarge, UnsupportedMedia
from processors.video_sampling import Sampling, frame_indices
from sightline_types import ImageSize, VideoShape

__all__ = ["DecodedVideo", "VideoLimits", "VideoUndecodable", "canonical_rate", "decode_video"]

#: Containers that hold a video themselves. Playlists (HLS, DASH, concat), image sequences and devices,
#: which would make FFmpeg open other files and addresses, are not among them.
_CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,gif,apng,ivf,nut,h264,hevc,obu"
)
_OPEN_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
#: What the Qwen loaders take for a clip that does not tell its rate.
_DEFAULT_FPS = 24.0
_MAX_FPS = 1000.0
#: Containers round times to milliseconds; rates this near to a usual one are that one.
_RATE_TOLERANCE = 1e-4
#: FFmpeg counts with the edges of its own buffers: this bounds what it allocates, our check what is served.
_SPARE_PIXELS = 1 << 20
#: The second is PyAV's own, at a stream that begins in the middle of a file.
_READ_ERRORS = (av.FFmpegError, IndexError)


class VideoUndecodable(UnsupportedMedia):
    """There is no frame to be had here; names container and codec."""


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """max_pixels: of a frame. max_decoded_bytes: of the sampled frames, RGB. threads: of the decoder."""

    max_pixels: int
    max_source_frames: int
    max_decoded_bytes: int
    threads: int = 1


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """What the engine is given.

    frames: shape (num_frames, height, width, 3), uint8, RGB, C-contiguous, upright.
    """

    frames: npt.NDArray[np.uint8]
    shape: VideoShape


@dataclass(slots=True)
class _Taken:
    """The sampled frames so far.

    frames: room for all of them, made with the first. total: frames that came out of the decoder, sampled
    or not.
    """

    frames: npt.NDArray[np.uint8] | None
    indices: list[int]
    total: int = 0


def decode_video(data: bytes, sampling: Sampling, limits: VideoLimits) -> DecodedVideo:
    """The sampled frames of the first video stream, turned upright; audio is not looked at.

    Frames count by their order, so that clips of a variable rate are sampled by frame, not by time; the
    rate is the stream's average. Frames that cannot be decoded are left out, as vLLM's loaders do.

    Raises:
        VideoUndecodable: see the module.
        UnsupportedMedia: 400 for frames above `max_pixels`.
        MediaTooLarge: 413 for more frames or bytes than the limits allow.
    """
    total, fps = _survey(data, limits)
    indices = frame_indices(sampling, total, fps)
    taken = _read(data, indices, limits)
    if len(taken.indices) < len(indices) and 0 < taken.total < total:
        # Fewer frames than packets (hidden frames, an edit list, a broken end): sample what there is.
        total = taken.total
        taken = _read(data, frame_indices(sampling, total, fps), limits)
    if taken.frames is None:
        raise VideoUndecodable(f"no frame of {_described(data)} can be decoded")
    frames = taken.frames[: len(taken.indices)]
    size = ImageSize(frames.shape[2], frames.shape[1])
    return DecodedVideo(frames, VideoShape(size, len(frames), fps, tuple(taken.indices), total))


def canonical_rate(rate: float) -> float:
    """The usual frame rate (an integer, or one of NTSC's) that `rate` stands for, or itself."""
    for usual in (float(round(rate)), round(rate * 1.001) * 1000 / 1001):
        if usual > 0 and abs(rate / usual - 1) < _RATE_TOLERANCE:
            return usual
    return rate


def _survey(data: bytes, limits: VideoLimits) -> tuple[int, float]:
    """Frames of the file, counted without decoding them, and frames a second."""
    with _opened(data) as container:
        stream = _video_stream(container, data)
        context = stream.codec_context
        _check_pixels(context.width, context.height, limits.max_pixels)
        times: list[int] = []
        count = 0
        for packet in _packets(container, stream):
            count += 1
            if packet.pts is not None:
                times.append(packet.pts)
            if count > limits.max_source_frames:
                message = f"the video has more than {limits.max_source_frames} frames"
                raise MediaTooLarge(f"{message} (video.max_source_frames). Send a shorter one.")
        if count == 0:
            raise VideoUndecodable(f"{_named(container, data)} holds no frame")
        return count, _rate(stream, times)


def _read(data: bytes, indices: tuple[int, ...], limits: VideoLimits) -> _Taken:
    """The frames at `indices`; reads no further than the last of them."""
    taken, wanted = _Taken(None, []), frozenset(indices)
    with _opened(data) as container:
        stream = _video_stream(container, data)
        stream.codec_context.options = {"max_pixels": str(2 * limits.max_pixels + _SPARE_PIXELS)}
        stream.codec_context.thread_count = limits.threads
        stream.thread_type = "AUTO"
        for frame in _decoded(container, stream):
            if taken.total in wanted:
                _take(frame, taken, len(indices), limits)
            taken.total += 1
            if taken.total > indices[-1]:
                break
    return taken


def _take(frame: Any, taken: _Taken, num_frames: int, limits: VideoLimits) -> None:
    _check_pixels(frame.width, frame.height, limits.max_pixels)
    pixels = _upright(frame)
    height, width, _ = pixels.shape
    if taken.frames is None:
        _check_bytes(num_frames, pixels, limits.max_decoded_bytes)
        taken.frames = np.empty((num_frames, height, width, 3), dtype=np.uint8)
    elif pixels.shape != taken.frames.shape[1:]:
        # The picture changes its size within the clip.
        pixels = _resized(pixels, taken.frames.shape[2], taken.frames.shape[1])
    taken.frames[len(taken.indices)] = pixels
    taken.indices.append(taken.total)


def _upright(frame: Any) -> npt.NDArray[np.uint8]:
    """RGB, turned by the stream's rotation (quarters only, as OpenCV does)."""
    pixels: npt.NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    quarters = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarters)) if quarters else pixels


def _resized(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    resized: npt.NDArray[np.uint8] = frame.to_ndarray(width=width, height=height, format="rgb24")
    return resized


def _opened(data: bytes) -> Any:
    try:
        return av.open(BytesIO(data), options=dict(_OPEN_OPTIONS), metadata_errors="replace")
    except av.FFmpegError as error:
        broken = isinstance(error, av.EOFError) or _looks_like_video(data)
        problem = "is broken or cut off" if broken else "is of no container that is read here"
        message = f"the video {problem}; send MP4, WebM, Matroska, MOV or AVI"
        raise VideoUndecodable(message, status=400 if broken else 415) from None


def _looks_like_video(data: bytes) -> bool:
    """The first bytes of MP4/MOV, Matroska/WebM, AVI."""
    return (
        data[4:8] == b"ftyp" or data[:4] == b"\x1aE\xdf\xa3" or (data[:4], data[8:12]) == (b"RIFF", b"AVI ")
    )


def _video_stream(container: Any, data: bytes) -> Any:
    """The first stream that is a video and no cover picture."""
    for stream in container.streams.video:
        if stream.disposition & av.stream.Disposition.attached_pic:
            continue
        if stream.codec_context is None:
            raise VideoUndecodable(f"there is no decoder for {_named(container, data)}")
        return stream
    raise VideoUndecodable(f"the file (container {container.format.name}) holds no video")


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Packets that become frames; reading ends where the file is broken."""
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                yield packet
    except _READ_ERRORS:
        return


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """Every frame that can be decoded; packets that cannot are skipped."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except _READ_ERRORS:
            packet = None
        try:
            yield from stream.decode(packet)
        except av.FFmpegError:
            if packet is not None and packet.size:
                continue
        if packet is None or not packet.size:
            return


def _rate(stream: Any, times: list[int]) -> float:
    """Frames a second: the stream's average, else its guess, else by the packets' times, else 24."""
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and 0 < rate <= _MAX_FPS:
            return canonical_rate(float(rate))
    span = float((max(times) - min(times)) * stream.time_base) if times else 0.0
    rate = (len(times) - 1) / span if span > 0 else 0.0
    return canonical_rate(rate) if 0 < rate <= _MAX_FPS else _DEFAULT_FPS


def _check_pixels(width: int, height: int, limit: int) -> None:
    if width * height > limit:
        message = f"the video has frames of {width}x{height} = {width * height} pixels; the limit is {limit}"
        raise UnsupportedMedia(f"{message} (video.max_pixels). Send a smaller one.", status=400)


def _check_bytes(num_frames: int, pixels: npt.NDArray[np.uint8], limit: int) -> None:
    height, width, _ = pixels.shape
    needed = num_frames * pixels.nbytes
    if needed > limit:
        message = f"{num_frames} frames of {width}x{height} are {needed} bytes; the limit is {limit}"
        raise MediaTooLarge(f"{message} (video.max_decoded_bytes). Send a smaller video.")


def _described(data: bytes) -> str:
    with _opened(data) as container:
        return _named(container, data)


def _named(container: Any, data: bytes) -> str:
    """Container and codec as an error names them."""
    contexts = [stream.codec_context for stream in container.streams.video]
    known = next((context.codec.canonical_name for context in contexts if context is not None), None)
    return f"the video (container {container.format.name}, codec {known or _codec_tag(data)})"


def _codec_tag(data: bytes) -> str:
    """The file's own name for a codec that FFmpeg does not know: MP4's sample entry, Matroska's codec id."""
    found = re.search(rb"stsd.{12}([ -~]{4})", data, re.DOTALL) or re.search(rb"(V_[A-Z0-9_/]{1,32})", data)
    return "unknown" if found is None else repr(found.group(1).decode("ascii"))
