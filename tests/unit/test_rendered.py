"""What the engine's renderer says becomes a prompt, or a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deployments.config import LayoutMode
from deployments.layout_source import wants_renderer
from deployments.rendered import Rendered, RenderedItem, rendered_prompt, text_prefix
from sightline_types import (
    DegradeReason,
    KeyScheme,
    LayoutContract,
    MediaId,
    MediaItem,
    MediaSource,
    MediaSpan,
    Modality,
    PreparedPrompt,
    TokenView,
    WorkerContract,
    WorkerId,
)


def item(value: int, modality: Modality = Modality.IMAGE) -> MediaItem:
    return MediaItem(modality, MediaId(value), MediaSource(data=b"x"))


def prompt(*media: MediaItem, reasons: tuple[DegradeReason, ...] = ()) -> PreparedPrompt:
    """Two tokens of text before each item, whose placeholder is 9."""
    ids = tuple(token for _ in media for token in (1, 2, 9))
    spans = tuple(MediaSpan(3 * i + 2, 1, one.media_id) for i, one in enumerate(media))
    view = TokenView(np.array(ids, dtype=np.int64), spans, 2 if reasons else len(ids))
    return PreparedPrompt(ids, media, view, reasons, estimated_media_tokens=100, layout="registry")


def placed(modality: Modality, offset: int, length: int, value: int) -> RenderedItem:
    return RenderedItem(modality, offset, length, MediaId(value), MediaId(value + 1000))


def rendered(*items: RenderedItem, length: int = 20) -> Rendered:
    return Rendered(np.arange(length, dtype="<i4").tobytes(), items, "renderer")


def contract(fingerprint: str, *, exact: bool = True) -> WorkerContract:
    layout = LayoutContract("f", fingerprint, exact)
    return WorkerContract("vllm", "0", 16, KeyScheme.VLLM, "m", 4096, layouts=(layout,))


def pool(*contracts: WorkerContract) -> dict[WorkerId, WorkerContract]:
    return {WorkerId(f"w{i}"): one for i, one in enumerate(contracts)}


UNKNOWN = (DegradeReason.UNSUPPORTED_FAMILY,)


def test_a_rendered_prompt_is_exact_to_its_end() -> None:
    before = prompt(item(1), item(2), reasons=UNKNOWN)
    image = Modality.IMAGE
    after = rendered_prompt(before, rendered(placed(image, 2, 5, 11), placed(image, 10, 4, 12)))
    assert after.is_exact and after.num_tokens == len(after.view) == 20
    assert after.layout == "renderer"
    assert after.token_ids == before.token_ids
    assert [span.offset for span in after.view.spans] == [2, 10]


def test_the_engine_is_given_one_identity_and_keys_hold_what_its_events_name() -> None:
    after = rendered_prompt(prompt(item(1)), rendered(placed(Modality.IMAGE, 2, 5, 11)))
    assert after.media[0].media_id == MediaId(11)
    assert after.view.spans[0].media_id == MediaId(1011)


def test_items_of_two_modalities_keep_the_requests_order() -> None:
    image, video = Modality.IMAGE, Modality.VIDEO
    before = prompt(item(1, video), item(2, image), item(3, video))
    after = rendered_prompt(
        before, rendered(placed(image, 6, 2, 12), placed(video, 2, 3, 11), placed(video, 10, 3, 13))
    )
    assert [one.media_id for one in after.media] == [MediaId(11), MediaId(12), MediaId(13)]
    assert [span.offset for span in after.view.spans] == [2, 6, 10]


@pytest.mark.parametrize("items", [(), (placed(Modality.VIDEO, 2, 3, 11),)])
def test_other_items_than_the_requests_are_no_answer(items: tuple[RenderedItem, ...]) -> None:
    with pytest.raises(ValueError, match="of the request's 1"):
        rendered_prompt(prompt(item(1)), rendered(*items))


def test_a_text_prefix_ends_at_the_first_item_and_says_why() -> None:
    after = text_prefix(prompt(item(1), item(2)), DegradeReason.LAYOUT_OFF)
    assert after.view.exact_until == 2
    assert after.reasons == (DegradeReason.LAYOUT_OFF,)
    assert after.num_tokens == prompt(item(1), item(2)).num_tokens


# Who is asked


@pytest.mark.parametrize("mode", ["registry", "off"])
def test_these_modes_never_ask_the_renderer(mode: LayoutMode) -> None:
    assert not wants_renderer(mode, prompt(item(1), reasons=UNKNOWN), {})


@pytest.mark.parametrize("mode", ["auto", "renderer"])
def test_an_item_with_a_clients_uuid_keeps_that_identity(mode: LayoutMode) -> None:
    named = replace(item(1), identity_mode="uuid")
    assert not wants_renderer(mode, prompt(named, reasons=UNKNOWN), {})


@pytest.mark.parametrize("mode", ["auto", "renderer"])
def test_text_needs_no_renderer(mode: LayoutMode) -> None:
    assert not wants_renderer(mode, prompt(), {})


def test_auto_asks_where_the_family_is_unknown() -> None:
    assert wants_renderer("auto", prompt(item(1), reasons=UNKNOWN), {})


def test_auto_believes_the_registry_where_a_workers_contract_agrees() -> None:
    assert not wants_renderer("auto", prompt(item(1)), pool(contract("registry")))
    assert not wants_renderer("auto", prompt(item(1)), {})


@pytest.mark.parametrize("other", [contract("another"), contract("registry", exact=False)])
def test_auto_asks_where_no_contract_agrees(other: WorkerContract) -> None:
    assert wants_renderer("auto", prompt(item(1)), pool(other))


def test_auto_does_not_ask_about_what_the_models_processor_refuses() -> None:
    refused = prompt(item(1), reasons=(DegradeReason.SIZE_REFUSED,))
    assert not wants_renderer("auto", refused, pool(contract("registry")))


def test_the_renderer_mode_asks_for_every_item() -> None:
    assert wants_renderer("renderer", prompt(item(1)), pool(contract("registry")))
