from __future__ import annotations

import pytest

from app.settings import Settings, SettingsError, explain, load_settings, variables


def refusal(args: dict, environ: dict | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(args, environ or {})
    return str(caught.value)


def origins(args: dict, environ: dict, accelerator: str | None = None) -> dict:
    return {o.name: (o.value, o.origin) for o in explain(args, environ, accelerator)}


def test_without_args_the_documented_defaults_hold():
    settings = load_settings(None, {})
    assert settings == Settings()
    assert (settings.num_workers, settings.enable_multimodal, settings.block_size) == (2, False, None)
    assert settings.model == "Qwen/Qwen3-VL-2B-Instruct"


def test_every_setting_is_described():
    sections = [Settings, *(type(getattr(Settings(), name)) for name in ("media", "router", "simulation"))]
    assert [n for s in sections for n, f in s.model_fields.items() if not f.description] == []


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        ({"num_worker": 3}, "num_workers"),
        ({"engine_arg": {}}, "engine_args"),
        ({"router": {"polcy": "cost"}}, "router.policy"),
        ({"enable_multimodal": True, "media": {"identiy": "url"}}, "media.identity"),
        ({"decision_budget_ms": 3}, "router.decision_budget_ms"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(args, meant):
    assert f"did you mean {meant!r}" in refusal(args)


def test_an_unknown_setting_that_resembles_none_is_answered_with_those_there_are():
    assert "num_workers" in refusal({"zzzz": 1})


def test_a_value_out_of_range_is_named_with_its_limit():
    message = refusal({"num_workers": 0})
    assert "num_workers: 0" in message and "greater than or equal to 1" in message


def test_a_variable_wins_over_the_file():
    settings = load_settings(
        {"model": "a", "num_workers": 2}, {"SIGHTLINE_MODEL": "b", "SIGHTLINE_NUM_WORKERS": "5"}
    )
    assert (settings.model, settings.num_workers) == ("b", 5)


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("SIGHTLINE_BLOCK_SIZE", "64", "block_size", 64),
        ("SIGHTLINE_GPU_MEMORY_UTILIZATION", "0.4", "gpu_memory_utilization", 0.4),
        ("SIGHTLINE_SINGLE_GPU", "1", "single_gpu", True),
        ("SIGHTLINE_ACCELERATOR", "cpu", "accelerator", "cpu"),
        ("SIGHTLINE_LOG", "info,sightline.router=debug", "log", "info,sightline.router=debug"),
        ("SIGHTLINE_KV_EVENTS_PORT_BASE", "5600", "kv_events_port_base", 5600),
    ],
)
def test_a_variable_is_read_as_its_setting_s_type(variable, text, name, value):
    assert getattr(load_settings({}, {variable: text}), name) == value


def test_every_single_valued_setting_has_a_variable():
    names = set(variables().values())
    assert set(Settings.model_fields) - names == {"media", "video", "router", "simulation"}


def test_the_simulated_engine_s_settings_need_the_simulated_engine():
    assert "`simulation` has settings but engine is vllm" in refusal({"simulation": {"num_blocks": 9}})
    settings = load_settings({"engine": "simulated", "simulation": {"num_blocks": 9}}, {})
    assert settings.simulation.num_blocks == 9


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({"engine_args": {"max_num_seqs": 4}}, "stands under `simulation`"),
        ({"simulation": {"profile": "abacus"}}, "known: instant"),
        ({"simulation": {"num_block": 9}}, "did you mean 'simulation.num_blocks'"),
    ],
)
def test_what_a_simulated_engine_cannot_have_is_refused_by_name(args, word):
    assert word in refusal({"engine": "simulated"} | args)


def test_a_wrong_value_of_a_profile_is_said_once():
    said = refusal({"engine": "simulated", "simulation": {"profile": {"decode_bas_ms": 2}}})
    assert said.count("\n") == 0
    assert "decode_bas_ms" in said


def test_an_empty_variable_changes_nothing():
    assert load_settings({"num_workers": 3}, {"SIGHTLINE_NUM_WORKERS": ""}).num_workers == 3


def test_a_wrong_variable_is_named_with_its_value_and_what_is_allowed():
    message = refusal({}, {"SIGHTLINE_ACCELERATOR": "tpu"})
    assert "SIGHTLINE_ACCELERATOR='tpu'" in message and "'auto', 'gpu' or 'cpu'" in message


def test_a_misspelled_variable_is_refused_but_a_stranger_s_is_not():
    assert "did you mean SIGHTLINE_MODEL?" in refusal({}, {"SIGHTLINE_MODLE": "x"})
    load_settings({}, {"SIGHTLINE_DASHBOARD_TITLE": "x", "SIGHTLINE_CACHE": "/tmp"})


def test_engine_arguments_of_the_variable_are_added_and_win_key_by_key():
    args = {"engine_args": {"max_num_seqs": 4, "seed": 1}}
    settings = load_settings(args, {"SIGHTLINE_ENGINE_ARGS": "--max-num-seqs 8 --enforce-eager"})
    assert settings.engine_args == {"max_num_seqs": 8, "seed": 1, "enforce_eager": True}


