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


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("dp_size", 2, "num_workers"),
        ("nnodes", 2, "within a node"),
        ("disaggregation_mode", "prefill", "prefills and decodes"),
        ("encoder_only", True, "leave it out"),
        ("language_only", True, "leave it out"),
        ("skip_tokenizer_init", True, "leave it out"),
        ("incremental_streaming_output", True, "leave it out"),
    ],
)
def test_an_engine_argument_that_would_break_answers_is_refused_with_the_way_out(name, value, way_out):
    with pytest.raises(Unsupported, match=f"engine_args.{name}={value!r}.*{way_out}"):
        engine_args(EngineConfig(model="m", engine_args={name: value}), SOURCE)


@pytest.mark.parametrize("given", [{"format": "dynamo", "topic": "t"}, '{"format": "dynamo", "topic": "t"}'])
def test_the_fields_of_a_given_event_configuration_win_one_by_one(given) -> None:
    args = engine_args(EngineConfig(model="m", engine_args={"kv_events_config": given}), SOURCE)
    assert json.loads(args["kv_events_config"]) == {
        "publisher": "zmq",
        "endpoint": SOURCE.endpoint,
        "replay_endpoint": SOURCE.replay_endpoint,
        "topic": "t",
        "format": "dynamo",
    }
    assert publishes_events(args)


@pytest.mark.parametrize("given", ["{", "[1]", 7, ["zmq"]])
def test_an_event_configuration_that_is_no_object_is_refused_by_its_value(given) -> None:
    with pytest.raises(Unsupported, match=r"kv_events_config=.*no JSON object"):
        engine_args(EngineConfig(model="m", engine_args={"kv_events_config": given}), SOURCE)


def test_tensor_parallelism_across_nodes_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match="gpus_per_node"):
        engine_args(EngineConfig(model="m", tensor_parallel_size=16, executor="ray"), SOURCE)


def test_every_sampling_parameter_goes_by_sglangs_name() -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1,
        presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, seed=3, stop=("x",),
        stop_token_ids=(4,), include_stop_str_in_output=True,
        skip_special_tokens=False, logit_bias=((9, -1.5),),
    )  # fmt: skip
    assert sampling_params(sampling, is_deterministic=True) == {
        "max_new_tokens": 5, "min_new_tokens": 0, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "sampling_seed": 3,
        "stop": ["x"], "stop_token_ids": [4], "no_stop_trim": True, "ignore_eos": False,
        "skip_special_tokens": False, "logit_bias": {"9": -1.5},
    }  # fmt: skip


def test_an_answer_of_a_certain_length_goes_by_sglangs_names() -> None:
    params = sampling_params(Sampling(min_tokens=2, ignore_eos=True), is_deterministic=False)
    assert (params["min_new_tokens"], params["ignore_eos"]) == (2, True)


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


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_k": 1}])
def test_a_seed_that_cannot_change_the_answer_is_taken(greedy) -> None:
    assert sampling_params(Sampling(seed=3, **greedy), is_deterministic=False)["max_new_tokens"] is None


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (Sampling(ignore_eos=True, stop_token_ids=(4,)), "stop_token_ids"),
        (Sampling(min_tokens=3, stop=("x",)), "min_tokens"),
    ],
)
def test_parameters_that_sglang_passes_over_together_are_refused(sampling: Sampling, name: str) -> None:
    with pytest.raises(Unsupported, match=rf"{name}: .*SGLang.* drop one"):
        sampling_params(sampling, is_deterministic=False)


async def test_a_picture_that_is_named_only_is_asked_for_instead_of_being_refused() -> None:
    """The ingress then sends its bytes, or says that this engine keeps none."""
    engine = SglangEngine.__new__(SglangEngine)
    request = EngineRequest(DecisionId("0" * 16), (1,), Sampling())
    assert [message async for message in engine.generate(request, [None])] == [NotHeld(keeps_media=False)]
