"""A simulated endpoint is measured as `sightline bench` measures a real one, and its profile found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli import main
from simulation import EngineSpec, FitError, Profile, SimulatedEngine, SimulatedMedia
from simulation.bench_rows import BenchRow, fit_rows
from tests.unit.simulated_requests import request

TRUTH = Profile(
    prefill_base_ms=9.0,
    prefill_ms_per_token=0.05,
    prefill_ms_per_token_context=2e-6,
    decode_base_ms=8.0,
    decode_ms_per_request=0.1,
    decode_ms_per_context_token=2e-4,
    encode_base_ms=3.0,
    encode_ms_per_token=0.02,
)
SPEC = EngineSpec(num_blocks=4096, max_num_batched_tokens=16384, max_model_len=16384)


def ask_together(
    count: int, prompt: list[int], outputs: int, pictures: tuple[int, ...] = ()
) -> list[BenchRow]:
    """`count` requests that arrive at once at an empty engine, as rows."""
    engine = SimulatedEngine(SPEC, TRUTH)
    media = [SimulatedMedia(1 + i * size, size, 7 + i, size) for i, size in enumerate(pictures)]
    for i in range(count):
        engine.add(request(f"r{i}", [i, *prompt], outputs, media, block_size=16))
    now, first, last, cached = 0.0, {}, {}, {}
    while (step := engine.step()) is not None:
        now += step.duration_ms
        for output in step.outputs:
            first.setdefault(output.request_id, now)
            last[output.request_id], cached[output.request_id] = now, output.cached_tokens
    return [
        BenchRow(
            ttft_ms=first[name],
            itl_ms=(last[name] - first[name]) / (outputs - 1) if outputs > 1 else None,
            prompt_tokens=len(prompt) + 1,
            cached_tokens=cached[name],
            output_tokens=outputs,
            concurrent=count,
            pictures=len(pictures),
        )
        for name in first
    ]


def measured() -> tuple[list[BenchRow], dict[int, list[BenchRow]]]:
    text = [row for n in (63, 500, 2000, 9000) for row in ask_together(1, [5] * n, outputs=1)]
    for count in (1, 4, 16):
        for context in (20, 600):
            text += ask_together(count, [5] * context, outputs=60)
    pictures = {
        n: ask_together(1, [5] * 2000, 1, (n,)) + ask_together(1, [5] * 2000, 1, (n, n)) for n in (50, 900)
    }
    return text, pictures


def test_the_profile_of_a_simulated_endpoint_is_found_from_its_bench_rows() -> None:
    text, pictures = measured()
    found = fit_rows(text, pictures).profile
    assert found.prefill_base_ms == pytest.approx(TRUTH.prefill_base_ms, rel=0.05)
    assert found.prefill_ms_per_token == pytest.approx(TRUTH.prefill_ms_per_token, rel=0.05)
    assert found.decode_base_ms == pytest.approx(TRUTH.decode_base_ms, rel=0.1)
    assert found.encode_ms_per_token == pytest.approx(TRUTH.encode_ms_per_token, rel=0.1)
    for row in text:
        if row.itl_ms:
            assert found.step_ms(row.decode.work) == pytest.approx(row.itl_ms, rel=0.1)


def test_the_command_prints_settings_that_the_simulated_engine_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, pictures = measured()
    write(tmp_path / "text.jsonl", text)
    write(tmp_path / "large.jsonl", pictures[900] * 2)
    words = ["fit-profile", str(tmp_path / "text.jsonl"), "--pictures", f"900={tmp_path / 'large.jsonl'}"]
    assert main([*words, "--name", "mine"]) == 0
    printed = capsys.readouterr()
    profile = Profile.model_validate(yaml.safe_load(printed.out)["profile"])
    assert profile.name == "mine"
    assert profile.encode_ms_per_token == pytest.approx(
        0.02 + 3 / 900, rel=0.05
    )  # one size: all by the token
    assert "prefill: off by" in printed.err


def write(path: Path, rows: list[BenchRow]) -> None:
    path.write_text("".join(json.dumps({**row.model_dump(), "worker": "w"}) + "\n" for row in rows))


def test_an_endpoint_that_tells_no_usage_settles_nothing() -> None:
    with pytest.raises(FitError, match="usage"):
        fit_rows([BenchRow(ttft_ms=3.0)])


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "No such file"), ("{", "line 1"), ("", "no text row"), ('{"ttft_ms": 1}', "usage")],
)
def test_rows_that_cannot_be_read_are_named(
    content: str | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["fit-profile", str(path)]) == 1
    err = capsys.readouterr().err
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["x", "0=f", "=f", "9="])
def test_pictures_without_their_tokens_are_a_wrong_call(text: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["fit-profile", "f", "--pictures", text])
    assert "TOKENS=ROWS" in capsys.readouterr().err
