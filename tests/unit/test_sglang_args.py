"""Arguments and sampling parameters for SGLang, made without SGLang."""

from __future__ import annotations

import json

import pytest

from deployments.config import EngineConfig
from deployments.engines.sglang import SglangEngine
from deployments.engines.sglang_args import (
    Unsupported,
    engine_args,
    engine_environment,
    event_source,
    known_args,
    publishes_events,
    sampling_params,
)
from deployments.protocol import EngineRequest, NotHeld, Sampling
from router.relay import EventSource
from sightline_types import DecisionId

SOURCE = EventSource("tcp://*:6000", "tcp://*:6001", "kv-events")
CONFIG = EngineConfig(model="m", engine="sglang")


def test_the_adapter_switches_both_publishers_on() -> None:
    args = engine_args(CONFIG, SOURCE)
    events = json.loads(args["kv_events_config"])
    assert events["publisher"] == "zmq"
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:6000", "tcp://*:6001")
    assert publishes_events(args)


def test_wildcards_are_reached_on_the_loopback() -> None:
    source = event_source(engine_args(CONFIG, SOURCE))
    assert source == EventSource("tcp://127.0.0.1:6000", "tcp://127.0.0.1:6001", "kv-events")


def test_a_page_has_16_tokens_where_nothing_else_is_said() -> None:
    assert engine_args(CONFIG, SOURCE)["page_size"] == 16
    assert engine_args(EngineConfig(model="m", block_size=64), SOURCE)["page_size"] == 64


def test_engine_args_win_under_sglangs_own_names() -> None:
    config = EngineConfig(model="m", max_model_len=9, engine_args={"page_size": 1, "context_length": 7})
    args = engine_args(config, SOURCE)
    assert (args["page_size"], args["context_length"]) == (1, 7)


def test_only_on_a_cpu_sglang_is_told_to_run_there() -> None:
    assert engine_environment(CONFIG)["SGLANG_USE_CPU_ENGINE"] == "1"
    assert engine_args(CONFIG, SOURCE)["device"] == "cpu"
    gpu = EngineConfig(model="m", accelerator="gpu", gpu_memory_utilization=0.4)
    assert engine_environment(gpu) == {}
    args = engine_args(gpu, SOURCE)
    assert "device" not in args and args["mem_fraction_static"] == 0.4


@pytest.mark.parametrize(
    "off",
    [
        {"kv_events_config": None},
        {"kv_events_config": '{"publisher": "null"}'},
        {"disable_radix_cache": True},
        {"speculative_algorithm": "EAGLE"},  # its pages are of token pairs
    ],
)
def test_an_engine_that_tells_nothing_comparable_is_noticed(off) -> None:
    assert not publishes_events(engine_args(EngineConfig(model="m", engine_args=off), SOURCE))


def test_an_argument_of_a_later_release_is_left_out_unless_it_was_given() -> None:
    args = engine_args(EngineConfig(model="m", enable_multimodal=True), SOURCE)
    name = "mm_preprocess_cache_size_mb"
    assert name in args
    assert name in known_args(args, {}, args)
    assert known_args(args, {}, set(args) - {name}) == {k: v for k, v in args.items() if k != name}
    assert name in known_args(args, {name: 1}, set(args) - {name}), "SGLang then says so itself"


def test_ranks_of_one_engine_are_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match=r"data_parallel_size=2 .* num_workers"):
        engine_args(EngineConfig(model="m", engine="sglang", data_parallel_size=2), SOURCE)


def test_data_parallelism_inside_one_engine_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match="num_workers"):
        engine_args(EngineConfig(model="m", engine_args={"dp_size": 2}), SOURCE)


def test_tensor_parallelism_across_nodes_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match="gpus_per_node"):
        engine_args(EngineConfig(model="m", tensor_parallel_size=16, executor="ray"), SOURCE)


def test_every_sampling_parameter_goes_by_sglangs_name() -> None:
    sampling = Sampling(
        max_tokens=5, min_tokens=2, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1,
        presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, seed=3, stop=("x",),
        stop_token_ids=(4,), include_stop_str_in_output=True, ignore_eos=True,
        skip_special_tokens=False, logit_bias=((9, -1.5),),
    )  # fmt: skip
    assert sampling_params(sampling, is_deterministic=True) == {
        "max_new_tokens": 5, "min_new_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "sampling_seed": 3,
        "stop": ["x"], "stop_token_ids": [4], "no_stop_trim": True, "ignore_eos": True,
        "skip_special_tokens": False, "logit_bias": {"9": -1.5},
    }  # fmt: skip


def test_what_is_not_asked_is_left_to_sglang_but_not_its_short_answer() -> None:
    params = sampling_params(Sampling(), is_deterministic=False)
    assert "temperature" not in params
    assert params["max_new_tokens"] is None, "SGLang's own default is 128 tokens"


@pytest.mark.parametrize(("ours", "theirs"), [(0, -1), (-1, -1), (5, 5)])
def test_top_k_of_all_tokens_is_spelled_as_sglang_spells_it(ours, theirs) -> None:
    assert sampling_params(Sampling(top_k=ours), is_deterministic=False)["top_k"] == theirs


def test_a_seed_that_sglang_would_ignore_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match=r"seed=3.*SGLang.*enable_deterministic_inference"):
        sampling_params(Sampling(seed=3), is_deterministic=False)


async def test_a_picture_that_is_named_only_is_asked_for_instead_of_being_refused() -> None:
    """The ingress then sends its bytes, or says that this engine keeps none."""
    engine = SglangEngine.__new__(SglangEngine)
    request = EngineRequest(DecisionId("0" * 16), (1,), Sampling())
    assert [message async for message in engine.generate(request, [None])] == [NotHeld(keeps_media=False)]