def test_engine_arguments_that_are_none_are_refused_with_both_forms():
    message = refusal({}, {"SIGHTLINE_ENGINE_ARGS": "max_num_seqs 8"})
    assert "SIGHTLINE_ENGINE_ARGS='max_num_seqs 8'" in message and "--max-num-seqs" in message


def test_media_settings_without_multimodal_are_refused():
    assert "enable_multimodal is false" in refusal({"media": {"identity": "content"}})
    assert "enable_multimodal is false" in refusal({}, {"SIGHTLINE_ALLOW_PRIVATE_MEDIA": "1"})


def test_ranks_are_refused_where_the_engine_or_the_gpu_has_no_room_for_them():
    assert "raise num_workers" in refusal({"engine": "sglang", "data_parallel_size": 2})
    assert "data_parallel_size is 2" in refusal({"single_gpu": True, "data_parallel_size": 2})


def test_a_media_section_without_entries_is_no_setting():
    assert load_settings({"media": None, "router": {}}, {}) == Settings()


def test_private_media_is_allowed_by_its_variable():
    settings = load_settings(
        {"enable_multimodal": True, "media": {"identity": "bytes"}}, {"SIGHTLINE_ALLOW_PRIVATE_MEDIA": "1"}
    )
    assert settings.media.allow_private_addresses
    assert settings.media.identity == "bytes"


def test_sglang_has_no_renderer():
    args = {"engine": "sglang", "enable_multimodal": True, "renderer_replicas": 1}
    with pytest.raises(SettingsError, match="the renderer is vLLM's, and engine is sglang"):
        load_settings(args, {})


@pytest.mark.parametrize("accelerator", ["gpu", "cpu"])
def test_a_page_of_sglang_has_16_tokens_unless_given(accelerator):
    assert Settings(engine="sglang").effective(accelerator).block_size == 16
    assert Settings(engine="sglang", block_size=1).effective(accelerator).block_size == 1


def test_the_engines_environment_can_be_given_by_a_variable():
    settings = load_settings({}, {"SIGHTLINE_ENGINE_RUNTIME_ENV": '{"py_executable": "/opt/py"}'})
    assert settings.engine_runtime_env == {"py_executable": "/opt/py"}


@pytest.mark.parametrize(("accelerator", "block_size"), [("gpu", 16), ("cpu", 32)])
def test_the_block_size_is_the_accelerator_s_unless_given(accelerator, block_size):
    assert Settings().effective(accelerator).block_size == block_size
    assert Settings(block_size=128).effective(accelerator).block_size == 128


def test_a_decision_may_take_longer_on_a_cpu_unless_it_was_given():
    assert Settings().effective("gpu").router.decision_budget_ms == 50
    assert Settings().effective("cpu").router.decision_budget_ms == 2000
    given = load_settings({"router": {"decision_budget_ms": 50}}, {})
    assert given.effective("cpu").router.decision_budget_ms == 50


@pytest.mark.parametrize("num_workers", [1, 2, 3, 6, 7])
def test_replicas_on_one_gpu_get_shares_that_fit_together(num_workers):
    settings = Settings(num_workers=num_workers, single_gpu=True).effective("gpu")
    if num_workers == 1:
        assert settings.gpus_per_replica is None
        return
    assert 0.99 < num_workers * settings.gpus_per_replica <= 1
    assert 0.85 < num_workers * settings.gpu_memory_utilization <= 0.9


def test_one_gpu_has_room_for_every_replica_that_autoscaling_may_add():
    assert Settings(num_workers=2, max_workers=4, single_gpu=True).effective("gpu").gpus_per_replica == 0.25


def test_a_fraction_of_a_gpu_brings_its_part_of_the_memory_unless_given():
    assert Settings(gpus_per_replica=0.5).effective("gpu").gpu_memory_utilization == 0.45
    given = Settings(gpus_per_replica=0.5, gpu_memory_utilization=0.3)
    assert given.effective("gpu").gpu_memory_utilization == 0.3


def test_whole_gpus_leave_the_memory_to_the_engine():
    settings = Settings(tensor_parallel_size=2).effective("gpu")
    assert (settings.gpus_per_replica, settings.gpu_memory_utilization) == (None, None)


def test_one_gpu_does_not_go_with_tensor_parallelism_or_a_share_of_ones_own():
    assert "tensor_parallel_size is 2" in refusal({"single_gpu": True, "tensor_parallel_size": 2})
    assert "gpus_per_replica" in refusal({"single_gpu": True, "gpus_per_replica": 0.5})


def test_each_origin_is_told():
    found = origins(
        {"num_workers": 3, "model": "a", "router": {"policy": "cost"}}, {"SIGHTLINE_MODEL": "b"}, "cpu"
    )
    assert found["model"] == ("b", "SIGHTLINE_MODEL")
    assert found["num_workers"] == (3, "file")
    assert found["router.policy"] == ("cost", "file")
    assert found["router.lease_s"][1] == "default"
    assert found["block_size"] == (32, "cpu")


def test_a_secret_is_masked():
    assert origins({"tenant_secret": "hush"}, {})["tenant_secret"] == ("***", "file")
    assert origins({}, {})["tenant_secret"] == (None, "default")
