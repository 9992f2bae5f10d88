"""The simulated engine does what vLLM's does: the same requests, steps, events in their order, cached tokens.

Random requests with pictures, shared beginnings, repeats, conversations that go on from an answer, aborts and
clearings, on a cache and an encoder cache that are too small for them. Each step of the simulated engine must
publish the events (field for field), give the outputs, schedule the tokens and encode the pictures that the
same step of the real engine did. What is told to both is between which steps requests arrive; keys are the
real engine's block hashes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.tiny_models import tiny_model
from tests.engines.replayed_engine import replay

#: Requests by form (`recorded_engine`). `make soak` takes more of them.
COUNTS = {"model": 120, "sync": 200, "async": 300}
#: Those that are recorded in one process.
TOGETHER = (("model",), ("sync", "async"))
SEED = 1
RECORDING_S = 800


@pytest.fixture(scope="module", params=TOGETHER, ids="+".join)
def recordings(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("recorded") / "engine.json"
    counts = {form: COUNTS[form] for form in request.param}
    arguments = [str(tiny_model("qwen3_vl", models)), json.dumps(counts), str(SEED), str(out)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engines.recorded_engine", *arguments],
        cwd=Path(__file__).parents[2],
        timeout=RECORDING_S,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    recorded: dict[str, Any] = json.loads(out.read_text())
    assert [one["form"] for one in recorded["recordings"]] == list(request.param)
    return recorded


def test_every_step_of_the_simulated_engine_is_a_step_of_the_real_one(recordings: dict[str, Any]) -> None:
    for recording in recordings["recordings"]:
        agreement = replay(recordings["sizes"], recording)
        print(f"{recording['form']}: {agreement}")
        assert agreement.requests >= COUNTS[recording["form"]]
        # That nothing happened is not agreement.
        assert agreement.removed > agreement.requests
        assert agreement.cached_tokens > 8 * agreement.requests
        assert agreement.twins and agreement.preemptions and agreement.pictures_encoded
