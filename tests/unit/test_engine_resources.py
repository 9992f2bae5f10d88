"""What `build` asks Ray for, by tensor parallel size and share of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.build import _engine_deployment, engine_config, engine_resources, with_model
from app.settings import Settings


def settings(**fields: Any) -> Settings:
    return Settings(**fields)


def test_on_cpu_a_replica_takes_part_of_a_core() -> None:
    resources = engine_resources(settings(tensor_parallel_size=4), "cpu")
    assert resources.options == {"ray_actor_options": {"num_cpus": 0.5}}
    assert resources.executor is None


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_eight_simulated_engines_fit_on_one_core_and_take_no_gpu(accelerator: Any) -> None:
    asked = engine_resources(settings(engine="simulated"), accelerator).options["ray_actor_options"]
    assert 8 * asked["num_cpus"] <= 0.5 and "num_gpus" not in asked


def test_a_tiny_model_is_made_where_the_application_is_built(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path))
    made = with_model(settings(engine="simulated", model="tiny:qwen2_vl"))
    assert Path(made.model).is_dir() and Path(made.model).is_relative_to(tmp_path)
    assert made.served_model_name == "tiny:qwen2_vl"
    with pytest.raises(ValueError, match="qwen2_vl"):
        with_model(settings(engine="simulated", model="tiny:gpt2"))


def test_one_gpu_is_held_by_the_replica() -> None:
    resources = engine_resources(settings(), "gpu")
    assert resources.options == {"ray_actor_options": {"num_cpus": 1, "num_gpus": 1}}
    assert resources.executor is None


def test_half_a_gpu_is_a_share() -> None:
    resources = engine_resources(settings(gpus_per_replica=0.5), "gpu")
    assert resources.options["ray_actor_options"]["num_gpus"] == 0.5


@pytest.mark.parametrize("size", [2, 8])
def test_within_a_node_the_replica_holds_all_gpus_and_vllm_starts_processes(size: int) -> None:
    resources = engine_resources(settings(tensor_parallel_size=size), "gpu")
    assert resources.options == {"ray_actor_options": {"num_cpus": 1, "num_gpus": size}}
    assert resources.executor == "mp"


def test_across_nodes_each_worker_has_a_bundle_beside_the_replica() -> None:
    resources = engine_resources(settings(tensor_parallel_size=16), "gpu")
    bundles = resources.options["placement_group_bundles"]
    assert bundles[0] == {"CPU": 1.0}
    assert bundles[1:] == [{"GPU": 1.0, "CPU": 1.0}] * 16
    assert "num_gpus" not in resources.options["ray_actor_options"]
    assert resources.executor == "ray"


def test_a_share_does_not_go_with_tensor_parallelism() -> None:
    with pytest.raises(ValueError, match="gpus_per_replica"):
        engine_resources(settings(tensor_parallel_size=2, gpus_per_replica=0.5), "gpu")
    with pytest.raises(ValueError, match="gpus_per_replica"):
        engine_resources(settings(data_parallel_size=2, gpus_per_replica=0.5), "gpu")


def test_ranks_multiply_the_gpus_of_a_replica_within_its_node() -> None:
    resources = engine_resources(settings(tensor_parallel_size=2, data_parallel_size=4), "gpu")
    assert resources.options == {"ray_actor_options": {"num_cpus": 1, "num_gpus": 8}}
    assert resources.executor == "mp"


def test_ranks_that_do_not_fit_in_a_node_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"needs 16 GPUs .* gpus_per_node is 8.* num_workers"):
        engine_resources(settings(tensor_parallel_size=4, data_parallel_size=4), "gpu")


def test_the_engine_is_told_its_ranks() -> None:
    assert engine_config(settings(data_parallel_size=3), "cpu").data_parallel_size == 3


def test_the_engine_is_told_the_executor() -> None:
    assert engine_config(settings(tensor_parallel_size=8), "gpu").executor == "mp"


def test_engine_replicas_run_in_the_environment_that_their_pool_names() -> None:
    environment = {"py_executable": "/opt/sglang/bin/python"}
    deployment = _engine_deployment(settings(engine="sglang", engine_runtime_env=environment), "cpu")
    assert deployment.ray_actor_options == {"num_cpus": 0.5, "runtime_env": environment}
    assert "runtime_env" not in _engine_deployment(settings(), "cpu").ray_actor_options
