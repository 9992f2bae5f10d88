"""How long a step takes: a model of a few numbers, all milliseconds.

    step = max(prefill_base if it prefills, decode_base if it decodes)
         + prefill_per_token * tokens + prefill_per_token_context * sum over these tokens of their context
         + decode_per_request * requests + decode_per_context_token * sum of their contexts
         + encode_base * items + encode_per_token * tokens + encode_per_token2 * sum of squared tokens
         + transfer_per_token * tokens loaded from the lower tier

A prefill and a decode in one step share the reading of the weights, which is what the bases mostly are;
hence their maximum, not their sum.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from simulation.sequence import StepWork

__all__ = ["Profile"]


class Profile(BaseModel):
    """The time of one model on one kind of hardware. The default takes no time at all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field("custom", description="What it is called in reports.")
    source: str = Field("", description="Where its numbers come from, and which are estimates.")
    prefill_base_ms: float = Field(0.0, ge=0, description="Milliseconds of each step that prefills.")
    prefill_ms_per_token: float = Field(0.0, ge=0, description="Milliseconds per prompt token computed.")
    prefill_ms_per_token_context: float = Field(
        0.0,
        ge=0,
        description="Milliseconds per prompt token computed and token that it attends to: attention.",
    )
    decode_base_ms: float = Field(0.0, ge=0, description="Milliseconds of each step that decodes.")
    decode_ms_per_request: float = Field(0.0, ge=0, description="Milliseconds per request that decodes.")
    decode_ms_per_context_token: float = Field(
        0.0, ge=0, description="Milliseconds per token of KV that the decoding requests read."
    )
    encode_base_ms: float = Field(0.0, ge=0, description="Milliseconds per media item encoded.")
    encode_ms_per_token: float = Field(0.0, ge=0, description="Milliseconds per encoder token.")
    encode_ms_per_token2: float = Field(
        0.0, ge=0, description="Milliseconds per squared encoder token of one item: the encoder's attention."
    )
    transfer_ms_per_token: float = Field(
        0.0, ge=0, description="Milliseconds per token of KV that is loaded from the lower tier."
    )

    def step_ms(self, work: StepWork) -> float:
        """Milliseconds that one step takes."""
        elapsed = self._prefill_ms(work) + self._decode_ms(work)
        if work.prefill_tokens and work.decode_requests:
            elapsed -= min(self.prefill_base_ms, self.decode_base_ms)
        if work.encoder_items:
            elapsed += self._encode_ms(work)
        return elapsed + self.transfer_ms_per_token * work.loaded_tokens

    def _prefill_ms(self, work: StepWork) -> float:
        if not work.prefill_tokens:
            return 0.0
        linear = self.prefill_ms_per_token * work.prefill_tokens
        return self.prefill_base_ms + linear + self.prefill_ms_per_token_context * work.prefill_context

    def _decode_ms(self, work: StepWork) -> float:
        if not work.decode_requests:
            return 0.0
        linear = self.decode_ms_per_request * work.decode_requests
        return self.decode_base_ms + linear + self.decode_ms_per_context_token * work.decode_context

    def _encode_ms(self, work: StepWork) -> float:
        linear = self.encode_base_ms * work.encoder_items + self.encode_ms_per_token * work.encoder_tokens
        return linear + self.encode_ms_per_token2 * work.encoder_squares
