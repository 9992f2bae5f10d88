"""Fetching media from a real server on the loopback address."""

from __future__ import annotations

import base64
import gzip
import logging
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from origin_server import Answer, Origin, origin
from picture_files import HEIGHT, WIDTH, corpus, encoded, picture

from processors import Fetcher, MediaConfig, MediaTooLarge, MediaUnreachable, RequestError
from processors.data_url import parse_data_url
from processors.network import AddressRefused, is_public
from sightline_types import ImageSize

SIZE = ImageSize(WIDTH, HEIGHT)
PNG = corpus()["png-RGB"]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers["/a.png"] = Answer(PNG)
        yield running


def fetcher(clock: Any = lambda: 0.0, resolver: Any = None, **settings: Any) -> Fetcher:
    media = MediaConfig(
        **{
            "allow_private_addresses": True,
            "fetch_timeout_s": 10,
            "probe_timeout_ms": 10000,
            "probe_budget_ms": 10000,
            **settings,
        }
    )
    return Fetcher(media, clock=clock, **({"resolver": resolver} if resolver else {}))


async def failure(url: str, **settings: Any) -> RequestError:
    client = fetcher(**settings)
    try:
        with pytest.raises(RequestError) as caught:
            await client.fetch(url)
    finally:
        await client.aclose()
    return caught.value


# The whole file


async def test_a_file_arrives_whole(server: Origin) -> None:
    client = fetcher()
    assert await client.fetch(server.url("/a.png")) == PNG
    await client.aclose()


@pytest.mark.parametrize(
    "status", ["401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone", "429 Slow"]
)
async def test_the_origins_own_4xx_is_the_answer(server: Origin, status: str) -> None:
    server.answers["/gone"] = Answer(status=status)
    error = await failure(server.url("/gone"))
    assert isinstance(error, MediaUnreachable)
    assert error.status == int(status[:3])
    assert status[:3] in error.message


@pytest.mark.parametrize("status", ["500 Oh", "503 No", "304 Not Modified"])
async def test_any_other_failure_of_the_origin_is_a_400(server: Origin, status: str) -> None:
    server.answers["/sick"] = Answer(status=status)
    assert (await failure(server.url("/sick"))).status == 400


async def test_a_part_that_nobody_asked_for_is_not_taken_for_the_file(server: Origin) -> None:
    part = Answer(PNG[:100], "206 Partial Content", (f"content-range: bytes 0-99/{len(PNG)}",))
    server.answers["/part"] = part
    error = await failure(server.url("/part"))
    assert isinstance(error, MediaUnreachable) and error.status == 400 and "206" in error.message


async def test_a_refused_connection_is_a_400() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = await failure(f"http://127.0.0.1:{free.getsockname()[1]}/a.png")
    assert (error.status, error.code) == (400, "media_unreachable")


async def test_a_name_that_does_not_resolve_is_a_400() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    assert (await failure("http://nowhere.test/a.png", resolver=nowhere)).status == 400


async def test_a_stalled_origin_is_a_408(server: Origin) -> None:
    server.answers["/slow"] = Answer(PNG, stall_s=30)
    error = await failure(server.url("/slow"), fetch_timeout_s=0.2)
    assert error.status == 408
    assert "media.fetch_timeout_s" in error.message


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_file_over_the_limit_is_a_413(server: Origin, chunked: bool) -> None:
    server.answers["/big"] = Answer(bytes(5000), chunked=chunked)
    client = fetcher(max_item_bytes=5000)
    assert len(await client.fetch(server.url("/big"))) == 5000
    await client.aclose()
    error = await failure(server.url("/big"), max_item_bytes=4999)
    assert isinstance(error, MediaTooLarge) and error.status == 413
    assert "4999 (media.max_item_bytes)" in error.message


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://",
        "http://[bad/",
        "ftp://host/x",
        "http://host:port/",
        "http://host:99999/",
        "http://host:0/",
        "http://xn--/",
        "http://xn--a/",
        "http:host/x",
    ],
)
async def test_a_url_that_names_nothing_to_fetch_is_a_400(url: str) -> None:
    assert (await failure(url)).status == 400


async def test_http_can_be_switched_off(server: Origin) -> None:
    assert "media.allow_http" in (await failure(server.url("/a.png"), allow_http=False)).message


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "gzip,deflate"])
async def test_a_file_packed_twice_or_strangely_is_not_unpacked(server: Origin, encoding: str) -> None:
    packed = gzip.compress(gzip.compress(bytes(1000)))
    server.answers["/bomb"] = Answer(packed, headers=(f"content-encoding: {encoding}",))
    error = await failure(server.url("/bomb"))
    assert (error.status, error.code) == (400, "media_unreachable")
    assert "content-encoding" in error.message


async def test_a_file_packed_once_arrives_whole(server: Origin) -> None:
    server.answers["/packed"] = Answer(gzip.compress(PNG), headers=("content-encoding: gzip",))
    client = fetcher()
    assert await client.fetch(server.url("/packed")) == PNG
    await client.aclose()


