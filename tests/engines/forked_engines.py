"""Engines that start within seconds: their processes are forked from one that has imported all already."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ForkServer
from types import SimpleNamespace

import pytest

from deployments.config import EngineConfig
from deployments.engines.sglang_args import engine_environment

#: What an engine's processes import before they see a model: 13 to 16 s of CPU each, once instead of once an
#: engine.
_IMPORTS = {
    "vllm": [
        "vllm.v1.engine.core",
        "vllm.v1.executor.uniproc_executor",
        "vllm.v1.worker.cpu_worker",
        "vllm.multimodal.processing",
    ],
    "sglang": ["sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager"],
}
#: They live as long as this process.
_SERVERS = {engine: ForkServer() for engine in _IMPORTS}
#: vLLM's engines have the environment of the first one's start, so what any of them needs is told to all.
_ENVIRONMENT = {
    # vLLM 0.32's CPU backend caches no prefix of Kimi's latent attention. As plain attention, it does.
    "VLLM_MLA_DISABLE": "1",
}


@contextmanager
def forked_engines(config: EngineConfig) -> Iterator[None]:
    """Processes of engines that this process starts meanwhile come from a fork server; the simulated engine
    has none.

    `vllm serve` offers the same (`VLLM_WORKER_MULTIPROC_METHOD=forkserver`), but vLLM 0.32's CPU platform
    puts the variable back to `spawn`; SGLang 0.5.23 always spawns.
    """
    server = _SERVERS.get(config.engine)
    if server is None:
        yield
        return
    server.set_forkserver_preload(_IMPORTS[config.engine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.forkserver.connect_to_new_process", server.connect_to_new_process)
        if config.engine == "sglang":
            _fork_sglang(config, patch)
        else:
            _fork_vllm(patch)
        yield


def _fork_vllm(patch: pytest.MonkeyPatch) -> None:
    for name, value in _ENVIRONMENT.items():
        patch.setenv(name, value)
    context = multiprocessing.get_context("forkserver")
    patch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: context)


def _fork_sglang(config: EngineConfig, patch: pytest.MonkeyPatch) -> None:
    for name, value in engine_environment(config).items():
        os.environ.setdefault(name, value)  # before SGLang is imported, as its adapter does
    context = multiprocessing.get_context("forkserver")
    forking = SimpleNamespace(
        Process=context.Process, Pipe=context.Pipe, set_start_method=lambda *_, **__: None
    )
    patch.setattr("sglang.srt.entrypoints.engine.mp", forking)
