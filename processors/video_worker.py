"""The decoder process: reads one job after another from its standard input, and answers on standard output.

A message is the length of its header (4 bytes, little-endian), the header (JSON), and then as many bytes as
the header says. The process ends when its input does, so it never outlives the one that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from dataclasses import asdict
from typing import IO, Any

from processors.errors import RequestError
from processors.video_decode import DecodedVideo, VideoLimits, VideoUndecodable, decode_video
from processors.video_sampling import Sampling

__all__ = ["main", "read_header", "write_message"]

MAX_HEADER_BYTES = 1 << 16
#: Address space beyond the frames themselves: the file, FFmpeg's own frames, threads' stacks.
_SPARE_BYTES = 4 << 30


def main(max_decoded_bytes: int) -> None:
    """Serve jobs until the input ends."""
    jobs = sys.stdin.buffer
    # FFmpeg may print; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_resources(max_decoded_bytes)
    while (header := read_header(jobs)) is not None:
        data = jobs.read(header["length"])
        if len(data) < header["length"]:
            return  # the other side has gone
        # Ends the process even inside FFmpeg, and with nobody left to do it.
        signal.alarm(header["alarm_s"])
        _answer(answers, header, data)
        signal.alarm(0)


def read_header(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next message's header; None where the stream has ended.

    Raises:
        ValueError: what comes is no message.
    """
    prefix = stream.read(4)
    if len(prefix) < 4:
        return None
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    text = stream.read(length)
    header = json.loads(text) if len(text) == length else None
    if not isinstance(header, dict | None):
        raise ValueError("a header that is no object")
    return header


def write_message(stream: IO[bytes], header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    text = json.dumps(header).encode()
    stream.write(len(text).to_bytes(4, "little") + text)
    stream.write(body)
    stream.flush()


def _answer(answers: IO[bytes], header: dict[str, Any], data: bytes) -> None:
    try:
        video = decode_video(data, Sampling(**header["sampling"]), VideoLimits(**header["limits"]))
    except RequestError as error:
        write_message(answers, _error(error))
    except MemoryError:
        write_message(
            answers, _error(VideoUndecodable("decoding the video takes too much memory", status=400))
        )
    except Exception as error:
        # FFmpeg and its bindings raise whatever a file leads them to; the process stays sound.
        message = f"the video cannot be decoded ({type(error).__name__}: {error})"
        write_message(answers, _error(VideoUndecodable(message[:300], status=400)))
    else:
        write_message(answers, _shape(video), video.frames.reshape(-1).data)


def _error(error: RequestError) -> dict[str, Any]:
    undecodable = isinstance(error, VideoUndecodable)
    return {
        "error": error.message,
        "status": error.status,
        "code": error.code,
        "undecodable": undecodable,
    }


def _shape(video: DecodedVideo) -> dict[str, Any]:
    return {"length": video.frames.nbytes, "shape": asdict(video.shape)}


def _limit_resources(max_decoded_bytes: int) -> None:
    """A file may make FFmpeg ask for anything: memory is bounded, and nothing can be written to disk."""
    space = 2 * max_decoded_bytes + _SPARE_BYTES
    for what, limit in ((resource.RLIMIT_AS, space), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            # A tighter limit that is there already stays.
            resource.setrlimit(what, (limit, limit))
