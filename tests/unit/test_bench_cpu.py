from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.load.cpu import SIGHTLINE_PROCESSES, CpuMeter, ProcessGroup, groups_by_match, groups_by_pid

#: Burns 0.3 s of processor time for each line it reads, in a child that ends if told so.
BURNER = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.3: pass"
for line in sys.stdin:
    subprocess.run([sys.executable, "-c", burn]) if line == "child\\n" else exec(burn)
    print("done", flush=True)
"""


@contextmanager
def burner(mark: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", BURNER, mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def burn(process: subprocess.Popen[str], how: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(how + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_a_child_that_has_ended_is_counted():
    with burner("a") as process:
        meter = CpuMeter(groups_by_pid({"burner": [process.pid]}))
        burn(process, "child")
        assert meter.seconds()["burner"] >= 0.25


def test_time_before_the_meter_does_not_count_and_one_group_is_not_charged_for_another():
    with burner("a") as one, burner("b") as other:
        burn(one, "self")
        meter = CpuMeter(groups_by_pid({"one": [one.pid], "other": [other.pid]}))
        burn(other, "self")
        found = meter.seconds()
    assert found["one"] < 0.2 and found["other"] >= 0.2


def test_a_process_that_ended_is_no_error():
    with burner("a") as process:
        meter = CpuMeter([ProcessGroup("gone", (process.pid,))])
    assert meter.seconds()["gone"] == 0


def test_processes_are_found_by_command_line_each_in_one_group():
    with burner("mark-of-this-test") as process:
        found = groups_by_match({"first": "mark-of-this", "second": "of-this-test", "none": "no such thing$"})
        assert found == [ProcessGroup("first", (process.pid,))]
        assert groups_by_match({"first": "mark-of-this"}, within=process.pid) == found
        assert groups_by_match(SIGHTLINE_PROCESSES, within=process.pid) == []


@pytest.mark.parametrize(
    ("title", "group"),
    [  # Ray 2.60, read from /proc while an application started and served
        ("ray::ServeReplica:sightline:Engine.handle_request_streaming", "engine"),
        ("ray::SERVE_REPLICA::sightline#Engine#q17fua9c:ServeReplica:sightline:Engine.__init__", "engine"),
        ("ray::SERVE_REPLICA::sightline#Ingress#80m6fbqf:ServeReplica:sightline:Ingress.__init__", "ingress"),
        ("ray::ServeReplica:sightline:Router", "router"),
        ("ray::sightline:sightline:engine:w5d40cwl:1:RouterActor.__init__", "router actor"),
        ("ray::RouterActor.roster", "router actor"),
        ("ray::ServeController.listen_for_change", "controller"),
        ("ray::ProxyActor", "proxy"),
        ("ray::IDLE", None),
    ],
)
def test_sightline_s_processes_are_known_by_their_titles_from_their_first_breath_on(title, group):
    found = (name for name, pattern in SIGHTLINE_PROCESSES.items() if re.search(pattern, title))
    assert next(found, None) == group
