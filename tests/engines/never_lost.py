"""What the never-lost tests do to a running application, and the count that they trust."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import msgspec
import numpy as np
import psutil
import zmq

from sightline_types import Tier, WorkerId
from tests.engines import pictures as make
from tests.engines.service import BLOCK, QUESTION, Answer, Service, image_part, messages
from tests.unit.naive_residency import NaiveResidency

FAMILIES = 2


@dataclass(slots=True)
class Load:
    """What the load has seen: served requests by reason, and failures."""

    served: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Prompts:
    """Prompts of a few families that share beginnings, some with a picture."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = Random(seed)
        self._name = name
        self.asked: list[list[dict[str, Any]]] = []

    def fresh(self) -> list[dict[str, Any]]:
        """Shares not even a first block with another."""
        return self._note(messages(QUESTION, system=f"{self._unique()} " + "alone " * 60))

    def relative(self, family: int | None = None) -> list[dict[str, Any]]:
        """Shares its beginning with its family."""
        family = self._random.randrange(FAMILIES) if family is None else family
        parts: list[Any] = [self._random.choice(["", QUESTION, QUESTION * 2]) + self._unique()]
        if self._random.random() < 0.4:
            parts.insert(0, image_part(make.data_url(make.png(family))))
        return self._note(messages(*parts, system=f"{self._name} family {family}. " * 20))

    def again(self) -> list[dict[str, Any]]:
        return (
            self.asked[-1 - self._random.randrange(min(4, len(self.asked)))] if self.asked else self.fresh()
        )

    def any(self) -> list[dict[str, Any]]:
        return self._random.choice([self.fresh, self.relative, self.relative, self.again])()

    def _unique(self) -> str:
        return f"{self._name} {self._random.getrandbits(60):x}"

    def _note(self, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.asked.append(turns)
        return turns


@contextmanager
def under_load(service: Service, threads: int = 3) -> Iterator[Load]:
    """Requests from several clients until the end of the block; then the pool comes to rest."""
    load, stop = Load(), threading.Event()

    def run(number: int) -> None:
        prompts = Prompts(number, f"load {number}")
        with httpx.Client(base_url=service.url, timeout=120) as client:
            while not stop.is_set():
                body = service.request(prompts.any(), max_tokens=3)
                try:
                    response = client.post("/v1/chat/completions", json=body)
                except httpx.HTTPError as error:
                    load.failures.append(repr(error))
                    continue
                if response.status_code != 200:
                    load.failures.append(response.text)
                load.served[response.headers.get("x-sightline-reason", "?")] += 1
                time.sleep(0.02)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in running:
            thread.join()
    service.wait_idle(timeout_s=120)


def router_actor() -> Any:
    """The actor that the application uses now."""
    import ray
    from ray import serve

    address = serve.get_deployment_handle("Router", "sightline").address.remote().result(timeout_s=60)
    return ray.get_actor(address.name, namespace=address.namespace)


def kill_router_actor(service: Service) -> None:
    """kill -9, and wait until another one knows both workers."""
    before = service.wait_for(router_epoch)
    for process in psutil.Process().children(recursive=True):
        if "ray::RouterActor" in command_line(process):
            process.kill()
    service.wait_for(lambda: router_epoch() not in (None, before))
    service.wait_for(lambda: len(service.workers()) == 2)


def command_line(process: psutil.Process) -> str:
    """Its name and arguments; nothing where it has ended meanwhile."""
    try:
        return " ".join([process.name(), *process.cmdline()])
    except psutil.NoSuchProcess:
        return ""


def router_epoch() -> int | None:
    import ray

    try:
        return int(ray.get(router_actor().ping.remote(), timeout=30))
    except (ray.exceptions.RayError, ValueError, TimeoutError):
        return None


# The independent count


def event_sources(service: Service, count: int = 2) -> dict[str, dict[str, str]]:
    """Of so many replicas, by their first worker: where it publishes, and its process."""
    from ray import serve

    handle = serve.get_deployment_handle("Engine", service.app_name)
    found: dict[str, dict[str, str]] = {}

    def all_found() -> bool:
        # Many at once: Serve spreads them by load, and one after the other may all go to one replica.
        for response in [handle.event_source.remote() for _ in range(16)]:
            source = response.result(timeout_s=60)
            found[source["worker"]] = source
        return len(found) == count

    service.wait_for(all_found)
    return found


def recount(batches: list[bytes]) -> set[int]:
    """All that an engine holds, from its own raw events; no code of the relay's."""
    naive = NaiveResidency(BLOCK, counts=True)
    for payload in batches:
        for event in msgspec.msgpack.decode(payload)[1]:
            told = {"lora_name": None, "extra_keys": None, "parent_block_hash": None, "medium": "GPU"} | event
            match event["type"]:
                case "BlockStored":
                    naive.store(told)
                case "BlockRemoved":
                    naive.remove(told)
                case _:
                    naive.clear()
    return naive.table().get(Tier(), set())


def replay(endpoint: str) -> list[bytes]:
    """Every batch from the first on; asked again from where an answer has a hole."""
    batches: list[bytes] = []
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as dealer:
            dealer.set_hwm(0)
            dealer.rcvtimeo = 60_000
            dealer.connect(endpoint)
            while True:
                known = len(batches)
                dealer.send_multipart((b"", known.to_bytes(8, "big")))
                while (frames := dealer.recv_multipart())[-2] != b"\xff" * 8:
                    if int.from_bytes(frames[-2], "big") == len(batches):
                        batches.append(frames[-1])
                if len(batches) == known:
                    return batches
    finally:
        context.destroy(linger=0)


def indexed(worker: str) -> set[int]:
    import ray

    packed = ray.get(router_actor().resident_keys.remote(WorkerId.parse(worker)), timeout=60)
    return set(np.frombuffer(packed, "<u8").tolist())


def assert_recounted(service: Service) -> int:
    """The index is what an independent subscriber counts. Returns the blocks held."""
    service.wait_idle(timeout_s=120)
    published = {worker: replay(source["kv_replay"]) for worker, source in event_sources(service).items()}
    wait_followed(service, {worker: len(batches) - 1 for worker, batches in published.items()})
    total = 0
    for worker, batches in published.items():
        counted = recount(batches)
        held = indexed(worker)
        missing, surplus = len(counted - held), len(held - counted)
        assert held == counted, f"{worker}: {missing} blocks are missing, {surplus} are not held"
        total += len(counted)
    return total


def wait_followed(service: Service, last_seqs: dict[str, int]) -> None:
    """Until every relay has come to its engine's last batch.

    One that was lost on the way is followed by none that would tell: the relay finds it when it asks the
    engine, a second after the stream fell silent.
    """

    def followed() -> bool:
        return all(row["relay"]["engine_seq"] >= last_seqs[row["worker"]] for row in service.workers())

    service.wait_for(followed)
    service.wait_idle(timeout_s=120)


# Exactness afterwards


def outcome(answer: Answer) -> str:
    most = (answer.prompt_tokens - 1) // BLOCK * BLOCK
    return "none" if answer.cached == 0 else "all" if answer.cached == most else "part"


def assert_exact_again(service: Service, rounds: int, seed: int = 1) -> Counter[str]:
    """None, part and all cached, in turn, one at a time: foretold as the engine finds them."""
    prompts, seen = Prompts(seed, f"afterwards {seed}"), Counter[str]()
    for family in range(FAMILIES):
        service.ask_exact(prompts.relative(family))
    for _ in range(rounds):
        for ask in (prompts.fresh, prompts.relative, prompts.again):
            seen[outcome(service.ask_exact(ask()))] += 1
    assert all(seen[kind] >= rounds * 0.6 for kind in ("none", "part", "all")), seen
    return seen
