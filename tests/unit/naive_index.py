"""The oracle of the block index: plain sets, and every question answered by looking at everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from sightline_types import DecisionId, Tier, WorkerId

GPU = Tier()


@dataclass
class NaiveIndex:
    """held: keys by worker and tier. expected: by worker and owner, which keys, and until when."""

    held: dict[WorkerId, dict[Tier, set[int]]] = field(default_factory=dict)
    expected: dict[WorkerId, dict[DecisionId, tuple[list[int], float]]] = field(default_factory=dict)

    def add(self, worker: WorkerId) -> None:
        self.held.setdefault(worker, {})
        self.expected.setdefault(worker, {})

    def apply(self, worker: WorkerId, tier: Tier, stored: set[int], removed: set[int]) -> None:
        self.add(worker)
        keys = self.held[worker].setdefault(tier, set())
        keys |= stored
        keys -= removed

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
        self.expected[worker][owner] = keys, expires_at

    def drop_expected(self, owner: DecisionId) -> None:
        for expected in self.expected.values():
            expected.pop(owner, None)

    def num_expected(self, worker: WorkerId) -> int:
        expected = self.expected.get(worker, {}).values()
        return len({tuple(keys[: end + 1]) for keys, _ in expected for end in range(len(keys))})

    def drop_expected_of(self, worker: WorkerId) -> None:
        if worker in self.expected:
            self.expected[worker] = {}

    def sweep(self, now: float) -> None:
        for expected in self.expected.values():
            for owner in [o for o, (_, expires_at) in expected.items() if expires_at <= now]:
                del expected[owner]

    def num_blocks(self, worker: WorkerId, tier: Tier = GPU) -> int:
        return len(self.held.get(worker, {}).get(tier, ()))

    def leading(self, keys: list[int]) -> dict[WorkerId, tuple[int, int]]:
        answer = {}
        for worker in self.held:
            held = self.held[worker].get(GPU, set())
            reach = max((_common(keys, own) for own, _ in self.expected[worker].values()), default=0)
            answer[worker] = (_prefix(keys, held), _prefix(keys, held | set(keys[:reach])))
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


def _common(keys: list[int], others: list[int]) -> int:
    pairs = list(zip(keys, others, strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
