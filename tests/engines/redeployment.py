"""New code for every deployment of a running application, while its clients go on asking."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import app.build
from tests.engines.faulty_engine import Faults, FaultyEngine
from tests.engines.service import QUESTION, Service, deploy, messages

CLIENTS = 2


@dataclass(slots=True)
class Redeployment:
    """What the clients saw of it."""

    served: int = 0
    failures: list[str] = field(default_factory=list)


def redeploy_under_load(service: Service, args: dict[str, Any]) -> Redeployment:
    """Old replicas end what they began, and new ones take over, whose network can be made to fail."""
    service.wait_idle(timeout_s=400)
    old = {row["worker"] for row in service.workers()}

    def all_are_new() -> bool:
        now = {row["worker"] for row in service.workers()}
        return len(now) == len(old) and not now & old

    with _clients(service) as seen:
        deploy_faulty(args, service.url).close()
        service.wait_for(all_are_new, 600)
        time.sleep(2)
    return seen


def deploy_faulty(args: dict[str, Any], url: str) -> Service:
    """With a network that nothing is wrong with at first."""
    Faults().plan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.build, "Engine", FaultyEngine)
        return deploy(args, url)


@contextmanager
def _clients(service: Service) -> Iterator[Redeployment]:
    """Each asks one request after the other until the end of the block."""
    seen, stop = Redeployment(), threading.Event()

    def run(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=180) as client:
            while not stop.is_set():
                body = service.request(messages(f"{number} {seen.served} {QUESTION}"), max_tokens=8)
                try:
                    response = client.post("/v1/chat/completions", json=body)
                    if response.status_code != 200:
                        seen.failures.append(response.text)
                except httpx.HTTPError as error:
                    seen.failures.append(repr(error))
                seen.served += 1
                time.sleep(0.2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
