"""Settings for the videos of a request."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from processors.video_decode import VideoLimits

__all__ = ["VideoConfig"]


class VideoConfig(BaseModel):
    """Who decodes videos, how many frames the model is given, and what is too much."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decode: Literal["ingress", "engine", "off"] = Field(
        "engine",
        description="Who decodes videos. `ingress`: before the choice of a worker, so that a video counts in "
        "routing as a picture does; the request waits for it there, and the frames travel to the replica. "
        "`engine`: the replica, after the choice; the request is routed on what comes before the video "
        "(`video_decoded_by_engine`). `off`: videos are refused with 400.",
    )
    num_frames: int = Field(
        32,
        ge=1,
        le=768,
        description="Frames of one video that the model is given at most, evenly spaced. More: finer in "
        "time, more tokens.",
    )
    workers: int = Field(
        2,
        ge=1,
        description="Decoder processes per replica at most. They start with the first video, and each "
        "decodes one video at a time.",
    )
    threads: int = Field(2, ge=1, description="Threads of one decoder process.")
    timeout_s: float = Field(
        20.0,
        gt=0,
        description="Seconds for decoding one video, and as many for waiting for a decoder. A decoder that "
        "takes longer is ended.",
    )
    max_pixels: int = Field(
        4096 * 2304,
        gt=0,
        description="Pixels of one frame (width x height). More are refused with 400 before decoding.",
    )
    max_source_frames: int = Field(
        54_000,
        gt=0,
        description="Frames of a video file (30 minutes at 30 a second). More are refused with 413.",
    )
    max_decoded_bytes: int = Field(
        512 * 1024 * 1024,
        gt=0,
        description="Bytes of the frames given to the model (frames x width x height x 3). More are refused "
        "with 413.",
    )

    @property
    def limits(self) -> VideoLimits:
        return VideoLimits(self.max_pixels, self.max_source_frames, self.max_decoded_bytes, self.threads)
