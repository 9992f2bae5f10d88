"""Run random requests through a real vLLM engine on the CPU, step by step, and write down what it did.

A program of its own: `python -m tests.engines.recorded_engine MODEL COUNTS SEED OUT`. The engine core is in
this process, so the program decides before which step a request arrives or is aborted; vLLM's own scheduler,
block pool, encoder cache and model do the rest. COUNTS (JSON) says how many requests in which form:

    model  the model computes; scheduling is synchronous, as vLLM has it on CPUs
    sync   the same without the forward pass (`forwardless`)
    async  asynchronous scheduling, vLLM's default on GPUs, without the forward pass
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

IMAGE, VISION_START, VISION_END = 12, 9, 10  # of the tiny Qwen3-VL
FIRST_WORD, VOCABULARY = 40, 1000
TILE = 32  # pixels a side: one encoder token of Qwen3-VL
SIZES = {"block": 32, "blocks": 26, "model_len": 640, "seqs": 4, "batched": 192, "budget": 80, "encoder": 110}
PICTURES = [(4, 4), (4, 4), (6, 8), (2, 3), (8, 8), (5, 12), (4, 4), (3, 9), (1, 80)]
ACTIONS = {"arrive": 6, "together": 2, "step": 10, "abort": 1, "drain": 1, "clear": 0.3}


class Recorder:
    """One engine, and what was asked of it and what it did, in order."""

    def __init__(self, model: str, form: str) -> None:
        self._llm = _engine(model, form)
        self._core = self._llm.engine_core.engine_core
        self._scheduler = self._core.scheduler
        # vLLM makes both at least as large as the model's largest picture; here they must be scarce.
        self._scheduler.max_num_encoder_input_tokens = SIZES["budget"]
        self._scheduler.encoder_cache_manager = type(self._scheduler.encoder_cache_manager)(SIZES["encoder"])
        self._published: list[Any] = []
        self._scheduler.kv_event_publisher = self
        self._watch_updates()
        self.requests: dict[str, Any] = {}
        self.operations: list[list[Any]] = []

    def publish(self, batch: Any) -> None:
        """In the place of vLLM's event publisher."""
        self._published.extend(batch.events)

    def shutdown(self) -> None:
        """Part of the same interface."""

    def _watch_updates(self) -> None:
        update = self._scheduler.update_from_output

        def watched(scheduled: Any, output: Any) -> Any:
            self._scheduled = dict(scheduled.num_scheduled_tokens)
            self._encoded = {name: list(items) for name, items in scheduled.scheduled_encoder_inputs.items()}
            return update(scheduled, output)

        self._scheduler.update_from_output = watched

    def add(self, name: str, tokens: list[int], pictures: list[int], output_tokens: int, heat: float) -> None:
        from vllm import SamplingParams

        prompt: dict[str, Any] = {"prompt_token_ids": tokens}
        if output_tokens % 2:  # another key for the first block, and so for all
            prompt["cache_salt"] = "tenant"
        if pictures:
            prompt["multi_modal_data"] = {"image": [_picture(seed) for seed in pictures]}
            prompt["multi_modal_uuids"] = {"image": [f"{seed + 1:016x}" + "0" * 48 for seed in pictures]}
        # No seed: on CPUs vLLM 0.32 dies of a seeded request whose prompt is cut into chunks.
        params = SamplingParams(max_tokens=output_tokens, temperature=heat, ignore_eos=True, detokenize=False)
        self._llm.add_request(name, prompt, params)
        request = next(reversed(self._scheduler.requests.values()))
        self.requests[name] = request
        self.operations.append(["add", name])

    def abort(self, name: str) -> None:
        self._core.abort_requests([self.requests[name].request_id])
        self.operations.append(["abort", name])

    def clear(self) -> None:
        self.operations.append(["clear", bool(self._scheduler.reset_prefix_cache())])

    def step(self) -> bool:
        """Until a step with something in it has come back; False where nothing is left to do."""
        names = {request.request_id: name for name, request in self.requests.items()}
        self._scheduled = {}
        while self._core.scheduler.has_requests() or self._core.batch_queue:
            outputs, executed = self._core.step_fn()
            self._core.post_step(model_executed=executed)
            if self._scheduled:
                self.operations.append(["step", self._result((outputs or {}).get(0), names)])
                return True
        return False

    def _result(self, outputs: Any, names: dict[str, str]) -> dict[str, Any]:
        events = [msgspec.to_builtins(event) for event in self._published]
        self._published = []
        return {
            "events": events,
            "outputs": [
                [names[o.request_id], len(o.new_token_ids), o.finish_reason is not None, _cached(o)]
                for o in (outputs.outputs if outputs else ())
            ],
            "tokens": {names[key]: count for key, count in self._scheduled.items()},
            "encoded": {names[key]: items for key, items in self._encoded.items()},
            "load": [*self._scheduler.get_request_counts(), self._scheduler.get_kv_cache_usage()],
        }

    def unfinished(self) -> list[str]:
        alive = {request.request_id for request in self._scheduler.requests.values()}
        return [name for name, request in self.requests.items() if request.request_id in alive]

    def close(self) -> None:
        self._llm.engine_core.shutdown()


