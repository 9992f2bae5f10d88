"""Families compared with the processor that vLLM has installed: ids, ranges and masks, without an engine.

Where the engine runs a family (`test_families.py`), its worker makes the same comparison at its start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from deployments.engines.vllm_contract import layout_contracts
from deployments.engines.vllm_probe import InstalledProcessor, ProcessorRefused, Rendered
from processors import FamilyLayout, LayoutOptions, ModelFiles, Shape, layout_for
from sightline_types import ImageSize
from tests.engines.bench import ENGINE_IN_PROCESS
from tests.engines.tiny_families import family_folder
from tests.engines.tiny_weightless import PROCESSOR_ONLY

pytestmark = [*ENGINE_IN_PROCESS]

OPTIONS = LayoutOptions(max_model_len=4096)
#: Placeholders that are text, or that change the text around them: pieces of text that do so.
DELICATE = {
    "gemma3": ("<start_of_image>", ("", "\n", "a", "a\n", "\nb", "\n\n", "x\n\n", "a\n\n\n", "\n\n\n\nq")),
    "internvl_chat": ("<image>", ("", "\n", "a", "a\n", " b", "x>", ">", "\n\n", "<", "<im")),
}


def loaded(kind: str, models: Path) -> tuple[ModelFiles, FamilyLayout, InstalledProcessor]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    folder = str(family_folder(kind, models))
    args = AsyncEngineArgs(model=folder, max_model_len=OPTIONS.max_model_len, trust_remote_code=True)
    processor = MULTIMODAL_REGISTRY.create_processor(args.create_engine_config().model_config)
    files = ModelFiles.load(folder)
    layout = layout_for(files, OPTIONS)
    assert layout is not None
    return files, layout, InstalledProcessor(processor, layout.engine_names)


@pytest.mark.parametrize("kind", PROCESSOR_ONLY)
def test_the_installed_processor_agrees_on_every_probe(kind: str, models: Path) -> None:
    files, _, processor = loaded(kind, models)
    contracts = layout_contracts(files, OPTIONS, processor)
    assert contracts and all(contract.exact for contract in contracts), contracts


@pytest.mark.parametrize("kind", DELICATE)
def test_whatever_text_stands_around_its_pictures_the_prompt_is_the_processors(
    kind: str, models: Path
) -> None:
    files, layout, processor = loaded(kind, models)
    placeholder, texts = DELICATE[kind]
    chance, laid_out = random.Random(1), 0
    for _ in range(80):
        sizes = [ImageSize(chance.choice((5, 64, 333)), chance.choice((7, 150))) for _ in range(3)]
        sizes = sizes[: chance.randint(1, 3)]
        prompt = "".join(chance.choice(texts) + placeholder for _ in sizes) + chance.choice(texts)
        ids = files.tokenizer.encode(prompt, add_special_tokens=False)
        ours = expanded(layout, ids, sizes)
        assert ours == rendered(processor, ids, sizes), prompt
        laid_out += ours is not None
    assert laid_out > 30


@pytest.mark.parametrize("error", [TypeError("int / None"), KeyError("longest_edge"), ValueError("ratio")])
def test_whatever_a_processor_raises_on_a_picture_is_its_refusal(error: Exception) -> None:
    class Broken:
        @property
        def info(self) -> object:
            raise error

    with pytest.raises(ProcessorRefused, match=type(error).__name__):
        InstalledProcessor(Broken(), {}).render([1], [ImageSize(4, 4)])


def expanded(layout: FamilyLayout, ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered | None:
    try:
        expansion = layout.expand(ids, layout.replacements(shapes))
    except ValueError:
        return None
    return Rendered(tuple(expansion.token_ids.tolist()), expansion.placed)


def rendered(processor: InstalledProcessor, ids: Sequence[int], shapes: Sequence[Shape]) -> Rendered | None:
    try:
        return processor.render(ids, shapes)
    except ProcessorRefused:
        return None
