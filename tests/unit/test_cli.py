from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from app.cli import main
from app.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("single_gpu", "sglang", "simulated_fleet")
SHIPPED = ["serve_config.yaml", *(f"configs/{name}.yaml" for name in OTHERS)]


def write(folder: Path, args: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(f"applications:\n  - import_path: app.build:build\n    args: {args}\n")
    return str(path)


def rows(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[3:]}


def test_bare_it_says_what_it_can_do(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("config", "demo", "tiny-model"))


def test_config_prints_values_and_origins(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_MODEL", "some/model")
    assert main(["config", "--accelerator", "cpu", "--config", write(tmp_path, "{num_workers: 3}")]) == 0
    found = rows(capsys.readouterr().out)
    assert found["model"] == ["some/model", "SIGHTLINE_MODEL"]
    assert found["num_workers"] == ["3", "file"]
    assert found["single_gpu"] == ["false", "default"]


@pytest.mark.parametrize(
    ("args", "said"),
    [("{num_worker: 3}", "did you mean 'num_workers'"), ("{num_workers: 0}", "num_workers: 0")],
)
def test_config_refuses_a_bad_file_in_one_line(tmp_path, capsys, args, said):
    path = write(tmp_path, args)
    assert main(["config", "--config", path]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"sightline: {path}: ") and said in printed.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [", "not YAML"),
        ("- 1", "applications"),
        ("applications: []", "app.build:build"),
        (None, "cannot be read"),
    ],
)
def test_config_says_what_is_wrong_with_a_file_that_is_not_ours(tmp_path, capsys, content, said):
    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_text(content)
    assert main(["config", "--config", str(path)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_valid_for_serve_and_for_us(name):
    from ray.serve.schema import ServeDeploySchema

    document = yaml.safe_load((ROOT / name).read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert (schema.applications[0].name, schema.applications[0].route_prefix) == ("sightline", "/")
    assert load_settings(schema.applications[0].args, {}).num_workers >= 2


def test_the_shipped_file_serves_images():
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    assert load_settings(document["applications"][0]["args"], {}).enable_multimodal


def test_an_unknown_tiny_model_is_answered_with_those_there_are(tmp_path, capsys):
    assert main(["tiny-model", "llava", "--out", str(tmp_path)]) == 1
    assert "qwen3_vl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_model_s_folder_is_printed(tmp_path, capsys):
    assert main(["tiny-model", "qwen2_vl", "--out", str(tmp_path), "--seed", "3"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.parent == tmp_path and (folder / "config.json").is_file()


def test_a_demo_of_a_file_that_is_not_there_names_it(tmp_path, capsys):
    path = tmp_path / "none.yaml"
    assert main(["demo", "--config", str(path)]) == 1
    assert f"{path}: cannot be read" in capsys.readouterr().err


def test_a_reader_that_has_gone_is_no_crash():
    reading, writing = os.pipe()
    os.close(reading)
    script = "import app.cli as c, sys; c._main = lambda words: print('x' * 99); sys.exit(c.main([]))"
    command = [sys.executable, "-c", script]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
