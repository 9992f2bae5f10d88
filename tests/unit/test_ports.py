"""Fixed ports for KV events never clash between replicas of one node."""

from __future__ import annotations

import socket

import pytest

from deployments.engines.ports import claim_ports

BASE = 28_640


def test_two_claims_take_different_ports() -> None:
    one, two = claim_ports(BASE), claim_ports(BASE)
    try:
        assert len({one.events, one.replay, two.events, two.replay}) == 4
    finally:
        one.lock.close()
        two.lock.close()


def test_a_port_that_somebody_else_listens_on_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", BASE + 100))
        taken.listen()
        claim = claim_ports(BASE + 100)
        assert BASE + 100 not in (claim.events, claim.replay)
        claim.lock.close()


def test_a_range_without_a_free_pair_says_which_setting_to_change() -> None:
    with pytest.raises(RuntimeError, match="kv_events_port_base"):
        claim_ports(65_535)
