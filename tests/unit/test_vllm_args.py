"""Arguments for vLLM, made without vLLM."""

from __future__ import annotations

import pytest

from deployments.config import EngineConfig
from deployments.engines.vllm_args import engine_args, engine_environment, publishes_events
from processors import VideoConfig


def test_the_adapter_switches_prefix_caching_and_both_publishers_on() -> None:
    args = engine_args(EngineConfig(model="m"))
    assert args["enable_prefix_caching"] is True
    assert args["kv_events_config"]["endpoint"] == "tcp://*:0"
    assert args["kv_events_config"]["replay_endpoint"] == "tcp://*:0"
    assert publishes_events(args)


def test_block_size_is_the_smallest_legal_value_of_each_accelerator() -> None:
    assert engine_args(EngineConfig(model="m", accelerator="cpu"))["block_size"] == 32
    assert engine_args(EngineConfig(model="m", accelerator="gpu"))["block_size"] == 16
    assert engine_args(EngineConfig(model="m", accelerator="gpu", block_size=64))["block_size"] == 64


def test_engine_args_win_under_the_engines_own_names() -> None:
    args = engine_args(EngineConfig(model="m", engine_args={"max_num_seqs": 3, "block_size": 96}))
    assert args["max_num_seqs"] == 3
    assert args["block_size"] == 96


def test_given_ports_are_bound_as_wildcards() -> None:
    args = engine_args(EngineConfig(model="m"), (6000, 6001))
    assert args["kv_events_config"]["endpoint"] == "tcp://*:6000"
    assert args["kv_events_config"]["replay_endpoint"] == "tcp://*:6001"


def test_events_turned_off_by_the_user_are_noticed() -> None:
    for off in (
        {"kv_events_config": None},
        {"kv_events_config": {"enable_kv_cache_events": False}},
        {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}},
        {"enable_prefix_caching": False},
    ):
        assert not publishes_events(engine_args(EngineConfig(model="m", engine_args=off))), off


def test_only_across_nodes_the_publishers_leave_the_loopback() -> None:
    assert engine_environment(EngineConfig(model="m"))["VLLM_HOST_IP"] == "127.0.0.1"
    assert "VLLM_HOST_IP" not in engine_environment(
        EngineConfig(model="m", accelerator="gpu", executor="ray")
    )


def test_ranks_are_set_by_the_setting_and_not_past_it() -> None:
    assert engine_args(EngineConfig(model="m", data_parallel_size=2))["data_parallel_size"] == 2
    for name, value in {
        "data_parallel_size": 2,
        "data_parallel_rank": 0,
        "data_parallel_backend": "ray",
    }.items():
        with pytest.raises(ValueError, match=f"engine_args.{name} .* set data_parallel_size"):
            engine_args(EngineConfig(model="m", engine_args={name: value}))


def test_no_room_is_kept_for_videos_that_are_not_served() -> None:
    config = EngineConfig("m", enable_multimodal=True, video=VideoConfig(decode="off"))
    assert engine_args(config)["limit_mm_per_prompt"]["video"] == 0
    assert "video" not in engine_args(EngineConfig("m", enable_multimodal=True))["limit_mm_per_prompt"]
