"""Decoding: real files of many codecs and containers, and what is wrong with some."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from clips import clip, pictures, remuxed
from hypothesis import given, settings
from hypothesis import strategies as st

from processors import MediaTooLarge, RequestError, Sampling, UnsupportedMedia, VideoUndecodable
from processors.video_decode import DecodedVideo, VideoLimits, canonical_rate, decode_video
from sightline_types import ImageSize

LIMITS = VideoLimits(max_pixels=10**6, max_source_frames=1000, max_decoded_bytes=10**8, threads=2)


def decoded(data: bytes, max_frames: int = 32, limits: VideoLimits = LIMITS) -> DecodedVideo:
    return decode_video(data, Sampling("uniform", max_frames), limits)


@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("libx264", "mp4"),
        ("libx264", "matroska"),
        ("libx264", "mpegts"),
        ("libx265", "mp4"),
        ("libvpx", "webm"),
        ("libvpx-vp9", "webm"),
        ("libsvtav1", "mp4"),
        ("mpeg4", "avi"),
    ],
)
def test_every_codec_gives_its_frames(codec: str, container: str) -> None:
    video = decoded(clip(12, codec=codec, container=container), 5)
    assert video.frames.shape == (5, 64, 96, 3) and video.frames.dtype == np.uint8
    assert video.shape.frame_indices == (0, 3, 6, 8, 11)
    assert (video.shape.source_fps, video.shape.total_frames) == (10.0, 12)
    originals = np.stack([pictures(12)[index] for index in video.shape.frame_indices])
    assert np.abs(video.frames.astype(int) - originals).mean() < 12  # lossy, but these very frames


def test_a_gif_is_a_video_too() -> None:
    assert decoded(clip(4, codec="gif", container="gif", pixel_format="rgb8")).shape.num_frames == 4


@pytest.mark.parametrize(("rotation", "upright"), [(90, ImageSize(64, 96)), (180, ImageSize(96, 64))])
def test_a_turned_clip_comes_upright(rotation: int, upright: ImageSize) -> None:
    data = clip(3)
    plain, turned = decoded(data), decoded(remuxed(data, "mp4", rotation))
    assert turned.shape.size == upright
    quarters = {90: 1, 180: 2}[rotation]
    assert np.array_equal(turned.frames, np.rot90(plain.frames, quarters, axes=(1, 2)))


def test_a_variable_rate_counts_by_frame() -> None:
    video = decoded(clip(6, times=[0, 1, 2, 10, 30, 31]))
    assert video.shape.frame_indices == (0, 1, 2, 3, 4, 5)
    assert 0 < (video.shape.source_fps or 0) < 10


def test_a_stream_of_unknown_length_is_counted() -> None:
    live = clip(9, container="matroska", options={}, codec="libvpx-vp9")
    video = decoded(live[: live.rfind(b"\x1c\x53\xbb\x6b")])  # without its index
    assert video.shape.total_frames == 9


def test_audio_is_not_looked_at() -> None:
    assert decoded(clip(5, with_audio=True)).shape.num_frames == 5


def test_hidden_frames_do_not_count() -> None:
    options = {"auto-alt-ref": "1", "lag-in-frames": "10"}
    video = decoded(clip(30, codec="libvpx", container="webm", options=options), 4)
    assert (video.shape.num_frames, video.shape.total_frames) == (4, 30)


def test_a_broken_end_leaves_the_frames_before() -> None:
    whole = clip(30, container="matroska", options={"g": "5"})
    video = decoded(whole[: len(whole) * 2 // 3])
    assert 2 <= video.shape.num_frames < 30
    assert video.shape.frame_indices[-1] == (video.shape.total_frames or 0) - 1


def test_a_hole_in_the_middle_leaves_out_what_cannot_be_decoded() -> None:
    whole = bytearray(clip(30, codec="mpeg4", container="avi", options={"g": "1"}))
    middle = len(whole) // 2
    whole[middle : middle + 200] = bytes(200)
    video = decoded(bytes(whole))
    assert 2 <= video.shape.num_frames <= 30
    assert len(video.shape.frame_indices) == len(video.frames)


@pytest.mark.parametrize("other", ["matroska", "mov", "mpegts", "flv"])
def test_two_containers_of_one_clip_give_one_result(other: str) -> None:
    data = clip(12, fps=Fraction(30000, 1001))
    one, two = decoded(data), decoded(remuxed(data, other))
    assert one.shape == two.shape
    assert np.array_equal(one.frames, two.frames)


@pytest.mark.parametrize(
    ("rate", "usual"),
    [(29.97003, 30000 / 1001), (23.976, 24000 / 1001), (30.0001, 30.0), (12.5, 12.5), (29.5, 29.5)],
)
def test_rates_that_a_container_rounded_are_the_usual_ones(rate: float, usual: float) -> None:
    assert canonical_rate(rate) == usual


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"no video at all, but enough of it " * 20, 415, "no container"),
        (b"", 415, "no container"),
        (clip(3)[:200], 400, "broken"),
        (clip(3).replace(b"avc1", b"zzzz"), 415, "codec 'zzzz'"),
        (
            clip(3, container="matroska").replace(b"V_MPEG4/ISO/AVC", b"V_SIGHT/XXX/YYY"),
            415,
            "'V_SIGHT/XXX/YYY'",
        ),
    ],
)
def test_what_cannot_be_decoded_is_named(data: bytes, status: int, words: str) -> None:
    with pytest.raises(VideoUndecodable, match=words) as caught:
        decoded(data)
    assert caught.value.status == status


def test_a_clip_that_opens_and_has_no_frame_is_named_with_container_and_codec() -> None:
    data = bytearray(clip(3))
    start = data.find(b"mdat") + 4
    data[start : data.find(b"moov") - 4] = bytes(data.find(b"moov") - 4 - start)
    with pytest.raises(VideoUndecodable, match=r"no frame of the video \(container mov,.*, codec h264\)"):
        decoded(bytes(data))


def test_sound_alone_is_no_video() -> None:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with pytest.raises(VideoUndecodable, match="holds no video"):
        decoded(buffer.getvalue())


@pytest.mark.parametrize(
    "playlist",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"></MPD>',
    ],
)
def test_a_playlist_opens_nothing(playlist: bytes) -> None:
    with pytest.raises(VideoUndecodable, match="no container"):
        decoded(playlist)


@pytest.mark.parametrize(
    ("limits", "kind", "status", "setting"),
    [
        (VideoLimits(96 * 64 - 1, 1000, 10**8), UnsupportedMedia, 400, "video.max_pixels"),
        (VideoLimits(10**6, 11, 10**8), MediaTooLarge, 413, "video.max_source_frames"),
        (VideoLimits(10**6, 1000, 12 * 96 * 64 * 3 - 1), MediaTooLarge, 413, "video.max_decoded_bytes"),
    ],
)
def test_each_limit_is_refused_by_name(
    limits: VideoLimits, kind: type[UnsupportedMedia], status: int, setting: str
) -> None:
    with pytest.raises(kind, match=setting) as caught:
        decoded(clip(12), limits=limits)
    assert caught.value.status == status
    assert not isinstance(caught.value, VideoUndecodable)


def test_a_clip_at_its_limits_is_decoded() -> None:
    assert decoded(clip(12), limits=VideoLimits(96 * 64, 12, 12 * 96 * 64 * 3)).shape.num_frames == 12


def test_names_in_another_encoding_than_utf8_do_not_matter() -> None:
    data = clip(3).replace(b"Lavf", b"L\xe9vf")
    assert b"L\xe9vf" in data
    assert decoded(data).shape.num_frames == 3


FILES = (
    clip(6, 48, 32),
    clip(6, 48, 32, container="matroska"),
    clip(6, 48, 32, codec="mpeg4", container="avi"),
    clip(6, 48, 32, container="mpegts"),
    clip(6, 48, 32, container="flv"),
    clip(4, 48, 32, codec="gif", container="gif", pixel_format="rgb8"),
)


@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 30)), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=150)
def test_a_damaged_file_gives_frames_or_a_refusal(
    whole: bytes, damage: list[tuple[float, bytes, int]]
) -> None:
    data = bytearray(whole)
    for at, new, gone in damage:
        start = int(at * len(data))
        data[start : start + gone] = new
    try:
        video = decoded(bytes(data))
    except RequestError as error:
        assert error.status in (400, 413, 415)
    else:
        assert video.frames.shape[0] == video.shape.num_frames == len(video.shape.frame_indices) >= 1
