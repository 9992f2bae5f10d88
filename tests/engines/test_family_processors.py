"""Families compared with the processor that vLLM has installed: ids, ranges and masks, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.engines.vllm_contract import layout_contracts
from deployments.engines.vllm_probe import InstalledProcessor
from processors import LayoutOptions, ModelFiles, layout_for
from tests.engines.bench import ENGINE_IN_PROCESS
from tests.engines.tiny_families import PROCESSOR_ONLY, family_folder

pytestmark = [*ENGINE_IN_PROCESS]


@pytest.mark.parametrize("kind", PROCESSOR_ONLY)
def test_the_installed_processor_agrees_on_every_probe(kind: str, models: Path) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    folder = str(family_folder(kind, models))
    config = AsyncEngineArgs(model=folder, max_model_len=4096).create_engine_config().model_config
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    files, options = ModelFiles.load(folder), LayoutOptions(max_model_len=4096)
    layout = layout_for(files, options)
    assert layout is not None
    contracts = layout_contracts(files, options, InstalledProcessor(processor, layout.engine_names))
    assert contracts and all(contract.exact for contract in contracts), contracts