@pytest.mark.parametrize("wbits", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
async def test_a_deflated_file_arrives_whole_with_a_header_or_without(server: Origin, wbits: int) -> None:
    packed = zlib.compress(bytes(3_000_000), wbits=wbits)
    server.answers["/packed"] = Answer(packed, headers=("content-encoding: deflate",), drip=(1000, 0.0))
    client = fetcher()
    assert await client.fetch(server.url("/packed")) == bytes(3_000_000)
    await client.aclose()
    assert isinstance(await failure(server.url("/packed"), max_item_bytes=2_999_999), MediaTooLarge)


async def test_a_file_that_is_not_packed_as_it_says_is_a_400(server: Origin) -> None:
    server.answers["/odd"] = Answer(PNG, headers=("content-encoding: gzip",))
    assert (await failure(server.url("/odd"))).status == 400


async def test_an_address_is_asked_as_it_was_written(server: Origin) -> None:
    path = "/a%2Fb%7E.png?X-Amz-Signature=a%2Bb%2f+c&x=%7e'(1)"
    server.answers["/a%2Fb%7E.png"] = Answer(PNG)
    client = fetcher()
    assert await client.fetch(server.url(path)) == PNG
    await client.aclose()
    assert [asked for asked, _ in server.requests] == [path]


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1"])
async def test_an_address_in_another_spelling_is_an_address(server: Origin, host: str) -> None:
    client = fetcher()
    assert await client.fetch(server.url("/a.png", host)) == PNG
    await client.aclose()


# Redirects


async def test_redirects_are_followed_as_far_as_allowed(server: Origin) -> None:
    for hop in range(3):
        server.answers[f"/{hop}"] = Answer(status="302 Found", headers=(f"location: /{hop + 1}",))
    server.answers["/3"] = Answer(PNG)
    client = fetcher(max_redirects=3)
    assert await client.fetch(server.url("/0")) == PNG
    await client.aclose()
    assert "media.max_redirects" in (await failure(server.url("/0"), max_redirects=2)).message


async def test_a_redirect_to_another_scheme_is_refused(server: Origin) -> None:
    server.answers["/away"] = Answer(status="302 Found", headers=("location: file:///etc/passwd",))
    assert (await failure(server.url("/away"))).code == "malformed_url"


@pytest.mark.parametrize(
    "location", ["javascript:1", "http://xn--/", "http://[::1/", "http://127.0.0.1:99999/"]
)
async def test_a_redirect_to_what_is_no_url_is_a_400(server: Origin, location: str) -> None:
    server.answers["/away"] = Answer(status="302 Found", headers=(f"location: {location}",))
    error = await failure(server.url("/away"))
    assert (error.status, error.code) in ((400, "media_unreachable"), (400, "malformed_url"))


async def test_a_cookie_is_not_given_back(server: Origin) -> None:
    server.answers["/a.png"] = Answer(PNG, headers=("set-cookie: who=me; path=/",))
    client = fetcher()
    await client.fetch(server.url("/a.png"))
    await client.fetch(server.url("/a.png"))
    await client.aclose()
    assert all("cookie" not in headers for _, headers in server.requests)


# Addresses


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
     "224.0.0.1", "::1", "::", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
     "2002:7f00:1::", "ff02::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1",
     "192.0.0.192", "168.63.129.16"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::1]"])
async def test_the_loopback_address_is_refused_in_every_spelling(server: Origin, host: str) -> None:
    error = await failure(server.url("/a.png", host), allow_private_addresses=False)
    assert isinstance(error, AddressRefused)
    assert "media.allow_private_addresses" in error.message
    assert server.requests == []


