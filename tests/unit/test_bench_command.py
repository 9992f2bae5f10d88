"""`sightline bench`, word for word, against a small endpoint of this process."""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_endpoint, texts, urls

from app.cli import main
from app.load.plan import Plan
from app.load.run import Limit
from app.load.target import Target
from app.load.workload import Kind, Workload

NOT_HERE = ["--profile", "http64", "--picture-bind", "192.0.2.1"]
SMALL = ["--timeout", "20", "--warmup", "0"]


def bench(url: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """The JSON of a run that must succeed."""
    path = tmp_path / "figures.json"
    assert main(["bench", "--url", url, "--json", str(path), *SMALL, *options]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_closed_loop_keeps_so_many_requests_under_way(tmp_path):
    with chat_endpoint(together=4) as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "20", "-c", "4")
    assert endpoint.most == 4
    assert len(endpoint.bodies) == 20 + 2  # two measure how words are counted
    assert endpoint.connections <= 4 + 1
    assert found["summary"]["good"] == 20 and found["summary"]["errors"] == {}


def test_prompts_have_the_tokens_that_were_asked_for(tmp_path):
    with chat_endpoint() as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "4", "--profile", "text", "--prompt-tokens", "257")
    assert found["tokens_per_word"] == 2
    assert found["summary"]["prompt_tokens"]["p50"] == 257


def test_shared_prefixes_are_few_and_what_follows_is_new(tmp_path):
    with chat_endpoint() as endpoint:
        bench(endpoint.url, tmp_path, "-n", "40", "--profile", "8k")
    asked = [texts(body) for body in endpoint.bodies[2:]]
    assert len({prefix for prefix, _ in asked}) == 16
    assert len({new for _, new in asked}) == 40
    assert {2 * len(prefix.split()) for prefix, _ in asked} == {7168}


@pytest.mark.parametrize(("profile", "different"), [("data64", 64), ("datanew", 70)])
def test_data_pictures_repeat_or_are_all_new(tmp_path, profile, different):
    options = ("-n", "70", "--picture-size", "64x48", "--picture-bytes", "2000")
    with chat_endpoint() as endpoint:
        bench(endpoint.url, tmp_path, "--profile", profile, *options)
    pictures = Counter(url for body in endpoint.bodies for url in urls(body))
    assert len(pictures) == different
    kind, _, data = next(iter(pictures)).partition(",")
    assert kind == "data:image/jpeg;base64" and base64.b64decode(data).startswith(b"\xff\xd8")


def test_conversations_grow_with_their_answers(tmp_path):
    with chat_endpoint() as endpoint:
        found = bench(
            endpoint.url, tmp_path, "--profile", "multi_turn", "--turns", "3", "-n", "12", "-c", "2",
            "--max-tokens", "2",
        )  # fmt: skip
    third = next(body["messages"] for body in endpoint.bodies if len(body["messages"]) == 5)
    assert [message["role"] for message in third] == ["user", "assistant"] * 2 + ["user"]
    assert third[1]["content"] == "word0 word1 "
    lengths = Counter(len(body["messages"]) for body in endpoint.bodies[2:])
    assert lengths == {1: 4, 3: 4, 5: 4}
    assert set(found["summary"]["turns_ttft_p50_ms"]) == {"0", "1", "2"}


def test_the_same_seed_sends_the_same_requests(tmp_path):
    sent = []
    for seed in ("a", "a", "b"):
        with chat_endpoint() as endpoint:
            bench(endpoint.url, tmp_path, "-n", "5", "-c", "1", "--seed", seed)
        sent.append([texts(body) for body in endpoint.bodies])
    assert sent[0] == sent[1] != sent[2]


