"""Media items: what they are called before their file is there, and what it makes of them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from origin_server import Answer, Origin, origin
from picture_files import corpus, encoded, picture

from processors import Fetcher, MediaConfig, RequestError, RequestScope, UnsupportedMedia
from processors.items import ItemMaker
from processors.messages import MediaPart
from sightline_types import DegradeReason, ImageSize, MediaItem, Modality

SMALL = encoded(picture(width=40, height=30), "PNG")
BIG = encoded(picture(width=90, height=60), "PNG")
OTHER = encoded(picture(width=40, height=30).rotate(180), "PNG")
SMALL_SIZE, BIG_SIZE = ImageSize(40, 30), ImageSize(90, 60)


class Makers:
    """Makes item makers with a fetcher each, and closes them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetchers: list[Fetcher] = []

    def __call__(self, **given: Any) -> ItemMaker:
        slow = {"probe_timeout_ms": 10000, "probe_budget_ms": 10000, "cache_ttl_s": 0, "failure_ttl_s": 0}
        media = MediaConfig(**{"allow_private_addresses": True, **slow, **given})
        fetcher = Fetcher(media, clock=lambda: self.now)
        self.fetchers.append(fetcher)
        return ItemMaker(media, fetcher, asyncio.to_thread, lambda: self.now)


@pytest_asyncio.fixture
async def makers() -> AsyncIterator[Makers]:
    made = Makers()
    yield made
    for fetcher in made.fetchers:
        await fetcher.aclose()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers["/a"] = Answer(SMALL)
        yield running


def part(url: str, uuid: str | None = None) -> MediaPart:
    return MediaPart(Modality.IMAGE, url, "messages[0].content[0].image_url", uuid)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


# Addresses


@pytest.mark.parametrize("mode", ["url", "normalized_url"])
async def test_a_file_of_the_foreseen_size_keeps_the_identity_of_its_address(
    makers: Makers, server: Origin, mode: str
) -> None:
    maker = makers(identity=mode)
    item = await maker.make(part(server.url("/a")))
    assert item.size == SMALL_SIZE
    assert await maker.as_fetched(item, SMALL) is item


async def test_an_address_has_one_identity_per_size_whenever_the_size_was_learned(
    makers: Makers, server: Origin
) -> None:
    """A size unknown at first, known later, or another one than was foreseen: no two lengths in a prompt
    ever share an identity, and one length never has two."""
    url = server.url("/a")
    maker = makers(identity="url")
    unsized = await maker.make(part(url), RequestScope(size_wait_ms=0))
    assert unsized.size is None
    small_late = await maker.as_fetched(unsized, SMALL)
    small_early = await maker.make(part(url))
    big_instead = await maker.as_fetched(small_early, BIG)
    big_later = await maker.make(part(url), RequestScope(size_wait_ms=0))
    assert small_late.media_id == small_early.media_id
    assert big_instead.media_id == big_later.media_id
    assert (big_instead.size, big_later.size) == (BIG_SIZE, BIG_SIZE)
    assert len({unsized.media_id, small_early.media_id, big_later.media_id}) == 3


async def test_a_file_that_does_not_tell_its_size_is_one_with_equal_files_only(
    makers: Makers, server: Origin
) -> None:
    maker = makers(identity="url")
    item = await maker.make(part(server.url("/a")))
    one, again, other = [await maker.as_fetched(item, data) for data in (b"odd", b"odd", b"odder")]
    assert one.media_id == again.media_id
    assert len({item.media_id, one.media_id, other.media_id}) == 3


async def test_an_address_gets_another_identity_in_the_next_time_bucket(
    makers: Makers, server: Origin
) -> None:
    maker = makers(identity="url", url_identity_ttl_s=100)
    ids = []
    for makers.now in (0.0, 99.0, 100.0):
        ids.append((await maker.make(part(server.url("/a")))).media_id)
    assert ids[0] == ids[1] != ids[2]


async def test_a_presigned_address_is_one_however_it_was_signed(makers: Makers, server: Origin) -> None:
    maker = makers(identity_by_host={"127.0.0.1": "normalized_url"})
    urls = [server.url(f"/a?v=1&X-Amz-Signature={n}&X-Amz-Date=2026{n}&Expires={n}") for n in range(3)]
    ids = {(await maker.make(part(url))).media_id for url in urls}
    assert len(ids) == 1
    assert (await maker.make(part(server.url("/a?v=2")))).media_id not in ids


