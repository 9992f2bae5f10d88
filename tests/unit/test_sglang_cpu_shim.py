"""The stand-ins for SGLang's GPU packages: there on a CPU that asks for them, never otherwise."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "scripts/sglang_cpu"
STANDS_FOR = ("triton", "sgl_kernel")


@pytest.fixture(autouse=True)
def shim(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shim of this checkout instead of the environment's, in a clean import system."""
    finders = [f for f in sys.meta_path if type(f).__module__ != "sightline_sglang_cpu"]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.syspath_prepend(str(SHIM))
    monkeypatch.delitem(sys.modules, "sightline_sglang_cpu", raising=False)
    importlib.import_module("sightline_sglang_cpu")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in STANDS_FOR]:
        del sys.modules[name]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")


def test_without_the_cpu_engine_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    assert importlib.util.find_spec("sgl_kernel") is None


def test_an_installed_package_is_found_before_its_stand_in(
    on_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sgl_kernel.py").write_text("installed = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("sgl_kernel").installed is True


def test_a_kernel_can_be_defined_but_not_run(on_cpu: None) -> None:
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")

    @triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
    @triton.jit
    def kernel(n: int, block: language.constexpr) -> None: ...  # type: ignore[name-defined]

    with pytest.raises(NotImplementedError, match="needs a GPU"):
        kernel[(1,)](3, 64)


def test_a_kernel_library_function_that_is_run_says_that_it_needs_a_gpu(on_cpu: None) -> None:
    kernels = importlib.import_module("sgl_kernel.kvcacheio")
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.kvcacheio\.transfer_kv needs a GPU"):
        kernels.transfer_kv()


def test_a_class_of_an_absent_package_has_no_instances(on_cpu: None) -> None:
    jit = importlib.import_module("triton.runtime.jit")
    assert not isinstance(3, jit.JITFunction)
    with pytest.raises(NotImplementedError):
        jit.JITFunction()


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (5, 8), (8, 8)])
def test_host_arithmetic_is_real(on_cpu: None, n: int, power: int) -> None:
    triton = importlib.import_module("triton")
    assert triton.next_power_of_2(n) == power
    assert triton.cdiv(n, 4) == -(-n // 4)