def test_errors_are_counted_by_status_and_code(tmp_path):
    with chat_endpoint(statuses=[429, 429, 500]) as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "6", "-c", "1", "--no-calibration")
    assert found["summary"]["errors"] == {"429 overloaded": 2, "500 a_type": 1}
    assert found["summary"]["statuses"] == {"200": 3, "429": 2, "500": 1}
    assert found["summary"]["latency_ms"]["ttft"]["count"] == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [({"cuts": True}, "ended without [DONE]"), ({"errs": True}, "error in the stream")],
)
def test_a_stream_that_breaks_is_an_error_though_its_status_is_200(tmp_path, fault, kind, capsys):
    with chat_endpoint(**fault) as endpoint:
        options = [*SMALL, "-n", "3", "--no-calibration"]
        assert main(["bench", "--url", endpoint.url, *options]) == 1
    assert f"failed: 3 x {kind}" in capsys.readouterr().out


def test_a_request_that_takes_too_long_is_given_up(tmp_path, capsys):
    with chat_endpoint(first_s=5) as endpoint:
        options = ["--timeout", "0.2", "--warmup", "0", "-n", "2", "--no-calibration", "--model", "tiny"]
        assert main(["bench", "--url", endpoint.url, *options]) == 1
    assert "failed: 2 x timeout" in capsys.readouterr().out


def test_a_connection_that_the_server_closes_is_replaced(tmp_path):
    with chat_endpoint(lives_up_to=2) as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "9", "-c", "1", "--no-calibration")
    assert found["summary"]["good"] == 9 and len(endpoint.bodies) == 9
    assert endpoint.connections >= 5


def test_receipts_are_tallied(tmp_path):
    headers = {"X-Sightline-Worker": "w1/0", "x-sightline-overlap": "3/10", "x-sightline-reason": "cost"}
    with chat_endpoint(headers=headers) as endpoint:
        summary = bench(endpoint.url, tmp_path, "-n", "5")["summary"]
    assert summary["workers"] == {"w1/0": 5} and summary["reasons"] == {"cost": 5}
    assert summary["overlap"] == {"held": 15, "asked": 50}
    assert summary["cached_share"] == pytest.approx(0.5, abs=0.02)


def test_whole_answers_have_no_first_token(tmp_path):
    with chat_endpoint() as endpoint:
        summary = bench(endpoint.url, tmp_path, "-n", "3", "--no-stream")["summary"]
    assert summary["latency_ms"]["ttft"] is None and summary["latency_ms"]["e2e"]["count"] == 3
    assert summary["output_tokens"]["mean"] == 8


def test_an_endpoint_that_tells_no_usage_is_measured_by_its_words(tmp_path):
    with chat_endpoint(tells=False) as endpoint:
        summary = bench(endpoint.url, tmp_path, "-n", "3")["summary"]
    assert summary["prompt_tokens"] is None and summary["cached_share"] is None
    assert summary["output_tokens"]["mean"] == 8


def test_rows_say_of_each_request_what_a_profile_is_fitted_from(tmp_path):
    rows = tmp_path / "rows.jsonl"
    with chat_endpoint(pause_s=0.002) as endpoint:
        bench(endpoint.url, tmp_path, "-n", "6", "-c", "2", "--rows", str(rows))
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == 6
    for row in found:
        assert (row["output_tokens"], row["error"]) == (8, "")
        assert 0 < row["cached_tokens"] < row["prompt_tokens"] and 1 <= row["concurrent"] <= 2
        assert row["ttft_ms"] > 0 and row["e2e_ms"] >= 8 * 2 - 1
        # Words that come late come together: the gaps of a busy machine may be anything up to this.
        assert 0 <= 7 * row["itl_ms"] <= row["e2e_ms"] - row["ttft_ms"] + 0.1


def test_several_processes_share_the_requests(tmp_path):
    with chat_endpoint() as endpoint:
        options = ("-n", "801", "-c", "4", "--processes", "2", "--profile", "shared_prefix")
        found = bench(endpoint.url, tmp_path, *options, "--shared-tokens", "64", "--new-tokens", "32")
    assert found["summary"]["good"] == 801 and found["processes"] == 2
    asked = [texts(body) for body in endpoint.bodies[2:]]
    assert len({prefix for prefix, _ in asked}) == 16
    assert len({new for _, new in asked}) == 801