# Files


@pytest.mark.parametrize("host", ["CDN.test", "cdn.test.", "xn--bcher-kva.test", "b\u00fccher.test"])
def test_a_rule_for_a_host_knows_its_spellings(host: str) -> None:
    media = MediaConfig(identity_by_host={"cdn.test": "bytes", "b\u00fccher.test": "bytes"})
    assert media.mode_for(f"http://{host}/a.png") == "bytes"
    assert media.mode_for("http://other.test/a.png") == "url"


async def test_a_file_seen_before_is_known_without_being_read_first(makers: Makers, server: Origin) -> None:
    maker = makers(identity="bytes")
    first = await maker.make(part(server.url("/a?X-Amz-Date=1")))
    again = await maker.make(part(server.url("/a?X-Amz-Date=2")))
    assert (again.media_id, again.size, again.source.data) == (first.media_id, SMALL_SIZE, None)
    assert len(server.requests) == 1
    assert await maker.as_fetched(again, SMALL) is again


@pytest.mark.parametrize("mode", ["bytes", "content"])
async def test_a_file_that_changed_behind_its_address_is_never_given_the_old_identity(
    makers: Makers, server: Origin, mode: str
) -> None:
    maker = makers(identity=mode)
    first = await maker.make(part(server.url("/a")))
    foreseen = await maker.make(part(server.url("/a")))
    found = await maker.as_fetched(foreseen, OTHER)
    assert foreseen.media_id == first.media_id != found.media_id
    assert found.media_id == (await maker.make(part(data_url(OTHER)))).media_id or mode == "bytes"
    assert (await maker.make(part(server.url("/a")))).media_id == found.media_id


async def test_what_is_known_of_a_file_lasts_for_its_time_bucket(makers: Makers, server: Origin) -> None:
    maker = makers(identity="bytes", url_identity_ttl_s=100)
    for makers.now in (50.0, 99.0, 100.0):
        await maker.make(part(server.url("/a")))
    assert len(server.requests) == 2


async def test_nothing_is_remembered_where_aliases_are_off(makers: Makers, server: Origin) -> None:
    maker = makers(identity="bytes", url_aliases="off")
    for _ in range(2):
        await maker.make(part(server.url("/a")))
    assert len(server.requests) == 2


async def test_a_trusted_alias_lets_the_engine_be_asked_first(makers: Makers, server: Origin) -> None:
    maker = makers(identity="bytes", url_aliases="trust")
    held = [(await maker.make(part(server.url("/a")))).is_held for _ in range(2)]
    assert held == [False, True]


async def test_data_and_http_copies_of_a_file_are_one(makers: Makers, server: Origin) -> None:
    maker = makers(identity="bytes")
    by_http = await maker.make(part(server.url("/a")))
    by_data = await maker.make(part(data_url(SMALL)))
    assert by_http.media_id == by_data.media_id


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(sorted(corpus())), st.data())
def test_no_spelling_of_a_data_url_changes_the_identity(name: str, data: st.DataObject) -> None:
    text = base64.b64encode(corpus()[name]).decode()
    heads = ["data:;base64,", "DATA:image/jpeg;BASE64,", "data:text/plain;charset=x; base64 ,"]
    at = data.draw(st.integers(0, len(text)))
    spelled = data.draw(st.sampled_from(heads)) + text[:at] + "\r\n" + text[at:].rstrip("=")

    async def ids() -> set[Any]:
        made = Makers()
        maker = made()
        items = [await maker.make(part(url)) for url in (spelled, "data:;base64," + text)]
        await made.fetchers[0].aclose()
        return {(item.media_id, item.size) for item in items}

    assert len(asyncio.run(ids())) == 1


# Client uuids


async def test_a_uuid_is_the_identity_whatever_comes_with_it(makers: Makers, server: Origin) -> None:
    maker = makers()
    items = [await maker.make(part(url, "mine")) for url in (server.url("/a"), data_url(BIG), "")]
    assert len({item.media_id for item in items}) == 1
    assert {item.identity_mode for item in items} == {"uuid"}


async def test_a_uuid_of_one_tenant_is_not_anothers(makers: Makers) -> None:
    maker = makers()
    scopes = [RequestScope(tenant=tenant) for tenant in (None, "", "a", "b")]
    ids = {(await maker.make(part("", "mine"), scope)).media_id for scope in scopes}
    assert len(ids) == 4


