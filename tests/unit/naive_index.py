"""The oracle of the block index: plain sets, and every question answered by looking at everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from sightline_types import DecisionId, Tier, WorkerId

GPU = Tier()


@dataclass
class NaiveIndex:
    """held: keys by worker and tier. expected: by worker and key, who waits for it until when."""

    held: dict[WorkerId, dict[Tier, set[int]]] = field(default_factory=dict)
    expected: dict[WorkerId, dict[int, dict[DecisionId, float]]] = field(default_factory=dict)

    def add(self, worker: WorkerId) -> None:
        self.held.setdefault(worker, {})
        self.expected.setdefault(worker, {})

    def apply(self, worker: WorkerId, tier: Tier, stored: set[int], removed: set[int]) -> None:
        self.add(worker)
        keys = self.held[worker].setdefault(tier, set())
        keys |= stored
        keys -= removed
        if tier == GPU:
            for key in stored:
                self.expected[worker].pop(key, None)

    def replace(self, worker: WorkerId, table: dict[Tier, set[int]]) -> None:
        self.add(worker)
        self.held[worker] = {}
        for tier, keys in table.items():
            self.apply(worker, tier, keys, set())

    def forget(self, worker: WorkerId) -> None:
        self.held.pop(worker, None)
        self.expected.pop(worker, None)

    def expect(self, worker: WorkerId, keys: list[int], expires_at: float, owner: DecisionId) -> None:
        self.drop_expected(owner)
        self.add(worker)
        for key in keys:
            if key not in self.held[worker].get(GPU, ()):
                self.expected[worker].setdefault(key, {})[owner] = expires_at

    def drop_expected(self, owner: DecisionId) -> None:
        for waiting in self.expected.values():
            for key in list(waiting):
                waiting[key].pop(owner, None)
                if not waiting[key]:
                    del waiting[key]

    def drop_expected_of(self, worker: WorkerId) -> None:
        if worker in self.expected:
            self.expected[worker] = {}

    def sweep(self, now: float) -> None:
        owners = {o: at for w in self.expected.values() for key in w.values() for o, at in key.items()}
        for owner, expires_at in owners.items():
            if expires_at <= now:
                self.drop_expected(owner)

    def num_blocks(self, worker: WorkerId, tier: Tier = GPU) -> int:
        return len(self.held.get(worker, {}).get(tier, ()))

    def leading(self, keys: list[int]) -> dict[WorkerId, tuple[int, int]]:
        answer = {}
        for worker in self.held:
            held = self.held[worker].get(GPU, set())
            coming = held | set(self.expected[worker])
            answer[worker] = (_prefix(keys, held), _prefix(keys, coming))
        return answer

    def lower(self, keys: list[int]) -> dict[WorkerId, int]:
        """Leading keys that each worker holds in any medium of the first group."""
        answer = {}
        for worker, tiers in self.held.items():
            anywhere = set().union(*(own for tier, own in tiers.items() if tier.group == GPU.group))
            answer[worker] = _prefix(keys, anywhere)
        return answer


def _prefix(keys: list[int], have: set[int]) -> int:
    for count, key in enumerate(keys):
        if key not in have:
            return count
    return len(keys)