def test_the_watched_process_is_charged(tmp_path):
    with chat_endpoint() as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "300", "--pid", f"here={os.getpid()}")
    assert found["cpu_s"]["here"] > 0
    assert found["cpu_ms_per_request"]["client"] == pytest.approx(found["cpu_s"]["client"] * 1000 / 300)


def test_an_interrupt_prints_what_was_measured(capsys):
    with chat_endpoint() as endpoint:

        def interrupt() -> None:
            while len(endpoint.bodies) < 50:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        status = main(["bench", "--url", endpoint.url, *SMALL, "--duration", "60", "--no-calibration"])
        thread.join()
    shown = capsys.readouterr().out
    assert status == 130
    assert "interrupted" in shown and "requests/s" in shown


def test_an_endpoint_that_is_not_there_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["bench", "--url", f"http://127.0.0.1:{port}"]) == 1
    said = capsys.readouterr().err
    assert f"http://127.0.0.1:{port}/v1 cannot be used" in said and "refused" in said


def test_figures_that_cannot_be_written_are_told_after_they_are_shown(capsys):
    with chat_endpoint() as endpoint:
        options = [*SMALL, "-n", "3", "--no-calibration", "--json", "/dev/full"]
        assert main(["bench", "--url", endpoint.url, *options]) == 1
    said = capsys.readouterr()
    assert "3 good, 0 failed" in said.out
    assert said.err.startswith("sightline bench: /dev/full: ")


@pytest.mark.parametrize("early", ["100 Continue", "103 Early Hints"])
def test_what_a_proxy_says_before_the_answer_is_not_the_answer(early, tmp_path):
    with chat_endpoint(early=early) as endpoint:
        found = bench(endpoint.url, tmp_path, "-n", "4", "-c", "2")
    assert (found["summary"]["good"], found["summary"]["statuses"]) == (4, {"200": 4})


def test_an_endpoint_without_a_model_says_so(capsys):
    with chat_endpoint(models=[]) as endpoint:
        assert main(["bench", "--url", endpoint.url]) == 1
    assert "lists no model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "16k"], "choose from 32, 8k, data64"),
        (["--url", "ftp://x"], "give an address"),
        (["--url", "http://a..b"], "http://a..b"),
        (["--requests", "0"], "at least 1"),
        (["--rate", "-1"], "above 0"),
        (["--repeat", "none"], "a number from 1"),
        (["--picture-size", "1024"], "WxH"),
        (["--picture-size", "100000x100000"], "at most 67108864 pixels"),
        (["--prompt-tokens", "99999999999"], "at most 10000000"),
        (["--body", "[1]"], "give an object"),
        (["--pid", "router=99999999"], "no such process"),
        (["--process-match", "router=("], "--process-match router=("),
        (["--process-match", "router=no such process$"], "no process on this machine matches router"),
        (["--within", "99999999", "--sightline"], "no such process"),
        (["--header", "nothing"], "name: value"),
        (["--processes", "9", "-c", "4"], "more than --concurrency"),
        (["--json", "/nowhere/x.json"], "there is no folder"),
        (["--rows", "/dev"], "/dev: is a folder"),
        ([*NOT_HERE, "--no-calibration", "--model", "m", "--picture-size", "64x48"], "192.0.2.1"),
    ],
)
def test_what_cannot_be_is_refused_with_status_2(options, said, capsys):
    assert main(["bench", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_long_run_of_long_prompts_is_not_made_whole_beforehand():
    target, load = Target.parse("http://x"), Workload(Kind.TEXT, prompt_tokens=100_000)
    an_hour = Plan(target, "text", load, Limit(None, 3600.0))
    assert 1 <= an_hour.prepared_requests * load.prompt_tokens <= 1 << 24
    assert replace(an_hour, limit=Limit(10**9)).prepared_requests == an_hour.prepared_requests
    assert replace(an_hour, limit=Limit(20)).prepared_requests == 20


def test_its_help_names_the_profiles(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("httpnew", "multi_turn", "--process-match"))


def test_no_option_is_without_help():
    from app.load.arguments import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert [action.option_strings for action in parser._actions if not action.help] == []
