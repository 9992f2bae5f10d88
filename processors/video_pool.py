"""A pool of decoder processes: a file that crashes or hangs a decoder costs its own request, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from processors.errors import MediaTooLarge, RequestError, UnsupportedMedia
from processors.video_config import VideoConfig
from processors.video_decode import DecodedVideo, VideoUndecodable
from processors.video_sampling import Sampling
from processors.video_worker import read_header, write_message
from sightline_types import ImageSize, VideoShape

__all__ = ["DecoderFailed", "VideoDecoders"]

#: A fresh interpreter rather than a fork, which would copy locks that threads of this process hold. The
#: package is put in place without its face, which loads far more than a decoder needs.
_BOOT = """
import sys, types
root, package, limit = sys.argv[1:]
sys.path.insert(0, root)
face = types.ModuleType("processors")
face.__path__ = [package]
sys.modules["processors"] = face
from processors.video_worker import main
main(int(limit))
"""
#: A decoder that hangs is ended by us; where we are gone it ends itself so many seconds later.
_ALARM_MARGIN_S = 10


class DecoderFailed(RequestError):
    """Not the file's fault for certain: no decoder was free, or it took too long, or it died."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        super().__init__(message, status=status, code=code, type=kind)


class VideoDecoders:
    """One per process; to be closed. Belongs to one event loop. Processes start when they are needed."""

    def __init__(self, config: VideoConfig) -> None:
        self._config = config
        self._slots = asyncio.Semaphore(config.workers)
        self._threads = ThreadPoolExecutor(config.workers, thread_name_prefix="video")
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()

    async def decode(self, data: bytes, sampling: Sampling) -> DecodedVideo:
        """
        Raises:
            VideoUndecodable: as `video_decode.decode_video`.
            UnsupportedMedia: 400, MediaTooLarge: 413, as there.
            DecoderFailed: 503 where no decoder came free in time, 408 where decoding took too long, 400
                where the decoder died.
        """
        limit = self._config.timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._slots.acquire()
        except TimeoutError:
            message = f"no video decoder came free within {limit:g} s (video.timeout_s, video.workers)"
            raise DecoderFailed(f"{message}; try again", status=503, code="video_decoders_busy") from None
        try:
            return await self._decode(data, sampling)
        finally:
            self._slots.release()

    async def _decode(self, data: bytes, sampling: Sampling) -> DecodedVideo:
        process = self._take()
        job = asyncio.get_running_loop().run_in_executor(self._threads, process.decode, data, sampling)
        try:
            async with asyncio.timeout(self._config.timeout_s):
                answer = await asyncio.shield(job)
        except TimeoutError:
            message = f"decoding the video took longer than {self._config.timeout_s:g} s (video.timeout_s)"
            raise DecoderFailed(
                f"{message}. Send a shorter or smaller one.", status=408, code="timeout"
            ) from None
        finally:
            self._busy.discard(process)
            if job.done() and job.exception() is None:
                self._idle.append(process)
            else:
                # The thread that waits for the process ends with it; what it says then is not asked for.
                process.kill()
                job.add_done_callback(process.close_after)
        if isinstance(answer, RequestError):
            raise answer
        return answer

    def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                break
            process.close()
        else:
            process = _Process(self._config)
        self._busy.add(process)
        return process

    @property
    def busy(self) -> tuple[int, ...]:
        """Ids of the processes that decode."""
        return tuple(process.pid for process in self._busy)

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that run."""
        return tuple(process.pid for process in (*self._idle, *self._busy) if process.is_alive)

    async def aclose(self) -> None:
        """Ends every process; what is being decoded fails."""
        for process in self._busy:
            process.kill()
        while self._idle:
            self._idle.pop().close()
        await asyncio.to_thread(self._threads.shutdown)


class _Process:
    """One decoder process, used from one thread at a time; `kill` from any."""

    def __init__(self, config: VideoConfig) -> None:
        self._limits = config.limits
        self._alarm_s = math.ceil(config.timeout_s) + _ALARM_MARGIN_S
        package = Path(__file__).resolve().parent
        command = [sys.executable, "-P", "-c", _BOOT, str(package.parent), str(package)]
        self._child = subprocess.Popen(
            [*command, str(config.max_decoded_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def decode(self, data: bytes, sampling: Sampling) -> DecodedVideo | RequestError:
        """Blocks until the process has answered or died. Returns what the file is to blame for.

        Raises:
            DecoderFailed: the process died, or said what it cannot mean.
        """
        jobs, answers = self._child.stdin, self._child.stdout
        assert jobs is not None and answers is not None
        header = {
            "length": len(data),
            "alarm_s": self._alarm_s,
            "sampling": asdict(sampling),
            "limits": asdict(self._limits),
        }
        try:
            write_message(jobs, header, data)
            return self._answer(answers)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            problem = f"the decoder died of the video ({type(error).__name__})"
            raise DecoderFailed(problem, status=400, code="video_decoder_died") from None

    def _answer(self, answers: IO[bytes]) -> DecodedVideo | RequestError:
        header = read_header(answers)
        if header is None:
            raise EOFError
        if "error" in header:
            return _as_error(header)
        shape = _as_shape(header["shape"])
        count = shape.num_frames * shape.size.width * shape.size.height * 3
        if count > self._limits.max_decoded_bytes:
            raise ValueError("more frames than were allowed")
        frames = np.empty(count, dtype=np.uint8)
        _fill(answers, frames.data)
        return DecodedVideo(frames.reshape(shape.num_frames, shape.size.height, shape.size.width, 3), shape)

    def kill(self) -> None:
        """Wherever it is; a thread in `decode` then comes back."""
        self._child.kill()
        self._child.wait()

    def close_after(self, job: asyncio.Future[Any]) -> None:
        """`close` at the end of what a thread does here; an error of it is known already."""
        if not job.cancelled():
            job.exception()
        self.close()

    def close(self) -> None:
        """`kill`, where no thread is in `decode` any more."""
        self.kill()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


def _fill(stream: IO[bytes], room: memoryview) -> None:
    done = 0
    while done < len(room):
        count = stream.readinto(room[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count


def _as_error(header: dict[str, Any]) -> RequestError:
    message, status = str(header["error"]), int(header["status"])
    if header["undecodable"]:
        return VideoUndecodable(message, status=status)
    return MediaTooLarge(message) if status == 413 else UnsupportedMedia(message, status=status)


def _as_shape(said: dict[str, Any]) -> VideoShape:
    size = ImageSize(int(said["size"]["width"]), int(said["size"]["height"]))
    indices = tuple(int(index) for index in said["frame_indices"])
    shape = VideoShape(
        size, int(said["num_frames"]), float(said["source_fps"]), indices, int(said["total_frames"])
    )
    if min(size.width, size.height, shape.num_frames) < 1 or len(indices) != shape.num_frames:
        raise ValueError("a shape that cannot be")
    return shape
