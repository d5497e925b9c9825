"""Additions to vLLM's workers: weights in place, and probabilities as the contract has them.

Given to vLLM by name (`worker_extension_cls`), it becomes a base class of the worker; `collective_rpc` calls
its methods in every worker. Arguments and answers are strings, lists and dicts, which a server takes as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from toolwright.engines.delivery import bit_sum, checksum, received

EXTENSION = "toolwright.engines.vllm_worker.WorkerExtension"
TIED = "model.embed_tokens.weight"
# Of a row's sum, relative to that of its sizes: what adding in another order may change.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


class WorkerExtension:
    """Names of vLLM's own workers must not be taken: all begin with ours."""

    model_runner: Any
    reload_weights: Any
    parallel_config: Any

    def toolwright_load(self, note: str) -> dict[str, Any]:
        """The weights that the note leads to, in place of the present ones; what arrived and what is held."""
        weights = received(note)
        arrived = checksum(weights)
        self.reload_weights(weights_iterator=iter(weights.items()))
        _lay_out_again(self.model_runner.get_model())
        if self.parallel_config.tensor_parallel_size > 1:
            return {"checksum": str(arrived), "differing": []}  # each worker holds a part of every tensor
        return {"checksum": str(arrived), "differing": _differing(self.model_runner.get_model(), weights)}

    def toolwright_whole_distribution(self) -> list[str]:
        """Make log-probabilities those at the temperature, before top-p and top-k. vLLM offers them before
        the temperature, or after the filters."""
        sampler = self.model_runner.sampler
        if not hasattr(sampler, "toolwright"):
            sampler.toolwright = True
            sampler.logprobs_mode = "processed_logprobs"
            if hasattr(sampler, "topk_topp_sampler"):
                _before_filters(sampler.topk_topp_sampler)
            else:
                _before_filters_of_second_runner(sampler)
        return ["toolwright"]


def _lay_out_again(model: Any) -> None:
    """Renew the copies that products read on a CPU. vLLM forgets an output layer that is tied to the
    embedding and has no tensor of its own."""
    for module in model.modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def _before_filters(module: Any) -> None:
    draw = module.forward

    def forward(logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, Tensor]:
        whole = logits.log_softmax(-1, dtype=torch.float32)  # first: filters write into the logits
        return draw(logits, generators, k, p)[0], whole

    module.forward = forward


def _before_filters_of_second_runner(sampler: Any) -> None:
    """vLLM's second model runner has a sampler without modules; it makes logits into probabilities later."""
    draw = sampler.sample

    def sample(logits: Tensor, *about: Any, **options: Any) -> tuple[Tensor, Tensor]:
        drawn = draw(logits, *about, **options)[0]
        return drawn, sampler.apply_sampling_params(logits, *about, skip_top_k_top_p=True)

    sampler.sample = sample


def _differing(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Parameters that are not what was sent. vLLM lays some tensors end to end, which a sum of bits does not
    mind; and on a CPU its kernels have copies of their own, which only a product tells about."""
    joined: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    sums = {name: bit_sum(tensor) for name, tensor in weights.items()}
    differing = []
    for name, parameter in model.named_parameters():
        parts = _parts(name, joined)
        known = parameter.numel() and all(part in sums for part in parts)
        if known and bit_sum(parameter) != sum(sums[part] for part in parts):
            differing.append(name)
    for name, module in model.named_modules():
        product = getattr(module, "cpu_linear", None)
        parts = _parts(f"{name}.weight", joined)
        if parts == ["lm_head.weight"] and parts[0] not in weights:
            parts = [TIED]
        if product is not None and all(part in weights for part in parts):
            sent = torch.cat([weights[part] for part in parts])
            if not _gives(product, module, sent) and not _gives(product, module, sent.t()):
                differing.append(f"{name}, as its product has it")
    return differing


def _gives(product: Any, module: Any, sent: Tensor) -> bool:
    """True if a product with ones matches the matrix, [out, in]; a few have theirs the other way round."""
    if sent.shape[1] != getattr(module, "input_size_per_partition", sent.shape[1]):
        return False  # the kernel would not notice, and read on
    ones = torch.ones(1, sent.shape[1], dtype=sent.dtype)
    found = product(ones, module.weight, None)[0, : len(sent)].double()
    apart = (found - sent.double().sum(1)).abs() / sent.double().abs().sum(1).clamp(min=1e-9)
    return float(apart.max()) <= ROUNDING[sent.dtype]


def _parts(name: str, joined: Mapping[str, list[str]]) -> list[str]:
    """The hub's names of what vLLM keeps under one."""
    for whole, pieces in joined.items():
        if f".{whole}." in name:
            return [name.replace(f".{whole}.", f".{piece}.") for piece in pieces]
    return [name]
