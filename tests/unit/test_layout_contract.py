"""A worker's layout contracts: the registry's layout against another that stands for the installed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from golden import files, golden, known_layout, qwen
from test_more_families import nemotron
from tiny_files import tiny_tokenizer

from deployments.engines.vllm_contract import CLIPS, PICTURES, layout_contracts, probe_prompt
from deployments.engines.vllm_probe import ProcessorRefused, Rendered
from processors import FamilyLayout, LayoutOptions, ModelFiles, Refusal, Shape
from sightline_types import DegradeReason, ImageSize, Modality, VideoShape


class Installed:
    """Makes what `layout` says, as if it were an engine's processor."""

    def __init__(self, layout: FamilyLayout, *takes: Modality) -> None:
        self._layout = layout
        self._takes = takes or tuple(Modality)

    def takes(self, modality: Modality) -> bool:
        return modality in self._takes

    def render(self, token_ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered:
        plans = self._layout.replacements(shapes)
        if any(isinstance(plan, Refusal) for plan in plans):
            raise ProcessorRefused("no such size")
        expansion = self._layout.expand(token_ids, plans)
        return Rendered(tuple(expansion.token_ids.tolist()), expansion.placed)


def qwen_files(family: str = "qwen3_vl") -> ModelFiles:
    meta = golden(family)["meta"]
    config = {"model_type": family, **meta["token_ids"]}
    return files(config, meta["image_processor_config"], video=meta["video_processor_config"])


def test_an_agreeing_processor_makes_every_kind_of_request_exact() -> None:
    model = qwen_files()
    layout = known_layout(model)
    contracts = layout_contracts(model, LayoutOptions(), Installed(layout))
    assert all(contract.exact for contract in contracts)
    kinds = ({Modality.IMAGE}, {Modality.VIDEO}, {Modality.IMAGE, Modality.VIDEO})
    assert [c.fingerprint for c in contracts] == [layout.fingerprint(kind) for kind in kinds]


def test_what_the_engine_does_not_take_has_no_contract() -> None:
    model = qwen_files()
    installed = Installed(known_layout(model), Modality.IMAGE)
    (contract,) = layout_contracts(model, LayoutOptions(), installed)
    assert contract.exact and contract.family == "qwen3_vl"


def test_a_processor_with_other_limits_is_a_mismatch_that_says_where() -> None:
    other = known_layout(qwen_files(), processor_kwargs={"images_kwargs": {"max_pixels": 70000}})
    contracts = layout_contracts(qwen_files(), LayoutOptions(), Installed(other))
    pictures, clips, both = contracts
    assert pictures.reason is both.reason is DegradeReason.CONTRACT_MISMATCH
    assert "640x480" in pictures.detail and "the registry" in pictures.detail
    assert clips.exact and not both.exact


def test_a_processor_that_refuses_what_the_registry_lays_out_is_a_mismatch() -> None:
    layout = qwen("qwen3_vl", tiny_tokenizer())

    class Refusing(Installed):
        def render(self, token_ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered:
            raise ProcessorRefused("ValueError: not today")

    contracts = layout_contracts(qwen_files(), LayoutOptions(), Refusing(layout))
    assert not any(contract.exact for contract in contracts)
    assert "not today" in contracts[0].detail


def test_the_resize_of_older_transformers_is_told_apart_by_the_probes() -> None:
    """Before 5.15: a clip of one frame is taken, and a side below a token's is refused (its golden file)."""
    rows = golden("qwen3_video_legacy_ceil")["video"]
    layout = known_layout(qwen_files())
    alone = [row for row in rows if row["num_frames"] == 1]
    narrow = [row for row in rows if "error" in row]
    for row in (*alone, *narrow):
        clip = VideoShape(ImageSize(row["width"], row["height"]), row["num_frames"], 25.0)
        clip = replace(clip, frame_indices=tuple(range(clip.num_frames)))
        assert isinstance(layout.try_replacement(clip), Refusal) is ("error" not in row)
    assert any(clip.num_frames == 1 for clip in CLIPS)
    assert any(min(clip.size.width, clip.size.height) < 32 for clip in CLIPS)


def test_other_timestamps_are_a_mismatch_of_clips_alone() -> None:
    pruned = known_layout(qwen_files(), video_pruning_rate=0.5)
    pictures, clips, both = layout_contracts(qwen_files(), LayoutOptions(), Installed(pruned))
    assert pictures.exact and not clips.exact and not both.exact


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "unheard_of"}, DegradeReason.UNSUPPORTED_FAMILY),
        ({"model_type": "llama4", "image_token_index": 1}, DegradeReason.LAYOUT_PARAMETER_MISSING),
    ],
)
def test_a_family_without_a_layout_says_why(config: dict[str, object], reason: DegradeReason) -> None:
    installed = Installed(qwen("qwen2_vl"))
    (contract,) = layout_contracts(files(config), LayoutOptions(), installed)
    assert (contract.exact, contract.reason, contract.fingerprint) == (False, reason, "")


def test_a_probe_names_items_by_token_or_by_text() -> None:
    model = qwen_files()
    prompt = probe_prompt(known_layout(model), model, [PICTURES[0], CLIPS[0], ImageSize(1, 1)])
    tokens = golden("qwen3_vl")["meta"]["token_ids"]
    image, video = tokens["image_token_id"], tokens["video_token_id"]
    assert [token for token in prompt if token in (image, video)] == [image, video, image]
    layout = nemotron()
    prompt = probe_prompt(layout, files({}, tokenizer=layout.tokenizer), [CLIPS[0]])
    assert layout.tokenizer.decode(prompt) == "a<video>\nb"
