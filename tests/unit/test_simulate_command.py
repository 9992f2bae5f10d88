"""`sightline simulate` and `sightline trace` from the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import fleets
import pytest

from app.cli import main
from app.progress import ProgressLine
from app.simulate_output import RatedRun
from app.simulate_plots import figures
from simulation.fleet import FleetRun, simulate
from simulation.metrics import GapHistogram, Percentiles, percentile
from simulation.scenario import Change


class Interrupted(ThreadPoolExecutor):
    """Runs nothing, and fails as asked while results are waited for."""

    error: type[BaseException] = KeyboardInterrupt

    def __init__(self, at_a_time: int, **_: object) -> None:
        super().__init__(at_a_time)

    def map(self, *_: object, **__: object) -> Iterator[FleetRun]:
        raise self.error
        yield


SMALL = ["simulate", "--workload", "W4", "--requests", "20", "--workers", "2", "--rate", "30"]


def test_the_same_command_writes_the_same_json(tmp_path, capsys):
    texts = []
    for name in ("a.json", "b.json"):
        assert main([*SMALL, "--policies", "kv,power_of_two", "--json", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    data = json.loads(texts[0])
    assert data["workload"] == "hot_prefix"
    assert [run["policy"] for run in data["runs"]] == ["kv", "power_of_two"]
    assert all(run["served"] == 20 and run["failures"] == 0 for run in data["runs"])
    assert {"ttft_ms", "itl_ms", "e2e_ms", "hit_rate", "regret_rate", "imbalance"} <= data["runs"][0].keys()
    assert "TTFT p50" in capsys.readouterr().out


def test_runs_in_processes_of_their_own_come_to_the_same(capsys):
    both = []
    for jobs in ("1", "2"):
        assert main([*SMALL, "--policies", "kv,round_robin", "--jobs", jobs, "--json", "-"]) == 0
        both.append(json.loads(capsys.readouterr().out))
    assert both[0] == both[1]


def test_a_report_is_one_page_with_its_pictures_inside(tmp_path):
    words = ["simulate", "--workload", "W1", "--requests", "15", "--workers", "2", "--rate", "5,10"]
    assert main([*words, "--report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert names == {"ttft.png", "tokens.png", "hit_rate.png", "load.png", "homes.png"}
    assert page.count('src="data:image/png;base64,') == 5
    assert "http" not in page.replace("https://", "").split("<body>")[0]


def test_the_line_of_a_worker_s_load_ends_with_its_death():
    died = (Change(at_s=0.2, kind="die", number=1),)
    drawn = figures([RatedRun(None, fleets.run(fleets.groups(60, 10.0), changes=died))])
    ends = {
        line.get_label(): max(line.get_xdata()) for axes in drawn["load"][1].axes for line in axes.get_lines()
    }
    assert ends["w001/0"] < 0.25 < min(ends["w000/0"], ends["w002/0"])


def test_a_run_that_is_over_before_the_first_look_has_a_picture_without_lines():
    drawn = figures([RatedRun(None, fleets.run([fleets.single(0.0, "a")], sample_ms=60_000.0))])
    assert not any(axes.get_lines() for axes in drawn["load"][1].axes)


def test_without_matplotlib_a_report_is_refused_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for name in ("app.simulate_plots", "app.simulate_report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main([*SMALL, "--report", str(tmp_path)]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


def test_the_list_names_workloads_and_profiles(capsys):
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("W1", "groups", "W5", "mooncake_media", "W6", "w1"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "W9"], "no workload 'W9'"),
        (["--rate", "fast"], "--rate 'fast'"),
        (["--rate", "0"], "above 0"),
        (["--policies", "kv,best"], "no policy 'best': there are kv,"),
        (["--change", "soon"], "SECONDS:KIND:NUMBER"),
        (["--change", "5:explode:1"], "join, leave or die"),
        (["--router", "crowding"], "NAME=VALUE"),
        (["--router", "crowding=-1"], "crowding"),
        (["--profile", "h9000"], "no preset 'h9000'"),
        (["--profile", "none.json"], "none.json"),
        (["--workers", "0"], "--workers 0: at least 1"),
        (["--event-loss", "1.5"], "event_loss"),
        (["--workload", "W5"], "--trace FILE"),
        (["--block-size", "0"], "--block-size"),
        (["--requests", "0"], "--requests"),
        (["--change", "1:die:8"], "worker 8"),
        (["--workers", "1000000"], "--workers 1000000: at most 10000"),
        (["--requests", "1000000000"], "--requests 1000000000: at most 2000000"),
        (["--change", "1:join:100000000"], "at most 10000"),
        (["--event-delay-ms", "inf"], "event_delay_ms"),
        (["--router", "policy=kv_blocks"], "--policies"),
        (["--trace", "x.jsonl"], "--workload T"),
        (["--picture-share", "0.5"], "--picture-share 0.5"),
        (["--think-s", "1"], "--think-s 1.0: W1"),
        (["--workload", "W2", "--think-s", "nan"], "--think-s nan: from 0"),
        (["--workload", "W2", "--rate", "3"], "--rate 3"),
        (["--json", "/nowhere/x.json"], "no folder /nowhere"),
        (["--report", "/dev/null/x"], "--report /dev/null/x"),
        (["--json", "/dev"], "--json /dev: is a folder"),
        (["--kv-tokens", "15"], "--kv-tokens 15: not one block of --block-size 16"),
        (["--profile", "/dev/null.json"], "--profile /dev/null.json"),
    ],
)
def test_what_cannot_be_is_named_on_one_line(words, message, capsys):
    assert main(["simulate", "--requests", "5", *words]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_a_result_that_cannot_be_written_is_told_after_the_table(option, tmp_path, capsys):
    path = Path("/dev/full") if option == "--json" else tmp_path
    if option == "--report":
        (tmp_path / "report.html").mkdir()
    assert main([*SMALL, "--policies", "kv", option, str(path)]) == 1
    said = capsys.readouterr()
    assert "TTFT p50" in said.out
    assert f"sightline: {option} {path}: " in said.err


def test_an_interrupt_shows_the_runs_that_had_ended(monkeypatch, capsys):
    def until_the_second(sessions, scenario, policy, note=None):
        if policy == "round_robin":
            raise KeyboardInterrupt
        return simulate(sessions, scenario, policy, note)

    monkeypatch.setattr("app.simulate_runs.simulate", until_the_second)
    assert main([*SMALL, "--policies", "kv,round_robin"]) == 130
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.out.splitlines()] == ["policy", "kv"]
    assert said.err == "sightline: interrupted\n"


def test_an_interrupt_ends_runs_in_processes_of_their_own(monkeypatch, capsys):
    monkeypatch.setattr("app.simulate_runs.ProcessPoolExecutor", Interrupted)
    assert main([*SMALL, "--policies", "kv,round_robin", "--jobs", "2"]) == 130
    assert capsys.readouterr().err == "sightline: interrupted\n"


def test_a_run_whose_process_was_killed_is_told_on_one_line(monkeypatch, capsys):
    monkeypatch.setattr(Interrupted, "error", BrokenProcessPool)
    monkeypatch.setattr("app.simulate_runs.ProcessPoolExecutor", Interrupted)
    assert main([*SMALL, "--policies", "kv,round_robin", "--jobs", "2"]) == 1
    assert "fewer --jobs" in capsys.readouterr().err


def test_a_log_becomes_a_trace_that_can_be_simulated(tmp_path, capsys):
    log, trace = tmp_path / "log.jsonl", tmp_path / "trace.jsonl"
    request = {"messages": [{"role": "user", "content": "a secret question " * 40}], "max_tokens": 4}
    log.write_text("\n".join(json.dumps(request) for _ in range(6)))
    assert main(["trace", str(log), "--out", str(trace)]) == 0
    assert "secret" not in trace.read_text()
    assert (
        main(["simulate", "--workload", "T", "--trace", str(trace), "--policies", "kv", "--json", "-"]) == 0
    )
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["runs"][0]["hit_rate"] > 0.5


def test_a_log_that_cannot_be_read_leaves_no_trace(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    assert main(["trace", str(log), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert not (tmp_path / "out.jsonl").exists()
    assert "line 1" in capsys.readouterr().err
    assert main(["trace", str(log), "--out", str(tmp_path / "out.jsonl"), "--size", "big"]) == 1


def test_an_empty_log_is_no_trace_and_a_trace_needs_a_folder(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("\n")
    assert main(["trace", str(log), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert "no requests" in capsys.readouterr().err
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    assert main(["trace", str(log), "--out", str(tmp_path / "no" / "out.jsonl")]) == 1
    assert "--out" in capsys.readouterr().err
    assert main(["trace", str(log), "--out", str(log)]) == 1
    assert "that is the log itself" in capsys.readouterr().err
    assert "hello" in log.read_text()


@pytest.mark.parametrize("size", ["big", "²x3", "0x5", "1x", "9999999x1"])
def test_a_size_of_pictures_that_is_none_is_named(size, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    assert main(["trace", str(log), "--out", str(tmp_path / "out.jsonl"), "--size", size]) == 1
    assert f"--size {size!r}" in capsys.readouterr().err


def test_requests_that_no_worker_can_hold_are_told_with_their_reason(capsys):
    assert main([*SMALL, "--kv-tokens", "100", "--policies", "kv"]) == 1
    assert "kv at 30/s: 20 requests failed, the first:" in capsys.readouterr().err


def test_a_profile_that_is_none_is_named(tmp_path, capsys):
    file = tmp_path / "profile.json"
    file.write_text("")
    assert main(["simulate", "--profile", str(file)]) == 1
    assert str(file) in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "shown"), [(Terminal(), "\rrun 1/2 [######"), (io.StringIO(), "run 1/2 [######")]
)
def test_a_long_run_says_how_far_it_is(out, shown):
    times = iter([0.0, 1.0, 100.0])
    with ProgressLine(2, out, clock=lambda: next(times)) as line:
        note = line.begin("kv", 100)
        note(75, 3.0)
        note(75, 3.0)
    assert shown in out.getvalue()
    assert "25%  kv, 3 s simulated" in out.getvalue()


# Figures


def test_percentiles_are_between_their_neighbours():
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.9) == pytest.approx(4.6)
    assert Percentiles.of(range(1, 101)) == Percentiles(50.5, 90.1, 99.01, 50.5)
    assert Percentiles.of([]) == Percentiles(0.0, 0.0, 0.0, 0.0)


def test_a_gap_histogram_is_within_one_percent():
    gaps = GapHistogram()
    for each in range(1, 1001):
        gaps.add(each / 10)
    seen = gaps.percentiles()
    assert seen.p50 == pytest.approx(50.0, rel=0.011)
    assert seen.p99 == pytest.approx(99.0, rel=0.011)
    assert seen.mean == pytest.approx(50.05)
    assert gaps.count == 1000
