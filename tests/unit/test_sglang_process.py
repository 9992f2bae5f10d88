"""What is read of a running SGLang, whichever release it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engines.sglang_process import SglangProcess


def process(settled: Any = None, *, context: int = 512, capacity: int = 4096) -> SglangProcess:
    of = SglangProcess({})
    infos = [{"max_total_num_tokens": capacity}]
    of.engine = SimpleNamespace(
        server_args=settled,
        tokenizer_manager=SimpleNamespace(context_len=context),
        _scheduler_init_result=SimpleNamespace(scheduler_infos=infos),
    )
    return of


@pytest.mark.parametrize(
    "settled",
    [
        SimpleNamespace(page_size=None, resolved_dict=lambda: {"page_size": 16}),
        SimpleNamespace(page_size=16),
    ],
    ids=["0.5.20 and later", "earlier"],
)
def test_a_setting_is_read_as_the_release_has_settled_it(settled: Any) -> None:
    assert process(settled).setting("page_size") == 16


@pytest.mark.parametrize(("context", "capacity", "longest"), [(512, 4096, 510), (4096, 512, 510)])
def test_the_longest_request_is_what_sglang_does_not_shorten(
    context: int, capacity: int, longest: int
) -> None:
    """Measured on 0.5.23 with a context of 512: the answer to 210 tokens ends at 300, whatever is asked."""
    assert process(context=context, capacity=capacity).max_request_tokens == longest
