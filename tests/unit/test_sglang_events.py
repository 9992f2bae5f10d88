"""What SGLang's releases publish, in their own bytes: arrays and maps, formats, salts, adapters, tiers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from router.events import decode_batch
from router.keys import block_keys
from router.residency import Residency
from sightline_types import KeyScheme, KeySpec, MediaId, MediaSpan, Tier, TokenView

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "sglang_kv_events.json").read_text())
RELEASES = GOLDEN["releases"]
FIRST, END = GOLDEN["run"]
GPU, CPU, DISK = (Tier(medium=medium) for medium in ("GPU", "CPU_PINNED", "DISK"))


def view() -> TokenView:
    """The prompt of the golden file as the router sees it: placeholders where the engine has pads."""
    num_tokens = GOLDEN["num_tokens"]
    tokens = np.arange(100, 100 + num_tokens, dtype=np.int64)
    tokens[FIRST:END] = 7
    span = MediaSpan(FIRST, END - FIRST, MediaId.from_hex(GOLDEN["media"]))
    return TokenView(tokens, (span,), num_tokens)


def asked(scheme: KeyScheme, **namespace: str) -> list[int]:
    """Keys of the prompt's three pages."""
    spec = KeySpec(scheme, GOLDEN["page"])
    return block_keys(view(), spec, **namespace).key_array().tolist()


def held(release: str) -> tuple[KeyScheme, dict[Tier, set[int]]]:
    """By tier, after everything that the release published."""
    golden = RELEASES[release]
    scheme = KeyScheme(golden["scheme"])
    residency = Residency(KeySpec(scheme, GOLDEN["page"]), counts=False)
    for event in decode_batch(bytes.fromhex(golden["payload"])).events:
        residency.apply(event)
    residency.check_integrity()
    tables = {
        delta.tier: set(np.frombuffer(delta.stored, dtype="<u8").tolist()) for delta in residency.table()
    }
    return scheme, tables


@pytest.mark.parametrize("release", RELEASES)
def test_pages_that_the_engine_stored_are_those_that_a_request_asks_for(release: str) -> None:
    scheme, tables = held(release)
    first, second, third = asked(scheme)
    assert first in tables[GPU]
    assert not {second, third} & tables[GPU], "both were removed"


@pytest.mark.parametrize("release", RELEASES)
def test_pages_moved_to_other_tiers_are_held_there(release: str) -> None:
    scheme, tables = held(release)
    first, second, _ = asked(scheme)
    assert (tables[CPU], tables[DISK]) == ({first, second}, {first})


@pytest.mark.parametrize("release", [name for name in RELEASES if name != "0.5.13"])
def test_a_salted_page_is_held_under_its_salt_alone(release: str) -> None:
    """0.5.13 knows no salt."""
    scheme, tables = held(release)
    assert asked(scheme, salt=GOLDEN["salt"])[0] in tables[GPU]


@pytest.mark.parametrize("release", ["0.5.23 default", "0.5.23 dynamo"])
def test_an_adapters_page_is_held_under_its_name(release: str) -> None:
    scheme, tables = held(release)
    assert asked(scheme, lora=GOLDEN["adapter"])[0] in tables[GPU]


def test_nothing_else_is_held() -> None:
    numbers = {release: len(held(release)[1][GPU]) for release in RELEASES}
    assert numbers == {"0.5.13": 1, "0.5.18": 2, "0.5.20": 2, "0.5.23 default": 3, "0.5.23 dynamo": 3}