def _engine(model: str, form: str) -> Any:
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    args = EngineArgs(
        model=model,
        enforce_eager=True,
        block_size=SIZES["block"],
        num_gpu_blocks_override=SIZES["blocks"],
        kv_cache_memory_bytes=16 << 20,
        max_model_len=SIZES["model_len"],
        max_num_seqs=SIZES["seqs"],
        max_num_batched_tokens=SIZES["batched"],
        enable_prefix_caching=True,
        distributed_executor_backend="uni",
        limit_mm_per_prompt={"image": 4, "video": 0},
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    if form == "model":
        return LLMEngine.from_engine_args(args)
    from tests.engines.forwardless import Forwardless

    config = args.create_engine_config()
    config.scheduler_config.async_scheduling = form == "async"
    return LLMEngine(config, Forwardless, log_stats=True)


def _cached(output: Any) -> int | None:
    return None if output.prefill_stats is None else output.prefill_stats.num_cached_tokens


def _picture(seed: int) -> Any:
    from tests.engines.pictures import pixels

    width, height = PICTURES[seed]
    return pixels(seed, (width * TILE, height * TILE))


def described(request: Any) -> dict[str, Any]:
    """A request as the simulation is given it: its keys are the engine's own block hashes."""
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return {
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.max_tokens,
        "tokens": list(request.all_token_ids),
        "keys": [maybe_convert_block_hash(key) for key in request.block_hashes],
        "salt": request.cache_salt or "",
        "preemptions": request.num_preemptions,
        "media": [
            [f.mm_position.offset, f.mm_position.length, f.identifier, f.mm_position.get_num_embeds()]
            for f in request.mm_features
        ],
    }


class Conversations:
    """Prompts that share beginnings, come again, go on from an answer, and hold pictures."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._begins = [self._words(random_.choice([20, 64, 100, 200])) for _ in range(6)]
        self._past: list[tuple[list[int], list[int]]] = []

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]

    def next(self) -> tuple[list[int], list[int]]:
        """Token ids with one placeholder a picture, and the pictures."""
        if self._past and self._random.random() < 0.35:
            tokens, pictures = self._random.choice(self._past[-12:])
            if self._random.random() < 0.3:
                tokens = [*tokens, *self._words(self._random.randrange(1, 60))]
        else:
            tokens, pictures = self._fresh()
        if _expanded(tokens, pictures) > 500:
            tokens, pictures = self._fresh()
        self.remember(tokens, pictures)
        return tokens, pictures

    def remember(self, tokens: list[int], pictures: list[int]) -> None:
        self._past.append((tokens, pictures))

    def _fresh(self) -> tuple[list[int], list[int]]:
        tokens = list(self._random.choice(self._begins)) if self._random.random() < 0.7 else []
        pictures = self._random.choices(range(len(PICTURES)), k=self._random.choice([0, 0, 1, 1, 2, 3]))
        if pictures and self._random.random() < 0.3:
            pictures = [pictures[0], *pictures[1:2], pictures[0]]  # one output serves both places
        for _ in pictures:
            tokens += [VISION_START, IMAGE, VISION_END, *self._words(self._random.randrange(0, 40))]
        tokens += self._words(self._random.randrange(1, 80))
        if self._random.random() < 0.6:  # a repeat then computes its last block again, beside the cached one
            tokens += self._words(-_expanded(tokens, pictures) % SIZES["block"])
        return tokens, pictures


def _expanded(tokens: list[int], pictures: list[int]) -> int:
    """Tokens of the prompt as the engine has it."""
    return len(tokens) + sum(width * height - 1 for width, height in (PICTURES[p] for p in pictures))


def drive(recorder: Recorder, num_requests: int, seed: int) -> None:
    """Arrivals, steps, aborts and clearings in random order."""
    random_ = random.Random(seed)
    conversations = Conversations(random_)
    names = (f"r{i}" for i in itertools.count())
    actions = _actions(random_)
    while len(recorder.requests) < num_requests:
        action = next(actions)
        if action in ("arrive", "together"):
            for _ in range(1 if action == "arrive" else random_.randrange(2, 6)):
                tokens, pictures = conversations.next()
                outputs = random_.choice([1, 2, 3, 8, 20, 45, 70])
                recorder.add(next(names), tokens, pictures, outputs, random_.choice([0.0, 1.0]))
        elif action == "abort" and (alive := recorder.unfinished()):
            recorder.abort(random_.choice(alive))
        elif action == "clear":
            recorder.clear()
        elif action == "drain":
            while recorder.step():
                pass
        else:
            recorder.step()
        _go_on(recorder, conversations, random_)
    while recorder.step():
        pass


def _actions(random_: random.Random) -> Iterator[str]:
    while True:
        yield random_.choices(list(ACTIONS), weights=list(ACTIONS.values()))[0]


def _go_on(recorder: Recorder, conversations: Conversations, random_: random.Random) -> None:
    """Now and then a prompt holds the answer to an earlier one."""
    if random_.random() > 0.2 or not recorder.requests:
        return
    request = recorder.requests[random_.choice(list(recorder.requests)[-6:])]
    if request.is_finished() and not request.mm_features:
        conversations.remember(list(request.all_token_ids), [])


def main(model: str, counts: dict[str, int], seed: int, out: Path) -> None:
    recordings = []
    for form, num_requests in counts.items():
        recorder = Recorder(model, form)
        drive(recorder, num_requests, seed)
        requests = {name: described(request) for name, request in recorder.requests.items()}
        recorder.close()
        recordings.append({"form": form, "requests": requests, "operations": recorder.operations})
    out.write_text(json.dumps({"sizes": SIZES, "recordings": recordings}))


if __name__ == "__main__":
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
