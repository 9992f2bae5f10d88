"""Profiles by name: what published figures of the hardware and of the model give, by one formula.

No measurement is behind them. Each is a roofline: matrix work at a share of the peak rate, reading of weights
and KV at a share of the memory bandwidth. Expect them to be off by tens of percent, and more for mixtures of
experts; where a figure matters, measure and `fit` (simulation/fitting.py).

    prefill_ms_per_token          2 * active parameters / (peak * MATRIX_SHARE)
    prefill_ms_per_token_context  4 * layers * heads * head size / (peak * ATTENTION_SHARE)
    decode_base_ms                bytes of the weights that a step reads / (bandwidth * BANDWIDTH_SHARE)
    decode_ms_per_context_token   4 * layers * KV heads * head size bytes / (bandwidth * BANDWIDTH_SHARE)
    decode_ms_per_request         SAMPLING_MS_PER_REQUEST
    encode_ms_per_token           2 * encoder parameters * patches / (peak * ENCODER_SHARE)
    encode_ms_per_token2          4 * encoder layers * hidden size * patches^2 / (peak * ENCODER_SHARE)
    both bases and encode_base_ms STEP_MS more: scheduling, launches, sampling

The shares and the two times are our estimates, the same for all.
"""

from __future__ import annotations

from typing import NamedTuple

from simulation.profile import Profile

__all__ = ["INSTANT", "PRESETS", "preset"]

MATRIX_SHARE = 0.45
ATTENTION_SHARE = 0.35
BANDWIDTH_SHARE = 0.75
ENCODER_SHARE = 0.25
STEP_MS = 1.5
SAMPLING_MS_PER_REQUEST = 0.01
#: Requests that decode together when a mixture's step reads its experts.
EXPERTS_BATCH = 16
PATCHES_PER_TOKEN = 4
BYTES = 2  # bfloat16


class _Hardware(NamedTuple):
    """Memory, dense bfloat16 peak, memory bandwidth and host link, from the maker's data sheet."""

    sheet: str
    gigabytes: int
    tera_flops: float
    terabytes_per_s: float
    host_gigabytes_per_s: float


class _Model(NamedTuple):
    """From the model's card and config.json. Parameters in billions; experts: (all, used by one token)."""

    card: str
    total: float
    active: float
    layers: int
    heads: int
    kv_heads: int
    encoder_params: float
    encoder_layers: int
    encoder_hidden: int
    head_size: int = 128
    experts: tuple[int, int] | None = None


_HARDWARE = {
    "h100": _Hardware("NVIDIA H100 SXM data sheet", 80, 989.0, 3.35, 64.0),
    "h200": _Hardware("NVIDIA H200 SXM data sheet", 141, 989.0, 4.8, 64.0),
    "a100": _Hardware("NVIDIA A100 80GB SXM data sheet", 80, 312.0, 2.039, 32.0),
    "l40s": _Hardware("NVIDIA L40S data sheet", 48, 362.0, 0.864, 32.0),
    "l4": _Hardware("NVIDIA L4 data sheet", 24, 121.0, 0.3, 32.0),
}
_MODELS = {
    "qwen3-vl-2b": _Model("Qwen/Qwen3-VL-2B-Instruct", 2.1, 2.1, 28, 16, 8, 0.4, 24, 1024),
    "qwen3-vl-8b": _Model("Qwen/Qwen3-VL-8B-Instruct", 8.8, 8.2, 36, 32, 8, 0.58, 27, 1152),
    "qwen3-vl-30b-a3b": _Model(
        "Qwen/Qwen3-VL-30B-A3B-Instruct", 31.1, 3.3, 48, 32, 4, 0.54, 27, 1152, experts=(128, 8)
    ),
}

#: No time at all: what is left is everything else.
INSTANT = Profile(name="instant", source="nothing takes time")


def _read_params(model: _Model) -> float:
    """Billions of parameters that one decode step reads."""
    if model.experts is None:
        return model.active
    experts, used = model.experts
    # What is not in experts is read by every step: active = rest + share of the experts' parameters.
    share = used / experts
    rest = (model.active - share * model.total) / (1 - share)
    seen = 1 - (1 - share) ** EXPERTS_BATCH
    return rest + seen * (model.total - rest)


def _roofline(name: str, hardware: _Hardware, model: _Model) -> Profile:
    flops_per_ms = hardware.tera_flops * 1e9
    bytes_per_ms = hardware.terabytes_per_s * 1e9 * BANDWIDTH_SHARE
    attention = 4 * model.layers * model.heads * model.head_size
    kv_bytes = 2 * BYTES * model.layers * model.kv_heads * model.head_size
    encoder = 2 * model.encoder_params * 1e9 * PATCHES_PER_TOKEN
    encoder_attention = 4 * model.encoder_layers * model.encoder_hidden * PATCHES_PER_TOKEN**2
    return Profile(
        name=name,
        source=f"estimated by roofline from {hardware.sheet} and {model.card}",
        prefill_base_ms=STEP_MS,
        prefill_ms_per_token=2e9 * model.active / (flops_per_ms * MATRIX_SHARE),
        prefill_ms_per_token_context=attention / (flops_per_ms * ATTENTION_SHARE),
        decode_base_ms=STEP_MS + BYTES * 1e9 * _read_params(model) / bytes_per_ms,
        decode_ms_per_request=SAMPLING_MS_PER_REQUEST,
        decode_ms_per_context_token=kv_bytes / bytes_per_ms,
        encode_base_ms=STEP_MS,
        encode_ms_per_token=encoder / (flops_per_ms * ENCODER_SHARE),
        encode_ms_per_token2=encoder_attention / (flops_per_ms * ENCODER_SHARE),
        transfer_ms_per_token=kv_bytes / (hardware.host_gigabytes_per_s * 1e6 * BANDWIDTH_SHARE),
    )


#: Made up for workload W1: round robin on 8 workers saturates at 25 to 30 requests a second.
W1 = Profile(
    name="w1",
    source="made up: round robin saturates between 25 and 30 requests/s on workload W1 with 8 workers",
    prefill_base_ms=5.0,
    prefill_ms_per_token=0.045,
    prefill_ms_per_token_context=1.5e-6,
    decode_base_ms=5.0,
    decode_ms_per_request=0.03,
    decode_ms_per_context_token=1.5e-5,
    encode_base_ms=2.0,
    encode_ms_per_token=0.04,
)

PRESETS: dict[str, Profile] = {"instant": INSTANT, "w1": W1} | {
    f"{device}-{card}": _roofline(f"{device}-{card}", hardware, model)
    for device, hardware in _HARDWARE.items()
    for card, model in _MODELS.items()
    if BYTES * model.total < hardware.gigabytes
}


def preset(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ValueError: there is none; the message names those that there are.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"no preset is called {name!r}; known: {', '.join(PRESETS)}") from None
