"""Engines that start within seconds: their processes are forked from one that has imported vLLM already."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: What an engine core imports before it sees a model: 11 s of CPU, once instead of once an engine.
_IMPORTS = [
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.multimodal.processing",
]


#: Theirs is the environment of the first one's start, so what any of them needs is told to all.
_ENVIRONMENT = {
    # vLLM 0.32's CPU backend caches no prefix of Kimi's latent attention. As plain attention, it does.
    "VLLM_MLA_DISABLE": "1",
}


@contextmanager
def forked_engines() -> Iterator[None]:
    """Engine cores of this process come from a fork server meanwhile, which lives as long as this process.

    `vllm serve` offers the same (`VLLM_WORKER_MULTIPROC_METHOD=forkserver`), but vLLM 0.32's CPU platform
    puts the variable back to `spawn`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr("vllm.v1.engine.utils.get_mp_context", lambda: context)
        yield