async def test_a_public_name_with_a_private_address_is_refused(server: Origin) -> None:
    async def inward(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    url = server.url("/a.png", "images.example")
    assert (await failure(url, resolver=inward, allow_private_addresses=False)).code == "address_refused"
    assert server.requests == []


async def test_every_redirect_hop_is_checked(server: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"outside.test": "127.0.0.1", "inside.test": "127.0.0.2"}
    asked = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return [addresses[host]]

    monkeypatch.setattr("processors.network.is_public", lambda address: address == "127.0.0.1")
    location = f"location: {server.url('/a.png', 'inside.test')}"
    server.answers["/hop"] = Answer(status="302 Found", headers=(location,))
    url = server.url("/hop", "outside.test")
    error = await failure(url, resolver=resolver, allow_private_addresses=False)
    assert isinstance(error, AddressRefused) and "inside.test" in error.message
    assert asked == ["outside.test", "inside.test"]
    assert [path for path, _ in server.requests] == ["/hop"]


async def test_the_connection_goes_to_the_address_that_was_checked(server: Origin) -> None:
    answers = iter([["127.0.0.1"], ["203.0.113.9"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    client = fetcher(resolver=rebinding)
    assert await client.fetch(server.url("/a.png", "rebinding.test")) == PNG
    await client.aclose()
    assert server.requests[0][1]["host"] == f"rebinding.test:{server.port}"
    assert next(answers) == ["203.0.113.9"]  # asked once


# Sizes


async def test_a_size_costs_one_ranged_request(server: Origin) -> None:
    client = fetcher()
    assert await client.probe_size(server.url("/a.png")) == SIZE
    await client.aclose()
    assert [headers["range"] for _, headers in server.requests] == ["bytes=0-4095"]


async def test_a_known_size_is_not_asked_again_until_its_time_is_over(server: Origin) -> None:
    now = [0.0]
    client = fetcher(clock=lambda: now[0], url_identity_ttl_s=100)
    for moment in (0.0, 99.0, 100.0):
        now[0] = moment
        assert await client.probe_size(server.url("/a.png")) == SIZE
    await client.aclose()
    assert len(server.requests) == 2


async def test_a_server_that_ignores_the_range_is_left_early(server: Origin) -> None:
    noise = encoded(picture(width=4000, height=3000), "BMP")
    server.answers["/big.bmp"] = Answer(noise, ignores_range=True)
    client = fetcher(probe_bytes=4096)
    assert await client.probe_size(server.url("/big.bmp")) == ImageSize(4000, 3000)
    await client.aclose()
    assert server.sent < len(noise)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status="404 Not Found"),
        Answer(status="500 Oh"),
        Answer(b"hello"),
        Answer(b""),
        Answer(PNG[:20]),
        Answer(PNG, status="206 Partial Content", headers=("content-range: bytes 8-99/100",)),
    ],
)
async def test_an_origin_that_tells_no_size_leaves_it_unknown(server: Origin, answer: Answer) -> None:
    server.answers["/x"] = answer
    client = fetcher()
    assert await client.probe_size(server.url("/x")) is None
    await client.aclose()


async def test_a_slow_origin_leaves_the_size_unknown(server: Origin) -> None:
    server.answers["/slow"] = Answer(PNG, stall_s=30)
    client = fetcher(probe_timeout_ms=100)
    assert await client.probe_size(server.url("/slow")) is None
    await client.aclose()


async def test_an_unreachable_origin_leaves_the_size_unknown() -> None:
    client = fetcher()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert await client.probe_size(f"http://127.0.0.1:{free.getsockname()[1]}/a") is None
    await client.aclose()


async def test_a_private_address_is_refused_when_its_size_is_asked(server: Origin) -> None:
    client = fetcher(allow_private_addresses=False)
    with pytest.raises(AddressRefused):
        await client.probe_size(server.url("/a.png"))
    await client.aclose()


async def test_no_query_is_ever_logged_or_told(server: Origin, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = fetcher()
    await client.fetch(server.url("/a.png?signature=hush"))
    await client.probe_size(server.url("/a.png?signature=hush"))
    with pytest.raises(MediaUnreachable) as caught:
        await client.fetch(server.url("/none?signature=hush").replace("//", "//me:hush@"))
    server.answers["/hop"] = Answer(status="302 Found", headers=("location: /a.png?signature=hush",))
    await client.fetch(server.url("/hop"))
    await client.aclose()
    assert "hush" not in caplog.text + caught.value.message
    assert "/none" in caught.value.message


# data: URLs


@settings(deadline=None, max_examples=60)
@given(st.binary(min_size=1, max_size=60))
def test_base64_and_percent_encoding_give_the_same_bytes(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    percent = "".join(f"%{byte:02x}" for byte in data)
    urls = [
        f"data:image/png;base64,{text}",
        f"DATA:image/png;charset=x;BASE64,{text}",
        f"data:;base64,{text.rstrip('=')}",
        f"data:image/png; BASE64 ,{text}",
        f"data:;base64,{text[:3]}\n {text[3:]}",
        f"data:;base64,{text.replace('+', '%2B').replace('=', '%3D')}",
        f"data:image/png,{percent}",
        f"data:,{percent}",
    ]
    assert {parse_data_url(url, max_bytes=60) for url in urls} == {data}


@pytest.mark.parametrize(
    "url",
    ["data:image/png;base64", "data:;base64,a", "data:;base64,####", "data:;base64,", "data:,", "data",
     "date:,x", "data:;base64,ab-_", "data:;base64,\u00e9\u00e9\u00e9\u00e9"],
)  # fmt: skip
def test_a_malformed_data_url_is_a_400(url: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_data_url(url, max_bytes=100)
    assert (caught.value.status, caught.value.code) == (400, "malformed_data_url")


@pytest.mark.parametrize("head", ["data:;base64,", "data:,"])
def test_a_data_url_over_the_limit_is_a_413(head: str) -> None:
    with pytest.raises(MediaTooLarge):
        parse_data_url(head + "AAAA" * 100, max_bytes=99)


def test_a_data_url_of_just_the_limit_passes() -> None:
    assert len(parse_data_url("data:;base64," + base64.b64encode(bytes(100)).decode(), max_bytes=100)) == 100
