"""What fails, fails small: requests in flight, a dead replica, a dead engine, a dead router."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

from tests.engines import pictures as make
from tests.engines.never_lost import command_line, event_sources
from tests.engines.pictures import PictureServer
from tests.engines.service import QUESTION, Service, image_part, messages

#: What an engine's own process is called: vLLM's, SGLang's, and vLLM's before it has named itself.
CORES = ("EngineCore", "sglang::scheduler", "spawn_main")
#: Reasons of answers that the router did not decide on.
UNDECIDED = ("router_unreachable", "decision_timeout")


def replica_pids(service: Service) -> dict[str, int]:
    """Process of each engine replica, by worker."""
    sources = event_sources(service, count=len(service.workers()))
    return {worker: int(source["pid"]) for worker, source in sources.items()}


def engine_children(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if "reaper" not in command_line(p)]


def router_actors(app_name: str = "") -> list[str]:
    """Names of the router actors: of one application, or of all."""
    import ray

    prefix = f"sightline:{app_name}:" if app_name else "sightline:"
    return [
        a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["name"].startswith(prefix)
    ]


def the_router_actor(service: Service, but_not: str = "") -> str:
    """Its name, once there is but one: a new one may have begun before the old one is forgotten."""

    def only() -> str:
        names = router_actors(service.app_name)
        return names[0] if len(names) == 1 and names[0] != but_not else ""

    return str(service.wait_for(only))


def stream_all(service: Service, turns: list[list[dict[str, Any]]], max_tokens: int) -> list[dict[str, Any]]:
    """All requests at once, streamed; how each went."""

    async def one(client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = service.request(messages, stream=True, max_tokens=max_tokens)
        outcome: dict[str, Any] = {"tokens": 0, "error": None, "done": False}
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                outcome["status"] = response.status_code
                outcome["worker"] = response.headers.get("x-sightline-worker")
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        outcome["done"] = True
                    elif '"error"' in line:
                        outcome["error"] = line
                    elif line.startswith("data: "):
                        outcome["tokens"] += 1
        except httpx.HTTPError as error:
            outcome["error"] = repr(error)
        return outcome

    async def run() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=service.url, timeout=120) as client:
            return list(await asyncio.gather(*(one(client, t) for t in turns)))

    return asyncio.run(run())


def many_turns(pictures: PictureServer, count: int, seed: int) -> list[list[dict[str, Any]]]:
    urls = [pictures.put(f"many{seed}-{n}.png", make.png(seed + n, (192, 160))) for n in range(4)]
    return [
        messages(image_part(urls[n % 4]), f"Question {n}. " + QUESTION, system="Short.") for n in range(count)
    ]


def test_sixteen_streams_run_at_once(service: Service, pictures: PictureServer) -> None:
    outcomes = stream_all(service, many_turns(pictures, 16, 300), max_tokens=16)
    assert all(o["status"] == 200 and o["done"] and o["error"] is None for o in outcomes), outcomes
    assert {o["worker"] for o in outcomes} == {row["worker"] for row in service.workers()}
    rows = service.wait_idle()
    assert all(row["load"]["active_requests"] == 0 for row in rows)


def test_a_client_that_goes_away_frees_the_engine_and_the_booking(service: Service) -> None:
    service.wait_idle()
    stream = service.stream(messages("Tell me a story. " + QUESTION), max_tokens=1500)
    headers = next(stream)["headers"]
    worker = headers["x-sightline-worker"]
    for _ in range(3):
        next(stream)
    stream.close()
    rows = {row["worker"]: row for row in service.wait_idle()}
    assert rows[worker]["engine"]["num_running"] == 0
    assert rows[worker]["load"]["active_requests"] == 0
    receipt = service.client.get(f"/router/decisions/{headers['x-sightline-decision']}").json()
    assert receipt["outcome"]["kind"] == "abort", "it was stopped, not finished"


def test_the_router_actor_dies_and_is_exact_again(service: Service, pictures: PictureServer) -> None:
    import ray

    turns = messages(image_part(pictures.put("survivor.png", make.png(320))), QUESTION)
    before = service.ask_exact(turns)
    service.wait_idle()
    name = the_router_actor(service)
    ray.kill(ray.get_actor(name, namespace="sightline"))
    meanwhile = service.ask(messages("Are you there? " + QUESTION))
    assert meanwhile.status == 200
    the_router_actor(service, but_not=name)
    service.wait_for(lambda: service.ask(messages("Hello.")).reason not in UNDECIDED)
    again = service.ask_exact(turns)
    assert again.worker == before.worker
    assert again.overlap >= 6


def test_requests_are_served_while_the_router_is_unreachable(service: Service) -> None:
    import ray

    reasons: set[str] = set()
    for _ in range(10):  # on a slow machine it may be back before anybody has asked
        service.wait_idle()
        name = the_router_actor(service)
        ray.kill(ray.get_actor(name, namespace="sightline"))
        while True:
            reason = service.ask(messages("Anyone? " + QUESTION), max_tokens=1).reason
            reasons.add(reason)
            if reason not in UNDECIDED and router_actors(service.app_name) not in ([], [name]):
                break
        if "router_unreachable" in reasons:
            break
    assert "router_unreachable" in reasons
    service.wait_idle()


def test_a_replica_killed_while_serving_costs_only_started_streams(
    service: Service, pictures: PictureServer
) -> None:
    pids = replica_pids(service)
    victim, pid = next(iter(pids.items()))
    children = engine_children(pid)
    assert children, "the engine core is a child of its replica"

    def kill() -> None:
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = stream_all(service, many_turns(pictures, 12, 330), max_tokens=48)
    killer.join()
    for outcome in outcomes:
        ended_well = outcome["status"] == 200 and outcome["done"] and outcome["error"] is None
        started_on_victim = outcome["worker"] == victim and outcome["tokens"] > 0
        assert ended_well or started_on_victim, outcome
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, "a child of the killed replica lives on"
    service.wait_for(lambda: victim not in {row["worker"] for row in service.workers()})
    service.wait_idle(timeout_s=400)  # whole again, with another replica
    service.ask_exact(messages(QUESTION, system="After the fall. " * 30))


def test_a_dead_engine_ends_its_replica_and_requests_go_on(service: Service) -> None:
    service.wait_idle(timeout_s=120)
    pids = replica_pids(service)
    victim, pid = next(iter(pids.items()))
    cores = [p for p in engine_children(pid) if any(name in command_line(p) for name in CORES)]
    cores[0].kill()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: service.ask(messages(f"{n} {QUESTION}"), max_tokens=2), range(8)))
    assert all(answer.status == 200 for answer in answers)
    service.wait_for(lambda: not psutil.pid_exists(pid))
    service.wait_for(lambda: victim not in {row["worker"] for row in service.workers()})
    service.wait_idle(timeout_s=400)
