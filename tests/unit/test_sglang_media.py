"""How an SGLang keys media, asked of processors that behave as its releases do."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engines import sglang_media
from deployments.engines.sglang_media import (
    PROBE_ID,
    MediaKeys,
    item_pads,
    matching_scheme,
    probe_media_keys,
)
from router.pads import pad_values
from sightline_types import KeyScheme, MediaId


@dataclass
class Output:
    """Of 0.5.20 and later."""

    padded_input_ids: list[int] | None = None


class OlderOutput:
    """Of releases without early padding."""


@dataclass
class Processor:
    """Returns `output`, padded early where it is `faulty`."""

    faulty: bool = False
    stubborn: bool = False
    older: bool = False
    refusal: str = ""
    asked: list[Any] = field(default_factory=list)

    async def process_mm_data_async(self, **kwargs: Any) -> Any:
        self.asked.append(kwargs["request_obj"])
        if self.refusal:
            raise ValueError(self.refusal)
        if self.older:
            return OlderOutput()
        return Stubborn([1]) if self.stubborn else Output([1] if self.faulty else None)


class Stubborn:
    """Pads that cannot be dropped."""

    def __init__(self, pads: list[int]) -> None:
        self._pads = pads

    @property
    def padded_input_ids(self) -> list[int]:
        return self._pads

    @padded_input_ids.setter
    def padded_input_ids(self, value: object) -> None:
        """Stays as it is."""


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A release with wide pads whose requests take hashes, and no SGLang imported."""
    shown = SimpleNamespace(fields=frozenset({"mm_hashes"}), pads=pad_values(KeyScheme.SGLANG_WIDE, PROBE_ID))

    def own_pads(media_id: MediaId) -> tuple[int, ...]:
        if shown.pads is None:
            raise AttributeError("set_hash")
        return shown.pads

    async def run(processor: Any, token_ids: Any, size: Any) -> Any:
        return await processor.process_mm_data_async(request_obj=SimpleNamespace(mm_hashes=["00"]))

    monkeypatch.setattr(sglang_media, "request_fields", lambda: shown.fields)
    monkeypatch.setattr(sglang_media, "_own_pads", own_pads)
    monkeypatch.setattr(sglang_media, "run_processor", run)
    return shown


async def probed(processor: Processor) -> MediaKeys:
    return await probe_media_keys(SimpleNamespace(mm_processor=processor), [1, 2, 1])


@pytest.mark.parametrize("scheme", [KeyScheme.SGLANG_SINGLE, KeyScheme.SGLANG_WIDE])
async def test_the_scheme_is_read_off_the_releases_own_pads(release, scheme) -> None:
    release.pads = pad_values(scheme, PROBE_ID)
    assert await probed(Processor()) == MediaKeys(scheme, True)


def test_pads_of_no_known_formula_match_no_scheme() -> None:
    assert matching_scheme((5,), PROBE_ID) is None
    assert matching_scheme((), PROBE_ID) is None


async def test_a_release_without_hashes_is_served_without_them(release) -> None:
    release.fields = frozenset()
    keys = await probed(Processor())
    assert not keys.takes_hashes and "0.5.13" in keys.doubt


@pytest.mark.parametrize("pads", [None, (1, 2, 3)])
async def test_an_unknown_formula_is_served_without_hashes(release, pads) -> None:
    release.pads = pads
    keys = await probed(Processor())
    assert not keys.takes_hashes and not keys.is_exact


async def test_early_padding_is_dropped_for_requests_with_hashes_only() -> None:
    processor = Processor(faulty=True)
    assert (await probed(processor)).is_exact
    ours = await processor.process_mm_data_async(request_obj=SimpleNamespace(mm_hashes=["00"]))
    assert ours.padded_input_ids is None
    plain = await processor.process_mm_data_async(request_obj=SimpleNamespace(mm_hashes=None))
    assert plain.padded_input_ids == [1]


async def test_where_the_remedy_does_not_work_no_hash_is_sent() -> None:
    keys = await probed(Processor(stubborn=True))
    assert not keys.takes_hashes and "cannot be kept from it" in keys.doubt


async def test_a_processor_that_refuses_hashes_gets_none() -> None:
    keys = await probed(Processor(refusal="not supported for Kimi"))
    assert not keys.takes_hashes and "Kimi" in keys.doubt


async def test_an_older_processor_is_left_as_it_is() -> None:
    processor = Processor(older=True)
    assert (await probed(processor)).is_exact
    assert "process_mm_data_async" not in vars(processor)


class ItemOf0513:
    """Pads are made of `hash`, once."""

    hash: int | None = None
    pad_value: int | None = None

    def set_pad_value(self) -> None:
        if self.pad_value is None:
            self.pad_value = 1_000_000 + (self.hash or 0) % (1 << 30)


class ItemOf0518:
    pad_value: int | None = None

    def set_hash(self, value: int) -> None:
        self.pad_value = 1_000_000 + value % (1 << 30)


class ItemOf0523:
    pad_values: tuple[int, ...] | None = None

    def set_hash(self, value: int) -> None:
        self.pad_values = pad_values(KeyScheme.SGLANG_WIDE, MediaId(value))


@pytest.mark.parametrize(
    ("item", "scheme"),
    [
        (ItemOf0513(), KeyScheme.SGLANG_SINGLE),
        (ItemOf0518(), KeyScheme.SGLANG_SINGLE),
        (ItemOf0523(), KeyScheme.SGLANG_WIDE),
    ],
)
def test_each_releases_item_is_asked_in_its_own_way(item: Any, scheme: KeyScheme) -> None:
    assert matching_scheme(item_pads(item, PROBE_ID), PROBE_ID) is scheme


def test_an_item_of_no_known_form_is_said_to_be_so() -> None:
    with pytest.raises(AttributeError):
        item_pads(SimpleNamespace(), PROBE_ID)
