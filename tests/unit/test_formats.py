"""Every format and oddity: the header tells the size that the decoder will give, or names what it is."""

from __future__ import annotations

import tracemalloc
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_pictures import heif, huge_ico, huge_png, odd_corpus, refused_files
from picture_files import HEIGHT, WIDTH, corpus
from PIL import Image

from processors import NeedMoreBytes, UnknownFormat, UnsupportedMedia, decode_image, probe_image
from processors.data_url import data_url_head, parse_data_url
from processors.errors import RequestError
from processors.formats import named_format
from processors.probe import ProbeError
from processors.url_names import normalized_url
from sightline_types import ImageSize

LIMIT = 178_956_970
SIZE, TURNED = ImageSize(WIDTH, HEIGHT), ImageSize(HEIGHT, WIDTH)


@pytest.mark.parametrize("name", odd_corpus())
def test_the_size_in_the_header_is_that_of_the_decoded_picture(name: str) -> None:
    data = odd_corpus()[name]
    assert probe_image(data) == ImageSize(*decode_image(data, max_pixels=LIMIT).size)


@pytest.mark.parametrize("name", corpus())
def test_the_decoder_agrees_on_the_common_formats_too(name: str) -> None:
    data = corpus()[name]
    assert probe_image(data) == ImageSize(*decode_image(data, max_pixels=LIMIT).size)


def test_the_corpus_holds_avif_files_that_lie_on_their_side() -> None:
    turned = {name for name, data in odd_corpus().items() if probe_image(data) == TURNED}
    assert turned == {f"avif-turned-{turn}" for turn in (5, 6, 7, 8)}


@pytest.mark.parametrize("name", odd_corpus())
def test_a_file_cut_short_asks_for_more_or_tells_the_same(name: str) -> None:
    data = odd_corpus()[name][:3000]
    whole = probe_image(odd_corpus()[name])
    for end in range(0, len(data), 13):
        try:
            assert probe_image(data[:end]) == whole
        except NeedMoreBytes:
            continue


@pytest.mark.parametrize("wide_ids", [False, True])
@pytest.mark.parametrize("brand", [b"heic", b"mif1", b"avif"])
def test_the_primary_items_size_and_rotation_count_in_heif(brand: bytes, wide_ids: bool) -> None:
    sizes = [probe_image(heif(brand, turn=turn, wide_ids=wide_ids)) for turn in (None, 0, 1, 2, 3)]
    assert sizes == [SIZE, SIZE, TURNED, SIZE, TURNED]


def test_a_rotation_in_an_avif_is_what_pillow_makes_of_it() -> None:
    """`irot` of a real file, set by hand: the decoder and the header reader agree for all four."""
    data = bytearray(odd_corpus()["avif-turned-6"])
    at = data.index(b"irot") + 4
    for turn in range(4):
        data[at] = turn
        assert probe_image(bytes(data)) == ImageSize(*decode_image(bytes(data), max_pixels=LIMIT).size)


def test_heic_is_sized_and_refused_by_its_name_where_it_is_decoded() -> None:
    assert probe_image(heif(b"heic")) == SIZE
    with pytest.raises(UnsupportedMedia, match="HEIC") as caught:
        decode_image(heif(b"heic"), max_pixels=LIMIT)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    "data",
    [
        heif().replace(b"ispe", b"xspe"),
        heif().replace(b"pitm", b"xitm"),
        heif()[:24] + b"\xff" * 60,
        b"\0\0\0\x10ftypheic" + bytes(90),
    ],
)
def test_a_heif_file_that_makes_no_sense_has_no_size(data: bytes) -> None:
    with pytest.raises(ProbeError):
        probe_image(data)


@pytest.mark.parametrize("name", refused_files())
def test_what_is_no_picture_is_refused_by_its_name(name: str) -> None:
    data = refused_files()[name]
    assert named_format(data) == name
    with pytest.raises(UnknownFormat, match=name):
        probe_image(data)
    with pytest.raises(UnsupportedMedia, match=name) as caught:
        decode_image(data, max_pixels=LIMIT)
    assert caught.value.status == 415
    assert "PNG" in caught.value.message


@pytest.mark.parametrize("name", sorted(corpus() | odd_corpus()))
def test_no_picture_is_taken_for_something_else(name: str) -> None:
    assert named_format((corpus() | odd_corpus())[name][:4096]) is None


