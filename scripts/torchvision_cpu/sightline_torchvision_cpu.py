"""Lets the CUDA-built torchvision wheel import beside a CPU-only torch.

torchvision 0.28 registers meta kernels for `torchvision::nms` and `torchvision::qnms` at import. On a
machine without CUDA its C++ library does not load, so the operators have no schema and the
registration raises. Declaring the two schemas is enough: image processors never call them.

A .pth line loads this module at interpreter start; it does nothing until torchvision is imported.
"""

import sys
from importlib.abc import MetaPathFinder

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A library's registrations end with the object, so it is kept for the life of the process.
_libraries = []


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing itself; the first search for torchvision makes it declare the schemas and leave."""

    def find_spec(self, fullname, path, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare_schemas()
        return None


def _declare_schemas():
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)


sys.meta_path.insert(0, _BeforeTorchvision())
