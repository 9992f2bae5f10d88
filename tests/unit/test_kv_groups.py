"""Which prefix several cache groups accept, against a search that tries every length."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.engines.vllm_groups import kv_groups, unit_size
from router.contracts import ContractRefused, check_contract
from router.kv_groups import cached_tokens, is_predictable
from router.residency import Residency
from sightline_types import KeyScheme, KeySpec, KvGroup, Tier, WorkerContract, WorkerId, WorkerPush

FULL = KvGroup("full_attention", 4)
MAMBA = KvGroup("mamba", 4, index=1)
WINDOW = KvGroup("sliding_window", 4, window=9, index=2)
CONTRACT = WorkerContract("vllm", "0", 4, KeyScheme.VLLM, "m", 99)


def contract(*groups: KvGroup, **changes: object) -> WorkerContract:
    return replace(CONTRACT, kv_groups=groups, **changes)


def accepts(group: KvGroup, held: list[bool], tokens: int) -> bool:
    """What each kind's rule says in words; `held` in units of 4 tokens."""
    ends = list(range(group.block_size, tokens + 1, group.block_size))
    has = {end: held[end // 4 - 1] for end in ends}
    if tokens == 0:
        return True
    if group.kind == "mamba":
        return has[tokens]
    if group.kind == "sliding_window":
        first = max(0, tokens - (group.window - 1))
        return all(has[end] for end in ends if end > first)
    return all(has.values())


@settings(deadline=None, max_examples=300)
@given(
    groups=st.lists(
        st.sampled_from(
            [MAMBA, WINDOW, replace(WINDOW, block_size=8, index=3), replace(FULL, block_size=8, index=4)]
        ),
        unique=True,
    ),
    data=st.data(),
    cap=st.integers(0, 70),
)
def test_the_longest_length_that_every_group_accepts_is_found(groups, data, cap):
    groups = (FULL, *groups)
    held = [
        data.draw(st.lists(st.sampled_from([True, True, True, False]), min_size=16, max_size=16))
        for _ in groups
    ]
    alignment = math.lcm(*(group.block_size for group in groups))
    lengths = range(0, min(cap, 64) + 1, alignment)
    best = max(n for n in lengths if all(accepts(g, h, n) for g, h in zip(groups, held, strict=True)))
    assert cached_tokens(contract(*groups), [np.array(h) for h in held], cap) == best


def test_a_window_at_the_start_needs_only_what_there_is():
    held = np.array([True, True, False, False])
    assert cached_tokens(contract(replace(WINDOW, window=100)), [held], 16) == 8


def test_an_attention_chunk_needs_its_own_blocks_only():
    chunks = KvGroup("chunked_local_attention", 4, window=8, index=1)
    full, local = np.ones(4, bool), np.array([False, False, True, False])
    assert cached_tokens(contract(FULL, chunks), [full, local], 15) == 12


@pytest.mark.parametrize(
    ("groups", "changes", "known"),
    [
        ((KvGroup("full_attention"),), {"drops_last_matched_block": True}, True),
        ((FULL, MAMBA), {}, True),
        ((FULL, WINDOW), {}, True),
        ((FULL, WINDOW), {"drops_last_matched_block": True}, False),
        ((FULL, replace(MAMBA, block_size=8)), {}, False),
        ((FULL, replace(WINDOW, window=0)), {}, False),
        ((FULL, KvGroup("cross_attention", 4, index=1)), {}, False),
        ((KvGroup("full_attention", 8),), {}, False),
    ],
)
def test_what_is_not_known_to_be_the_engines_rule_is_not_predicted(groups, changes, known):
    assert is_predictable(contract(*groups, **changes)) is known


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ((FULL, replace(MAMBA, block_size=6)), "block_size=6 of its KV cache group 1"),
        ((FULL, replace(MAMBA, index=0)), "a number of its own"),
        ((KvGroup("full_attention", -4),), "block_size=-4"),
    ],
)
def test_groups_that_cannot_be_keyed_are_refused_with_the_value(groups, says):
    push = WorkerPush(WorkerId("a"), 1, 0, table=True, contract=contract(*groups))
    with pytest.raises(ContractRefused, match=says):
        check_contract(push)


def test_the_engines_own_numbers_are_kept_and_full_attention_comes_first():
    metadata = [
        {"group_idx": 0, "kind": "mamba", "block_size": 160, "sliding_window": None},
        {"group_idx": 1, "kind": "full_attention", "block_size": 160, "sliding_window": None},
        {"group_idx": 2, "kind": "sliding_window", "block_size": 320, "sliding_window": 512},
        {"group_idx": 3, "kind": "chunked_local_attention", "block_size": 160, "sliding_window": None},
    ]
    groups = kv_groups(metadata, attention_chunk=8192)
    assert [group.index for group in groups] == [1, 0, 2, 3]
    assert [group.window for group in groups] == [0, 0, 512, 8192]
    assert unit_size(groups) == 160


def test_a_state_is_known_by_what_another_group_tells_of_its_hash():
    from test_residency import apply, block, keys_of

    held = Residency(KeySpec(KeyScheme.VLLM, 4), groups=(replace(FULL, index=1), replace(MAMBA, index=0)))
    state = block(2, None) | {"token_ids": list(range(8)), "group_idx": 0}
    apply(held, state, block(1) | {"group_idx": 1}, block(2, 1) | {"group_idx": 1})
    table = keys_of(held.table())
    assert len(table[Tier(0)]) == 2 and table[Tier(1)] < table[Tier(0)]