async def test_a_uuid_alone_has_the_size_that_its_picture_had(makers: Makers) -> None:
    maker = makers()
    unknown = await maker.make(part("", "mine"))
    await maker.make(part(data_url(SMALL), "mine"))
    known = await maker.make(part("", "mine"))
    assert (unknown.size, unknown.unknown_because) == (None, DegradeReason.CLIENT_UUID_WITHOUT_SIZE)
    assert (known.size, known.unknown_because) == (SMALL_SIZE, None)
    assert unknown.is_held and known.is_held and known.media_id == unknown.media_id


async def test_a_uuid_with_an_address_needs_no_file_once_its_size_is_known(
    makers: Makers, server: Origin
) -> None:
    maker = makers()
    first = await maker.make(part(server.url("/a"), "mine"))
    asked = len(server.requests)
    again = await maker.make(part(server.url("/a"), "mine"))
    assert (first.is_held, again.is_held, again.size) == (False, True, SMALL_SIZE)
    assert len(server.requests) == asked


async def test_a_uuid_with_a_data_url_decodes_its_beginning_only(makers: Makers) -> None:
    broken_end = data_url(encoded(picture(width=600, height=500), "BMP"))[:-4] + "####"
    item = await makers().make(part(broken_end, "mine"))
    assert item.size == ImageSize(600, 500)


async def test_a_uuid_that_was_too_late_for_its_size_learns_it_from_the_file(
    makers: Makers, server: Origin
) -> None:
    maker = makers()
    item = await maker.make(part(server.url("/a"), "mine"), RequestScope(size_wait_ms=0))
    assert item.size is None
    settled = await maker.as_fetched(item, SMALL)
    assert (settled.media_id, settled.size) == (item.media_id, SMALL_SIZE)
    assert (await maker.make(part("", "mine"))).size == SMALL_SIZE


async def test_a_bound_uuid_counts_only_with_its_file(makers: Makers) -> None:
    maker = makers(bind_uuids=True)
    with pytest.raises(RequestError) as caught:
        await maker.make(part("", "mine"))
    assert (caught.value.status, caught.value.code) == (404, "unknown_uuid")
    small = await maker.make(part(data_url(SMALL), "mine"))
    alone = await maker.make(part("", "mine"))
    big = await maker.make(part(data_url(BIG), "mine"))
    assert small.media_id == alone.media_id != big.media_id


# Options, limits, errors


@pytest.mark.parametrize("mode", ["url", "bytes", "content"])
async def test_options_that_change_pixels_change_the_identity_before_and_after_the_file(
    makers: Makers, server: Origin, mode: str
) -> None:
    maker = makers(identity=mode)
    scope = RequestScope(options={"max_pixels": 1000})
    plain, changed = [await maker.make(part(server.url("/a")), one) for one in (None, scope)]
    assert plain.media_id != changed.media_id
    late = await maker.make(part(server.url("/a")), RequestScope(scope.tenant, scope.options, 0))
    assert (await maker.as_fetched(late, SMALL, scope)).media_id == changed.media_id


@pytest.mark.parametrize("file", [SMALL, BIG])
async def test_too_many_pixels_are_refused_from_the_header(makers: Makers, file: bytes) -> None:
    maker = makers(max_pixels=40 * 30)
    make: Callable[[], Any] = lambda: maker.make(part(data_url(file)))  # noqa: E731
    if file is SMALL:
        assert isinstance(await make(), MediaItem)
        return
    with pytest.raises(UnsupportedMedia) as caught:
        await make()
    assert caught.value.param == "messages[0].content[0].image_url"
    assert "media.max_pixels" in caught.value.message


async def test_a_picture_larger_than_foreseen_meets_the_limit_when_it_comes(
    makers: Makers, server: Origin
) -> None:
    maker = makers(identity="url", max_pixels=40 * 30)
    item = await maker.make(part(server.url("/a")))
    with pytest.raises(UnsupportedMedia):
        await maker.as_fetched(item, BIG)


async def test_each_item_of_a_failure_that_is_shared_names_its_own_path(
    makers: Makers, server: Origin
) -> None:
    maker = makers(identity="bytes")
    parts = [MediaPart(Modality.IMAGE, server.url("/none"), f"messages[{i}]") for i in range(2)]
    errors = await asyncio.gather(*(maker.make(one) for one in parts), return_exceptions=True)
    assert [error.param for error in errors if isinstance(error, RequestError)] == [
        "messages[0]",
        "messages[1]",
    ]
