"""vLLM as an engine: a process of its own, weights published in place, tokens in and out."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolwright.config import schema
from toolwright.engines import Completion, EngineMemory, PlannedModel, Sampling, registry
from toolwright.engines.delivery import WeightDelivery, checksum, compare, named_weights
from toolwright.engines.process import EngineProcess
from toolwright.engines.turns import check_prompt, turn_of
from toolwright.engines.vllm_worker import EXTENSION
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.models import huggingface
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.precision import autocast
from toolwright.models.tokenizer import Tokenizer

CACHE_AT_LEAST, CACHE_AT_MOST = 64 << 20, 4 << 30  # bytes of keys and values on a CPU
BLOCK = 128  # tokens; what vLLM rounds a sequence's cache up to on a CPU, at the most
PROBED = 16  # tokens that a stranger's architecture is tried on
AGREED = {torch.float32: 1e-2, torch.bfloat16: 0.2}  # how far apart its log-probabilities may be on average
SHARED_GPU = 0.4  # of a GPU's memory, beside a learner


@registry.register("vllm")
class VllmEngine:
    """The decoder is the learner's: each publication carries its weights over."""

    exact = False
    takes_weights = True

    @staticmethod
    def memory(model: PlannedModel, slots: int, used: int) -> EngineMemory:
        """Memory on a CPU. On a GPU, vLLM takes a fixed share (`SHARED_GPU`)."""
        if model.device.type != "cpu":
            return EngineMemory()
        weights, cache = model.dtype.itemsize * model.parameters, cache_bytes(model.shape, slots, model.dtype)
        return EngineMemory(parts={"vLLM's weights": weights, "vLLM's cache": cache})

    def __init__(
        self,
        config: schema.EngineConfig,
        *,
        decoder: Decoder,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        process: EngineProcess | None = None,
    ) -> None:
        """`process`: one that runs already, of a model of this shape; without it, one is started."""
        self.decoder, self.tokenizer, self.dtype = decoder, tokenizer, dtype
        self.timeout_s, self.context = config.timeout_s, decoder.shape.context
        self.weights_version = 0
        self.process = process or start(config, decoder, tokenizer, dtype)
        try:
            self.publish(0)
            if not decoder.fast:
                self._check_agreement()
        except InfrastructureFailure as error:  # nothing has begun that could be tried again elsewhere
            self.process.close()
            raise UserError(f"engine.name=vllm: {error}") from None
        except BaseException:
            self.process.close()
            raise

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        check_prompt(prompt, context=self.context, attempt=attempt)
        room = replace(sampling, max_tokens=min(sampling.max_tokens, self.context - len(prompt)))
        number, answer = self.process.ask("generate", list(prompt), room, sorted(self.tokenizer.end_tokens))
        try:
            found = await turn_of(
                attempt, asyncio.wrap_future(answer), who="the vllm engine", limit_s=self.timeout_s
            )
        finally:
            if not answer.done():
                self.process.tell("abort", number)
        tokens, log_probs, stop, version = found
        return Completion(tokens, log_probs, self.tokenizer.decode(tokens), stop, version)

    def release(self, attempt: str) -> None:
        """vLLM keeps what it computed by its content, and lets the oldest go by itself."""

    def rest(self) -> None:
        """Free the GPU's memory for the learner until the next publication."""
        if self.decoder.device.type == "cuda":
            self.process.result("rest")

    def publish(self, version: int) -> None:
        weights = named_weights(self.decoder, self.dtype)
        with WeightDelivery(weights) as delivery:
            sent = checksum(weights)
            answers = self.process.result("load", delivery.note, version)
        compare(self.process.who, version, sent=sent, answers=answers)
        self.weights_version = version

    async def close(self) -> None:
        self.process.close()

    def _check_agreement(self) -> None:
        """Compare log-probabilities of a few tokens. For an architecture that is not ours, vLLM may name
        weights differently, or keep old ones where no checksum looks."""
        vocab = self.decoder.shape.vocab
        prompt = [vocab * (place + 1) // (PROBED + 1) for place in range(min(PROBED, self.context // 2))]
        sampling = Sampling(max_tokens=len(prompt), seed=0)
        said, theirs, *_ = self.process.result("generate", prompt, sampling, [])
        attend = PackedAttention([len(prompt) + len(said)], self.decoder.device)
        tokens = torch.tensor([*prompt, *said], device=self.decoder.device)
        with torch.no_grad(), autocast(self.decoder.device, self.dtype):
            logits = self.decoder.head(self.decoder(tokens, attend.positions, attend))
        ours = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, tokens[len(prompt) :, None])[:, 0]
        gap = float((ours.cpu() - torch.tensor(theirs)).abs().mean())
        if gap > AGREED[self.dtype]:
            raise UserError(
                f"engine.name=vllm: vLLM's {self.decoder.shape.family!r} differs from the learner: its "
                f"log-probabilities are {gap:.3g} apart on average; use engine=native"
            )


def start(
    config: schema.EngineConfig, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
) -> EngineProcess:
    """A process that has the model's shape, and waits for its weights."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "engine.name=vllm: the package vllm is not installed; docs/engines.md explains how to install it "
            "on a GPU or a CPU, and engine=native needs no other package"
        )
    folder = Path(tempfile.mkdtemp(prefix="toolwright-vllm-"))
    tokenizer.save(folder)
    (folder / "config.json").write_text(json.dumps(huggingface.config_of(decoder)))
    arguments = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "load_format": "dummy",  # the first publication brings the weights
        "dtype": str(dtype).removeprefix("torch."),
        "max_model_len": decoder.shape.context,
        "max_num_seqs": config.slots,
        "tensor_parallel_size": config.tensor_parallel_size,
        "generation_config": "vllm",
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
        **_of_device(config, decoder, dtype),
        **config.params,
    }
    settings = {"arguments": arguments, "environment": _environment()}
    who, module = "the vllm engine", "toolwright.engines.vllm_main"
    try:
        return EngineProcess(who, module, settings, limit_s=config.timeout_s, folder=folder)
    except InfrastructureFailure as error:  # nothing has begun that could be tried again elsewhere
        raise UserError(f"engine.name=vllm: {error}") from None


def _of_device(config: schema.EngineConfig, decoder: Decoder, dtype: torch.dtype) -> dict[str, Any]:
    if decoder.device.type == "cuda":
        return {"enable_sleep_mode": True, "gpu_memory_utilization": SHARED_GPU}
    # Compiling would take longer than most runs on a CPU.
    cache = cache_bytes(decoder.declared_shape, config.slots, dtype)
    return {"enforce_eager": True, "kv_cache_memory_bytes": cache}


def cache_bytes(shape: Shape, slots: int, dtype: torch.dtype) -> int:
    """Bytes for all slots to be full. If that is too much, vLLM lets sequences wait."""
    rows = -(-shape.context // BLOCK) * BLOCK * slots
    size = 2 * shape.layers * shape.kv_heads * shape.head_dim * rows * dtype.itemsize
    return min(max(size, CACHE_AT_LEAST), CACHE_AT_MOST)


def _environment() -> dict[str, str]:
    """Variables for the process alone. The user's own environment takes precedence."""
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its core in that very process, in step with our loop
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it draws without seeds, and is compiled on first use
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the learner uses the same cores, in turn
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
