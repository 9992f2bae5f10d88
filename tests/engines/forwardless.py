"""An executor for vLLM's engine core that loads no model: each forward pass is a draw of random tokens.

All else of the engine core is vLLM's. For asynchronous scheduling, which vLLM turns off on CPUs, and for more
requests than a model on a CPU would answer.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

CACHE_BYTES = 16 << 20
#: Few different tokens, so that requests meet each other's outputs as well.
TOKENS = (40, 41)


class Forwardless(Executor):
    """What a worker with one layer of full attention would answer."""

    supported_tasks = ("generate",)

    def _init_executor(self) -> None:
        self._random = random.Random(0)
        self._known: dict[str, int] = {}  # tokens of each request, prompt and output

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> list[Any]:
        layer = FullAttentionSpec(
            block_size=self.cache_config.block_size, num_kv_heads=1, head_size=32, dtype=torch.bfloat16
        )
        answers: dict[str, Any] = {
            "get_kv_cache_spec": {"layer": layer},
            "determine_available_memory": CACHE_BYTES,
            "get_supported_kv_cache_layouts": ["NHD"],
        }
        return [] if method == "compile_or_warm_up_model" else [answers.get(method)]

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        self._scheduled = scheduled
        empty = None if scheduled.total_num_scheduled_tokens else ModelRunnerOutput([], {})
        return _done(empty) if non_block else empty

    def sample_tokens(self, _: Any, non_block: bool = False) -> Any:
        scheduled = self._scheduled
        names = list(scheduled.num_scheduled_tokens)
        starts = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        old = scheduled.scheduled_cached_reqs
        starts |= dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        for new in scheduled.scheduled_new_reqs:
            self._known[new.req_id] = len(new.prompt_token_ids)
        tokens = [self._sampled(name, starts[name] + scheduled.num_scheduled_tokens[name]) for name in names]
        output = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, tokens)
        return _done(output) if non_block else output

    def _sampled(self, name: str, end: int) -> list[int]:
        """A token, where the chunk reaches the last one that is known."""
        if end < self._known[name]:
            return []
        self._known[name] += 1
        return [self._random.choice(TOKENS)]

    def check_health(self) -> None:
        """Nothing can fail."""

    def reset_mm_cache(self) -> None:
        """There is none."""

    def reset_encoder_cache(self) -> None:
        """There is none."""

    def shutdown(self) -> None:
        """Nothing runs."""


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
