"""What is read of a running SGLang, whichever release it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.config import EngineConfig
from deployments.engines.sglang import SglangEngine
from deployments.engines.sglang_process import Listening, SglangProcess
from sightline_types import EngineLoad


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


def test_sockets_lie_in_a_folder_of_their_own_that_goes_with_them() -> None:
    first, second = Listening.at(None), Listening.at(None)
    assert first.source.endpoint != second.source.endpoint
    for listening in (first, second):
        folder = Path(listening.source.endpoint.removeprefix("ipc://")).parent
        assert folder.is_dir()
        listening.stop()
        assert not folder.exists()


async def test_an_engine_that_does_not_start_leaves_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def refuse(args: dict[str, Any]) -> SglangProcess:
        given.append(args)
        raise RuntimeError("no such model")

    monkeypatch.setattr("deployments.engines.sglang.server_fields", frozenset)
    monkeypatch.setattr(SglangProcess, "start", refuse)
    with pytest.raises(RuntimeError, match="no such model"):
        await SglangEngine.start(EngineConfig(model="m", engine="sglang", accelerator="gpu"))
    endpoint = json.loads(given[0]["kv_events_config"])["endpoint"]
    assert not Path(endpoint.removeprefix("ipc://")).parent.exists()


async def test_a_load_that_nobody_reads_any_more_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    class Manager:
        reads = 0

        async def get_loads(self) -> list[Any]:
            self.reads += 1
            if self.reads > 1:
                raise OSError("no shared memory")
            return [SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, token_usage=0.5)]

    engine = SglangEngine.__new__(SglangEngine)
    engine._manager, engine._process, engine._load = Manager(), process(), None
    engine._process._children = {}
    watch = asyncio.get_running_loop().create_task(engine._watch_load())
    watch.add_done_callback(engine._forget_load)
    while engine.load() is None:
        await asyncio.sleep(0)
    assert engine.load() == EngineLoad(2, 1, 0.5)
    await asyncio.wait([watch])
    await asyncio.sleep(0)
    assert engine.load() is None
    assert "no shared memory" in caplog.text