@pytest.mark.parametrize("make", [huge_png, huge_ico])
def test_a_picture_that_declares_a_huge_size_is_refused_before_it_is_decoded(make: object) -> None:
    data = huge_png() if make is huge_png else huge_ico()
    tracemalloc.start()
    with pytest.raises(UnsupportedMedia, match=r"media\.max_pixels") as caught:
        decode_image(data, max_pixels=LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 400
    assert peak < 10 * 2**20


def test_an_animation_is_its_first_frame_in_every_format() -> None:
    for name in ("png-animated", "avif-animated"):
        image = Image.open(BytesIO(odd_corpus()[name]))
        image.seek(0)
        assert decode_image(odd_corpus()[name], max_pixels=LIMIT).tobytes() == image.convert("RGB").tobytes()


# Nothing raises but what is ours, whatever the bytes

ALL = {
    **corpus(),
    **odd_corpus(),
    "heic": heif(turn=1),
    "huge": huge_png(),
    "huge-ico": huge_ico(),
} | refused_files()


def damaged(data: st.DataObject, head: int) -> bytes:
    file = bytearray(ALL[data.draw(st.sampled_from(sorted(ALL)))][:head])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(file) - 1))
        piece = data.draw(
            st.sampled_from([b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80", b"\1"])
        )
        if data.draw(st.booleans()):
            file[at : at + len(piece)] = piece
        else:
            file[at:at] = piece
    return bytes(file)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_no_damage_makes_the_header_readers_raise_anything_else(data: st.DataObject) -> None:
    file = damaged(data, 700)
    named_format(file)
    try:
        size = probe_image(file)
    except ProbeError:
        return
    assert size.width > 0 and size.height > 0


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_damage_makes_the_decoder_raise_anything_else(data: st.DataObject) -> None:
    try:
        image = decode_image(damaged(data, 4000), max_pixels=10**6)
    except RequestError as error:
        assert error.status in (400, 415)
        assert len(error.message) < 500
    else:
        assert image.mode == "RGB" and image.width * image.height <= 10**6


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("data:;base64,DATA%2B0=/+ \nA\u00e9\ud800"), max_size=60), st.integers(0, 40))
def test_no_data_url_raises_anything_else(tail: str, num_bytes: int) -> None:
    for url in (tail, "data:" + tail, "data:;base64," + tail):
        try:
            whole = parse_data_url(url, max_bytes=40)
        except RequestError as error:
            assert error.status in (400, 413)
            continue
        assert whole.startswith(data_url_head(url, num_bytes))


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=3000), st.integers(1, 200), st.integers(0, 2))
def test_the_beginning_of_a_data_url_is_the_beginning_of_its_bytes(
    data: bytes, num_bytes: int, spelling: int
) -> None:
    import base64

    text = base64.b64encode(data).decode()
    percent = "".join(f"%{byte:02X}" for byte in data)
    url = ["data:;base64," + text, "data:;base64," + text.replace("+", "%2B"), "data:," + percent][spelling]
    head = data_url_head(url, num_bytes)
    assert data.startswith(head)
    assert len(head) >= min(num_bytes, len(data)) - 3


def test_the_rest_of_a_data_url_is_not_looked_at() -> None:
    assert data_url_head("data:;base64," + "AAAA" * 100 + "####", 9) == bytes(9)


# Normalized URLs

PRESIGNED = {
    "AWS": ("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=k&X-Amz-Date=1&X-Amz-Expires=9&"
            "X-Amz-Security-Token=t&X-Amz-SignedHeaders=host&X-Amz-Signature=s"),
    "AWS, old": "AWSAccessKeyId=k&Expires=9&Signature=s",
    "Google": "X-Goog-Algorithm=a&X-Goog-Credential=k&X-Goog-Date=1&X-Goog-Expires=9&X-Goog-Signature=s",
    "Google, old": "GoogleAccessId=k&Expires=9&Signature=s",
    "Azure": "sv=2022&ss=b&srt=o&sp=r&se=2026&st=2025&spr=https&sip=1&sr=b&sig=s%2Bx",
    "Azure, delegated": "sv=2022&skoid=a&sktid=b&skt=c&ske=d&sks=b&skv=e&se=9&sr=b&sp=r&sig=s",
    "CloudFront": "Expires=9&Signature=s&Key-Pair-Id=k",
    "CloudFront, policy": "Policy=p&Signature=s&Key-Pair-Id=k&Hash-Algorithm=SHA256",
    "anybody": "expires=9&signature=s",
}  # fmt: skip


@pytest.mark.parametrize("name", PRESIGNED)
def test_a_presigned_url_is_what_it_signs(name: str) -> None:
    from processors.config import DEFAULT_IGNORED_PARAMETERS as ignored

    plain = "https://bucket.host/a%20b.png?version=3&w=100"
    signed = f"{plain}&{PRESIGNED[name]}"
    assert normalized_url(signed, ignored) == plain
    assert normalized_url(signed.replace("=9", "=10").replace("=s", "=t"), ignored) == plain


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("HTTPS://me:pw@Host.Example:443/A?b=1#part", "https://me:pw@host.example/A?b=1"),
        ("http://host:8080?x", "http://host:8080/?x"),
        ("http://[::1]:80/a?sp=2&sr=1", "http://[::1]/a?sp=2&sr=1"),
        ("http://host/a?b=2&a=1&b=2", "http://host/a?b=2&a=1&b=2"),
        ("http://host/a?%45xpires=1&b=%2f", "http://host/a?b=%2f"),
        ("http://host:bad/a?Expires=1", "http://host:bad/a?Expires=1"),
    ],
)
def test_what_chooses_a_file_stays_as_it_is(url: str, kept: str) -> None:
    from processors.config import DEFAULT_IGNORED_PARAMETERS as ignored

    assert normalized_url(url, ignored) == kept


def test_a_url_that_nobody_fetches_is_not_taken_apart() -> None:
    """It may be as long as a request's body."""
    url = "http://host/?" + "sig=1&" * 2000
    assert normalized_url(url, ("sig",)) == url


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from("htps:/@[]?&=#%x.1 \u00e9"), max_size=30))
def test_no_url_breaks_the_normalizer_and_twice_is_once(tail: str) -> None:
    from processors.config import DEFAULT_IGNORED_PARAMETERS as ignored

    for url in (tail, "http://" + tail, "http://host/" + tail):
        once = normalized_url(url, ignored)
        assert normalized_url(once, ignored) == once
