"""Lets SGLang start on a machine without a GPU: stand-ins for the GPU packages that it imports.

SGLang imports `triton` and `sgl_kernel` for the sake of their names, whatever the device; on a CPU without
AMX everything that is run is its native PyTorch code. Here both packages are modules in which every name
exists and raises `NotImplementedError` when it is *run*: no number is ever made up.

A .pth line loads this module at interpreter start, in the processes that SGLang spawns too. It does nothing
unless SGLANG_USE_CPU_ENGINE=1 is set, and a package that is really installed is always found before it.
"""

import functools
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGES = frozenset({"sgl_kernel", "triton"})
#: Left out: SGLang's watch over compiled kernels leaves when it does not find it.
_LEFT_OUT = "triton.knobs"
#: Operators that model files bind (but do not call) while they are imported. No others: SGLang asks
#: `hasattr(torch.ops.sgl_kernel, ...)` to find out what it can do.
_BOUND_AT_IMPORT = (
    "fused_gdn_gating_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
)


class _Absent:
    """A name of a package that is not here: it can be passed on and looked into, not run."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.__name__} needs a GPU; this SGLang runs on the CPU")

    def __getitem__(self, grid):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class _AbsentModule(ModuleType):
    # Above every version that SGLang asks for, so that it looks no further.
    __version__ = "99.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # Names of classes are classes: others ask `isinstance(x, JITFunction)` and derive from them.
        full = f"{self.__name__}.{name}"
        found = _absent_class(full) if name[0].isupper() else _Absent(full)
        setattr(self, name, found)
        return found


def _absent_class(name):
    def __init__(self, *args, **kwargs):
        raise NotImplementedError(f"{name} needs a GPU; this SGLang runs on the CPU")

    return type(name.rpartition(".")[2], (), {"__init__": __init__})


def _kernel(*args, **kwargs):
    """`@triton.jit`, `@triton.jit(...)`, `@triton.autotune(...)`: a kernel that can be defined, not run."""
    if len(args) == 1 and not kwargs and (callable(args[0]) or isinstance(args[0], _Absent)):
        return functools.update_wrapper(_Absent("a triton kernel"), args[0], updated=())
    return _kernel


class _Config:
    """`triton.Config`: made in lists at import, read by nobody."""

    def __init__(self, kwargs=None, **options):
        self.kwargs = kwargs or {}
        self.options = options


def _fill_triton(module):
    module.jit = module.autotune = module.heuristics = _kernel
    module.Config = _Config
    # Plain arithmetic that host code calls.
    module.cdiv = lambda a, b: -(-a // b)
    module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1


def _fill_operators():
    import torch

    for name in _BOUND_AT_IMPORT:
        setattr(torch.ops.sgl_kernel, name, _Absent(f"torch.ops.sgl_kernel.{name}"))


class _StandIns(MetaPathFinder, Loader):
    def find_spec(self, fullname, path=None, target=None):
        if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1" or fullname == _LEFT_OUT:
            return None
        if fullname.partition(".")[0] not in _PACKAGES:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        module = _AbsentModule(spec.name)
        module.__file__ = __file__
        return module

    def exec_module(self, module):
        if module.__name__ == "sgl_kernel":
            _fill_operators()
        elif module.__name__ == "triton":
            _fill_triton(module)
        elif module.__name__ == "triton.language":
            module.constexpr = lambda value: value


# Last, so that what is installed is found first.
sys.meta_path.append(_StandIns())
