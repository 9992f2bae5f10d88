"""Runs of `sightline simulate`: one policy at one rate each, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context

from app.interrupts import interrupts_unheard
from app.progress import ProgressLine
from simulation.fleet import FleetRun, simulate
from simulation.prompts import Session
from simulation.scenario import Scenario

__all__ = ["Job", "results", "title"]


@dataclass(frozen=True, slots=True)
class Job:
    """One policy at one rate. rate: requests a second; None where the workload has its own."""

    rate: float | None
    policy: str
    sessions: tuple[Session, ...]
    scenario: Scenario


def results(jobs: Sequence[Job], at_a_time: int) -> Iterator[FleetRun]:
    """In the order of the jobs, each as soon as it is there; stderr says how far they have come.

    Raises:
        BrokenProcessPool: one of several processes was killed.
    """
    with ProgressLine(len(jobs)) as progress:
        if at_a_time <= 1 or len(jobs) == 1:
            for job in jobs:
                num_requests = sum(len(session.turns) for session in job.sessions)
                note = progress.begin(title(job.policy, job.rate), num_requests)
                yield simulate(job.sessions, job.scenario, job.policy, note)
                progress.end()
            return
        for job, result in zip(jobs, _side_by_side(jobs, at_a_time), strict=True):
            progress.begin(title(job.policy, job.rate), 0)
            yield result
            progress.end()


def title(policy: str, rate: float | None) -> str:
    """For people: what a run is of."""
    return policy if rate is None else f"{policy} at {rate:g}/s"


def _side_by_side(jobs: Sequence[Job], at_a_time: int) -> Iterator[FleetRun]:
    others = active_children()
    with ProcessPoolExecutor(at_a_time, mp_context=get_context("spawn")) as pool:
        with interrupts_unheard():
            found = pool.map(_run_job, jobs)
        try:
            yield from found
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                if process not in others:
                    process.terminate()
            raise


def _run_job(job: Job) -> FleetRun:
    return simulate(job.sessions, job.scenario, job.policy)
