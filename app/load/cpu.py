"""Processor time by group of processes, children included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from app.load.errors import UsageError

__all__ = ["SIGHTLINE_PROCESSES", "CpuMeter", "ProcessGroup", "groups_by_match", "groups_by_pid"]

#: Until an actor's first method is called, its own name stands before its class's.
_NAMED = r"^ray::(?:\S+:)?"
#: Sightline's parts, by the names that Ray gives their processes; children belong to the first match.
SIGHTLINE_PROCESSES = {
    "ingress": _NAMED + r"ServeReplica:\S*:Ingress",
    "engine": _NAMED + r"ServeReplica:\S*:Engine",
    "router": _NAMED + r"ServeReplica:\S*:Router",
    "router actor": _NAMED + r"RouterActor",
    "proxy": _NAMED + r"Proxy|haproxy",
    "controller": _NAMED + r"ServeController",
    "raylet, gcs": r"raylet/raylet |gcs_server ",
}


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    name: str
    pids: tuple[int, ...]


def groups_by_pid(named: Mapping[str, Sequence[int]]) -> list[ProcessGroup]:
    """Raises UsageError for a process that is not there."""
    for name, pids in named.items():
        for pid in pids:
            if not psutil.pid_exists(pid):
                raise UsageError(f"--pid {name}={pid}: no such process on this machine")
    return [ProcessGroup(name, tuple(pids)) for name, pids in named.items()]


def groups_by_match(patterns: Mapping[str, str], within: int | None = None) -> list[ProcessGroup]:
    """By regular expressions on command lines; a process belongs to the first that matches.

    Groups that match nothing are left out. within: only that process and what descends from it.

    Raises:
        UsageError: no such process, or no such expression.
    """
    ours = {psutil.Process().pid, *(p.pid for p in psutil.Process().parents())}
    lines = {p.pid: _command(p) for p in _candidates(within) if p.pid not in ours}
    groups = []
    for name, pattern in patterns.items():
        try:
            found = [pid for pid, line in lines.items() if re.search(pattern, line)]
        except re.error as error:
            raise UsageError(f"--process-match {name}={pattern}: {error}") from None
        for pid in found:
            del lines[pid]
        if found:
            groups.append(ProcessGroup(name, tuple(found)))
    return groups


class CpuMeter:
    """User and system seconds of each group since it was made.

    A process belongs to the first group that names it, its children to its own group unless another names
    them. Children that ended are counted by their parents, so nothing is lost in between.
    """

    def __init__(self, groups: Sequence[ProcessGroup]) -> None:
        self._groups = groups
        self._named = {pid for group in groups for pid in group.pids}
        self._began = self._read()

    def seconds(self) -> dict[str, float]:
        """By group. A group whose processes all ended says what is left of it, 0 at least."""
        now = self._read()
        return {name: max(0.0, now[name] - before) for name, before in self._began.items()}

    def _read(self) -> dict[str, float]:
        seen: set[int] = set()
        return {group.name: sum(self._tree(pid, seen) for pid in group.pids) for group in self._groups}

    def _tree(self, pid: int, seen: set[int]) -> float:
        if pid in seen:
            return 0.0
        seen.add(pid)
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            children = process.children()
        except psutil.NoSuchProcess:
            return 0.0
        own: float = times.user + times.system + times.children_user + times.children_system
        return own + sum(self._tree(child.pid, seen) for child in children if child.pid not in self._named)


def _candidates(within: int | None) -> list[psutil.Process]:
    if within is None:
        return list(psutil.process_iter())
    try:
        root = psutil.Process(within)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise UsageError(f"--within {within}: no such process on this machine") from None


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""
