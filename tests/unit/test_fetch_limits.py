"""What the fetcher shares, keeps, and lets nobody wait for."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from origin_server import Answer, Origin, origin
from picture_files import HEIGHT, WIDTH, corpus, encoded, jpeg_segment, jpeg_with, picture

from processors import Fetcher, MediaConfig, MediaTooLarge, MediaUnreachable, RequestError
from processors.freshness import freshness_s
from processors.network import SystemResolver
from processors.size_probe import probe_steps
from sightline_types import ImageSize

SIZE = ImageSize(WIDTH, HEIGHT)
PNG = corpus()["png-RGB"]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Origin]:
    async with origin() as running:
        running.answers["/a.png"] = Answer(PNG)
        yield running


class Fetchers:
    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[Fetcher] = []

    def __call__(self, resolver: Any = None, **given: Any) -> Fetcher:
        slow = {"fetch_timeout_s": 10, "probe_timeout_ms": 10000, "probe_budget_ms": 10000}
        media = MediaConfig(**{"allow_private_addresses": True, **slow, **given})
        fetcher = Fetcher(media, clock=lambda: self.now, resolver=resolver)
        self.made.append(fetcher)
        return fetcher


@pytest_asyncio.fixture
async def fetchers() -> AsyncIterator[Fetchers]:
    made = Fetchers()
    yield made
    for fetcher in made.made:
        await fetcher.aclose()


# Once


async def test_a_file_asked_for_by_many_is_downloaded_once(server: Origin, fetchers: Fetchers) -> None:
    server.answers["/a.png"] = Answer(PNG, stall_s=0.1)
    fetcher = fetchers(cache_bytes=0)
    files = await asyncio.gather(*(fetcher.fetch(server.url("/a.png")) for _ in range(5)))
    assert set(files) == {PNG}
    assert len(server.requests) == 1
    assert (fetcher.counts.downloads, fetcher.counts.shared) == (1, 4)


async def test_one_who_leaves_does_not_end_the_others_download(server: Origin, fetchers: Fetchers) -> None:
    server.answers["/a.png"] = Answer(PNG, stall_s=0.2)
    fetcher = fetchers()
    first = asyncio.create_task(fetcher.fetch(server.url("/a.png")))
    second = asyncio.create_task(fetcher.fetch(server.url("/a.png")))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await second == PNG


async def test_a_download_ends_when_the_last_one_leaves(server: Origin, fetchers: Fetchers) -> None:
    server.answers["/slow"] = Answer(PNG, stall_s=60)
    fetcher = fetchers()
    task = asyncio.create_task(fetcher.fetch(server.url("/slow")))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.answers["/slow"] = Answer(PNG)
    assert await fetcher.fetch(server.url("/slow")) == PNG


async def test_a_file_is_kept_for_its_time(server: Origin, fetchers: Fetchers) -> None:
    fetcher = fetchers(cache_ttl_s=60)
    for fetchers.now in (0.0, 59.0, 60.0):
        assert await fetcher.fetch(server.url("/a.png")) == PNG
    assert len(server.requests) == 2
    assert fetcher.counts.cached == 1


@pytest.mark.parametrize("control", ["no-store", "private, no-cache", "max-age=0"])
async def test_an_origin_may_forbid_that_its_file_is_kept(
    server: Origin, fetchers: Fetchers, control: str
) -> None:
    server.answers["/a.png"] = Answer(PNG, headers=(f"cache-control: {control}",))
    fetcher = fetchers()
    for _ in range(2):
        await fetcher.fetch(server.url("/a.png"))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("control", "seconds"),
    [
        ("", float("inf")),
        ("max-age=30", 30.0),
        ('public, max-age = "5"', 5.0),
        ("max-age=9, s-maxage=3", 3.0),
        ("no-store", 0),
    ],
)
def test_freshness_is_what_the_origin_says(control: str, seconds: float) -> None:
    assert freshness_s({"cache-control": control}) == seconds


async def test_kept_files_stay_within_their_bytes(server: Origin, fetchers: Fetchers) -> None:
    for name in "abc":
        server.answers[f"/{name}"] = Answer(name.encode() * 1000)
    fetcher = fetchers(cache_bytes=2200)
    for name in "abc" + "c" + "b" + "a":
        await fetcher.fetch(server.url(f"/{name}"))
    assert [path for path, _ in server.requests] == ["/a", "/b", "/c", "/a"]


async def test_a_failure_is_remembered_for_its_time(server: Origin, fetchers: Fetchers) -> None:
    fetcher = fetchers(failure_ttl_s=2)
    messages = set()
    for fetchers.now in (0.0, 1.9, 2.0):
        with pytest.raises(MediaUnreachable) as caught:
            await fetcher.fetch(server.url("/none"))
        messages.add((caught.value.status, caught.value.message))
    assert len(server.requests) == 2
    assert len(messages) == 1


async def test_a_size_is_read_from_the_file_that_is_kept(server: Origin, fetchers: Fetchers) -> None:
    fetcher = fetchers()
    await fetcher.fetch(server.url("/a.png"))
    assert await fetcher.probe_size(server.url("/a.png")) == SIZE
    assert len(server.requests) == 1


# Waiting


async def test_a_size_that_comes_late_counts_for_the_next_request(server: Origin, fetchers: Fetchers) -> None:
    server.answers["/slow.png"] = Answer(PNG, stall_s=0.3)
    fetcher = fetchers(probe_budget_ms=20)
    url = server.url("/slow.png")
    assert await fetcher.probe_size(url) is None
    async with asyncio.timeout(20):
        while await fetcher.probe_size(url, 0) is None:
            await asyncio.sleep(0.02)
    assert await fetcher.probe_size(url) == SIZE
    assert len(server.requests) == 1
    assert fetcher.counts.late_probes == 1


async def test_who_does_not_wait_asks_nobody(server: Origin, fetchers: Fetchers) -> None:
    assert await fetchers().probe_size(server.url("/a.png"), 0) is None
    assert server.requests == []


async def test_a_full_house_of_one_host_leaves_room_for_others(server: Origin, fetchers: Fetchers) -> None:
    async def local(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    server.answers["/hang"] = Answer(stall_s=60)
    fetcher = fetchers(resolver=local, max_fetches_per_host=2, max_concurrent_fetches=3)
    urls = [server.url(f"/hang?{n}", "slow.test") for n in range(4)]
    hanging = [asyncio.create_task(fetcher.fetch(url)) for url in urls]
    while len(server.requests) < 2:
        await asyncio.sleep(0.01)
    assert await fetcher.fetch(server.url("/a.png", "quick.test")) == PNG
    assert sum(path.startswith("/hang") for path, _ in server.requests) == 2
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_waiting_for_a_place_counts_as_time(server: Origin, fetchers: Fetchers) -> None:
    server.answers["/hang"] = Answer(stall_s=60)
    fetcher = fetchers(max_concurrent_fetches=1, fetch_timeout_s=0.3)
    results = await asyncio.gather(
        *(fetcher.fetch(server.url(f"/hang?{n}")) for n in range(2)), return_exceptions=True
    )
    assert [result.status for result in results if isinstance(result, RequestError)] == [408, 408]


async def test_a_slow_name_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    asked: list[str] = []

    def names(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if host == "slow.test":
            done.wait(60)
        return [(0, 0, 0, "", ("192.0.2.1", port))]

    monkeypatch.setattr("processors.network.socket.getaddrinfo", names)
    resolver = SystemResolver(2)
    slow = [asyncio.create_task(resolver("slow.test", 80)) for _ in range(8)]
    while not asked:
        await asyncio.sleep(0.01)
    assert await resolver("quick.test", 80) == ["192.0.2.1"]
    assert asked.count("slow.test") == 1
    done.set()
    assert await asyncio.gather(*slow) == [["192.0.2.1"]] * 8
    await resolver.aclose()


# Sizes


def test_a_probe_looks_at_four_and_at_sixty_four_kibibytes_and_on() -> None:
    assert list(probe_steps(1 << 20)) == [4096, 65536, 262144, 1048576]
    assert list(probe_steps(4096)) == [4096]
    assert list(probe_steps(100_000)) == [4096, 65536, 100_000]


def late_jpeg(num_bytes: int) -> bytes:
    """Its frame header lies behind so many bytes of metadata."""
    segments = [jpeg_segment(0xE1, b"Exif\0\0" + bytes(60000))] * (num_bytes // 60000 + 1)
    return jpeg_with(*segments)


@pytest.mark.parametrize("ignores_range", [False, True])
async def test_a_size_behind_a_hundred_kilobytes_of_metadata_is_found(
    server: Origin, fetchers: Fetchers, ignores_range: bool
) -> None:
    server.answers["/late.jpg"] = Answer(late_jpeg(100_000), ignores_range=ignores_range)
    assert await fetchers().probe_size(server.url("/late.jpg")) == SIZE
    ranges = [headers["range"] for _, headers in server.requests]
    asked = ["bytes=0-4095", "bytes=4096-65535", "bytes=65536-262143"]
    assert ranges == asked[: 1 if ignores_range else 3]


@pytest.mark.parametrize("ignores_range", [False, True])
async def test_a_size_beyond_the_limit_stays_unknown(
    server: Origin, fetchers: Fetchers, ignores_range: bool
) -> None:
    server.answers["/late.jpg"] = Answer(late_jpeg(300_000), ignores_range=ignores_range)
    fetcher = fetchers(probe_bytes=100_000)
    assert await fetcher.probe_size(server.url("/late.jpg")) is None


async def test_an_origin_that_drips_is_left_when_the_header_is_there(
    server: Origin, fetchers: Fetchers
) -> None:
    big = encoded(picture(width=300, height=200), "BMP")
    server.answers["/drip"] = Answer(big, ignores_range=True, drip=(5000, 0.05))
    fetcher = fetchers()
    assert await fetcher.probe_size(server.url("/drip")) == ImageSize(300, 200)
    assert server.sent < len(big)


async def test_an_origin_that_promises_more_than_it_sends_is_a_400(
    server: Origin, fetchers: Fetchers
) -> None:
    server.answers["/lie"] = Answer(PNG, headers=("content-length: 9999",), omits_length=True)
    fetcher = fetchers(probe_bytes=1 << 20)
    with pytest.raises(MediaUnreachable) as caught:
        await fetcher.fetch(server.url("/lie"))
    assert caught.value.status == 400
    assert await fetchers().probe_size(server.url("/lie")) in (SIZE, None)


async def test_an_origin_that_says_too_much_is_a_413_before_a_byte_is_read(
    server: Origin, fetchers: Fetchers
) -> None:
    server.answers["/lie"] = Answer(PNG, headers=("content-length: 999999999",), omits_length=True)
    with pytest.raises(MediaTooLarge):
        await fetchers().fetch(server.url("/lie"))


async def test_a_redirect_to_a_private_address_is_refused_when_a_size_is_asked(
    server: Origin, fetchers: Fetchers
) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.2"] if host == "inside.test" else ["127.0.0.1"]

    fetcher = fetchers(resolver=resolver, allow_private_addresses=False, allowed_networks=["127.0.0.1/32"])
    server.answers["/hop"] = Answer(
        status="302 Found", headers=(f"location: {server.url('/a.png', 'inside.test')}",)
    )
    with pytest.raises(RequestError) as caught:
        await fetcher.probe_size(server.url("/hop", "outside.test"))
    assert caught.value.code == "address_refused"
    assert [path for path, _ in server.requests] == ["/hop"]


# Who is asked


async def test_an_allowed_network_is_fetched_from_though_it_is_private(
    server: Origin, fetchers: Fetchers
) -> None:
    allowed = fetchers(allow_private_addresses=False, allowed_networks=["127.0.0.0/8", "10.0.0.0/8"])
    assert await allowed.fetch(server.url("/a.png")) == PNG
    other = fetchers(allow_private_addresses=False, allowed_networks=["10.0.0.0/8"])
    with pytest.raises(RequestError, match="allowed_networks"):
        await other.fetch(server.url("/a.png"))


@pytest.mark.parametrize(
    ("settings", "host", "setting"),
    [
        ({"denied_hosts": ["*.bad.test"]}, "x.bad.test", "media.denied_hosts"),
        ({"denied_hosts": ["BAD.test"]}, "bad.TEST.", "media.denied_hosts"),
        ({"denied_hosts": ["xn--bcher-kva.test"]}, "b\u00fccher.test", "media.denied_hosts"),
        ({"denied_hosts": ["b\u00fccher.test"]}, "xn--bcher-kva.test", "media.denied_hosts"),
        ({"allowed_hosts": ["*.good.test"]}, "other.test", "media.allowed_hosts"),
        ({"allowed_hosts": ["*.good.test"], "denied_hosts": ["x.*"]}, "x.good.test", "media.denied_hosts"),
    ],
)
async def test_a_host_that_is_not_to_be_asked_is_refused_by_the_settings_name(
    server: Origin, fetchers: Fetchers, settings: dict[str, Any], host: str, setting: str
) -> None:
    with pytest.raises(RequestError, match=setting) as caught:
        await fetchers(**settings).fetch(server.url("/a.png", host))
    assert (caught.value.status, caught.value.code) == (400, "host_refused")
    assert server.requests == []


async def test_a_redirect_to_a_denied_host_is_refused(server: Origin, fetchers: Fetchers) -> None:
    async def local(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    location = f"location: {server.url('/a.png', 'bad.test')}"
    server.answers["/hop"] = Answer(status="302 Found", headers=(location,))
    with pytest.raises(RequestError, match=r"media\.denied_hosts"):
        await fetchers(resolver=local, denied_hosts=["bad.test"]).fetch(server.url("/hop", "good.test"))
    assert [path for path, _ in server.requests] == ["/hop"]


@pytest.mark.parametrize("url", ["http://me:hu sh@host:bad/", "http://host:hush/"])
async def test_a_url_that_cannot_be_read_is_not_repeated(fetchers: Fetchers, url: str) -> None:
    with pytest.raises(RequestError) as caught:
        await fetchers().fetch(url)
    assert "hush" not in caught.value.message


async def test_an_endless_url_is_refused(fetchers: Fetchers) -> None:
    with pytest.raises(RequestError, match="8192") as caught:
        await fetchers().fetch("http://host/" + "x" * 9000)
    assert len(caught.value.message) < 200


# Files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a b.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "inside.png").symlink_to(folder / "a b.png")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("url", ["file://{}/a%20b.png", "FILE://localhost{}/a b.png", "file://{}/inside.png"])
async def test_a_file_below_a_root_is_read(fetchers: Fetchers, root: Path, url: str) -> None:
    assert await fetchers(file_roots=[str(root)]).fetch(url.format(root)) == PNG


@pytest.mark.parametrize(
    "path",
    [
        "{}/../secret.png",
        "{}/%2e%2e/secret.png",
        "{}/link.png",
        "/etc/passwd",
        "{}/../none",
        "{}s/a",
        "/proc/self/mem",
    ],
)
async def test_a_file_outside_of_all_roots_is_refused(fetchers: Fetchers, root: Path, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        await fetchers(file_roots=[str(root)]).fetch("file://" + path.format(root))
    assert (caught.value.status, caught.value.code) == (400, "file_refused")
    assert "media.file_roots" in caught.value.message


async def test_files_are_off_where_there_are_no_roots(fetchers: Fetchers, root: Path) -> None:
    with pytest.raises(RequestError, match=r"media\.file_roots"):
        await fetchers().fetch(f"file://{root}/a%20b.png")


@pytest.mark.parametrize(("path", "status"), [("none.png", 404), ("pipe", 400), ("", 400), ("a%00b", 400)])
async def test_what_is_no_file_below_a_root_is_told(
    fetchers: Fetchers, root: Path, path: str, status: int
) -> None:
    with pytest.raises(RequestError) as caught:
        await fetchers(file_roots=[str(root)]).fetch(f"file://{root}/{path}")
    assert caught.value.status == status


async def test_a_file_over_the_limit_is_a_413(fetchers: Fetchers, root: Path) -> None:
    with pytest.raises(MediaTooLarge):
        await fetchers(file_roots=[str(root)], max_item_bytes=len(PNG) - 1).fetch(f"file://{root}/a b.png")


@pytest.mark.parametrize("url", ["file://other-host/a", "file:a.png", "file:", "file://"])
async def test_a_file_url_without_an_absolute_path_is_malformed(
    fetchers: Fetchers, root: Path, url: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await fetchers(file_roots=[str(root)]).fetch(url)
    assert caught.value.code == "malformed_url"
