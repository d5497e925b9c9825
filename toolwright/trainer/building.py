"""Models, tokenizers and engines, built from a configuration on the device that it names."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch

from toolwright import engines
from toolwright.agents.agent_set import AgentSet
from toolwright.agents.attempt import seed_of
from toolwright.algorithms import needs, preferences
from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.engines import Engine
from toolwright.failures import InfrastructureFailure, UserError
from toolwright.learner.budget import PassSettings
from toolwright.learner.policy import Frozen
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models import adapter_folder, huggingface, lora, template_check, weight_files
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.folder import overridden
from toolwright.models.known import KNOWN, place_of
from toolwright.models.precision import loosen
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.settings import Settings

TINY_PARAMETERS = 4_000_000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
FAST = {"auto": None, "yes": True, "no": False}
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bfloat16_weights": torch.bfloat16,
    "int8_weights": torch.bfloat16,
}
HAS_BFLOAT16 = (8, 0)  # compute capability of the first GPUs that multiply in it, Ampere's


def pass_settings(config: schema.Config, ranks: Ranks = ALONE) -> PassSettings:
    """How every model of the learner is computed."""
    return {
        "micro_tokens": config.update.micro_tokens,
        "dtype": dtype_of(config.model),
        "ranks": ranks,
        "packs": config.update.optimizer_state == "int8",
    }


def build_frozen(config: schema.Config, decoder: Decoder, ranks: Ranks = ALONE) -> Frozen:
    """Build a model that only answers and never learns: a reference or a teacher."""
    own = pass_settings(config, ranks)
    return Frozen(decoder.requires_grad_(False), temperature=config.rollout.temperature, **own)


def needs_role(algorithm: schema.Algorithm, role: str) -> bool:
    """Return True if the algorithm uses this role: `reference`, `teacher`, `critic` or `process_reward`. A
    reference that nothing uses is not kept."""
    if algorithm.preference is not None:
        return role in preferences.needs(algorithm.preference)
    pulled = role == "reference" and algorithm.kl.where != "none"
    return pulled or role in needs.required(algorithm.adv_estimator)


@asynccontextmanager
async def agents_before_run(
    config: schema.RolloutConfig, tokenizer: Tokenizer, tools: Settings
) -> AsyncIterator[AgentSet]:
    """Open agents and their tools before the run, to see what prompts they write. Nothing is retried yet:
    every failure is a UserError."""
    agents = AgentSet(config, tokenizer, tools=tools)
    try:
        yield agents
    except InfrastructureFailure as error:
        raise UserError(str(error)) from error
    finally:
        await agents.tools.close()


def use_processor(run: schema.RunConfig, decoder: Decoder) -> None:
    """Choose the number of torch threads. A tiny model's matrix products finish before a second thread wakes
    up, and beside a GPU the CPU has nothing large to compute."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    small = decoder.device.type != "cpu" or sum(p.numel() for p in decoder.parameters()) < TINY_PARAMETERS
    torch.set_num_threads(run.threads or (1 if small else usable))
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Tell malloc to keep freed memory. Each step frees what the next one needs again. If it went back to the
    kernel in between, the page faults would cost a tenth of a step on a CPU."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not the GNU C library
        return
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_MMAP_THRESHOLD, 2**30)


def pick_device(name: str, *, numbered: bool = False) -> torch.device:
    """Pick the device. `numbered`: return a GPU with its index, as process groups need it. Ray shows each
    actor only its own GPUs."""
    device = _named_device(name)
    return torch.device("cuda", 0) if numbered and device == torch.device("cuda") else device


def _named_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device={name} is no device to train on; write auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"model.device={name} needs CUDA, but torch finds no CUDA device")
    return device


def dtype_of(config: schema.Model) -> torch.dtype:
    """The precision of matrix products. `config.stored` is the precision of the weights."""
    return DTYPES[precision(config)]


def precision(config: schema.Model) -> str:
    if config.dtype != "auto":
        return config.dtype
    device = pick_device(config.device)
    if config.path is None or device.type != "cuda":
        return "float32"
    base, _ = folders(config)
    return fastest_precision(
        device.type, torch.cuda.get_device_capability(device), parameters=weight_files.parameters(base)
    )


def fastest_precision(kind: str, capability: tuple[int, int], *, parameters: int) -> str:
    """Pick a precision. bfloat16 is slower than float32 on a CPU, and tiny models gain nothing from it."""
    large = parameters >= TINY_PARAMETERS
    return "bfloat16" if kind == "cuda" and capability >= HAS_BFLOAT16 and large else "float32"


def build_model(config: schema.Model, alphabet: str, *, seed: int) -> tuple[Decoder, Tokenizer]:
    """Build the policy's decoder and tokenizer: from a Hugging Face folder, or with random weights and one
    token per character."""
    if config.path is not None:
        base, _ = folders(config)
        context_of(config)  # first of all it must be a model's folder
        tokenizer = build_tokenizer(config, alphabet)
        _check_stored(config, base)
        decoder = huggingface.load(
            base,
            context=cut_of(config),
            fast=FAST[config.fast],
            stored=config.stored,
            device=pick_device(config.device),
        )
        _check_vocabulary(tokenizer, decoder.shape.vocab, base)
        _adapt(decoder, config, seed=seed)
    else:
        tokenizer = Tokenizer.characters(alphabet)
        specials = {"eos_token_id": tokenizer.end, "pad_token_id": 0, "bos_token_id": None}
        shape = replace(fresh_shape(config, tokenizer.size), extra=specials)
        decoder = Decoder(shape, stored=config.stored).initialise(seed_of(seed, "weights"))
    decoder.recomputing(config.recomputes).to(pick_device(config.device))
    if decoder.adapter is not None:  # learner and engine, in whatever process, add it to the same numbers
        loosen(decoder, dtype_of(config))
    return decoder, tokenizer


def fresh_shape(config: schema.Model, vocab: int) -> Shape:
    """The shape of a decoder with random weights."""
    normed = bool(config.config.get("qk_norm", True))
    return Shape(
        vocab=vocab,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads,
        ffn=config.ffn,
        context=require_number(config.context, "model.context"),
        head_dim=config.width // config.heads,
        tied=bool(config.config.get("tie_word_embeddings", True)),
        qk_norm=normed,
        family="qwen3" if normed else "llama",
    )


def _check_stored(config: schema.Model, base: Path) -> None:
    """Raise a UserError if the matrices cannot be kept in the requested precision."""
    if config.stored == "int8" and not adapts(config):
        raise UserError(
            "model.dtype=int8_weights is for the base of an adapter: set model.lora.rank=16 as well, or take "
            "bfloat16_weights"
        )
    if config.stored != "float32" and not huggingface.is_fast(
        base, context=cut_of(config), fast=FAST[config.fast]
    ):
        raise UserError(
            f"model.dtype={config.dtype}: {base} runs by its own forward, whose weights are float32; set "
            "model.dtype=bfloat16"
        )


def _check_vocabulary(tokenizer: Tokenizer, vocab: int, base: Path) -> None:
    """Check that every token has a row in the embedding. Rows without a token are common and allowed."""
    added = tokenizer.backend.get_added_tokens_decoder()
    beyond = [f"{token.content!r} is number {number}" for number, token in added.items() if number >= vocab]
    if beyond or tokenizer.size > vocab:
        which = f" ({beyond[0]})" if beyond else ""
        raise UserError(
            f"{base}: its tokenizer has {tokenizer.size} tokens{which}, its model only {vocab}; use the "
            "tokenizer that belongs to the model, or add rows with resize_token_embeddings of transformers"
        )


def build_tokenizer(config: schema.Model, alphabet: str) -> Tokenizer:
    """Build the tokenizer that `build_model` returns, without building the decoder."""
    if config.path is None:
        return Tokenizer.characters(alphabet)
    base, adapter = folders(config)
    own = adapter is not None and (adapter / "tokenizer.json").is_file()
    tokenizer = Tokenizer.load(adapter if own and adapter else base)
    template_check.check(tokenizer)
    return tokenizer


def context_of(config: schema.Model) -> int | None:
    """Read the longest sequence of the model without building it. None means that the model has no limit of
    its own."""
    if config.path is None:
        return None if config.context == "auto" else config.context
    base, _ = folders(config)
    return huggingface.read_shape(base, context=cut_of(config), fast=FAST[config.fast]).context


def cut_of(config: schema.Model) -> int | None:
    """The context to cut a model's positions at; None keeps all of them."""
    return None if config.context == "auto" else config.context


def folders(config: schema.Model) -> tuple[Path, Path | None]:
    """Find the folders of model and adapter. `model.path` may name an adapter alone, which knows its base
    model."""
    folder, adapter = _folder("model.path", config.path), config.lora.path
    alone = adapter_folder.is_adapter(folder)
    if config.config and not alone:
        folder = overridden(folder, config.config)
    if alone and adapter is not None:
        raise UserError(
            f"model.path={folder} is an adapter, and model.lora.path={adapter} another: set one of them"
        )
    if alone:
        return adapter_folder.base_of(folder), folder
    return folder, None if adapter is None else _folder("model.lora.path", adapter)


def adapts(config: schema.Model) -> bool:
    """Return True if an adapter is learned instead of the model itself."""
    return config.path is not None and (config.lora.rank is not None or folders(config)[1] is not None)


def _folder(key: str, path: str | None) -> Path:
    folder = Path(path or "").expanduser()
    if not folder.is_dir():
        raise UserError(f"{key}={path} is not a folder{_to_be_had(path or '')}")
    return folder


def _to_be_had(name: str) -> str:
    """A hint for a path that is not a folder: it may be the name of a model to download."""
    if name not in KNOWN and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return "; name a Hugging Face folder, or download one with `toolwright model get`"
    place = place_of(name)
    if place.is_dir():
        return f"; {place} is one"
    return f"; as a model's name, `toolwright model get {name}` downloads it into {place}"


def _adapt(decoder: Decoder, config: schema.Model, *, seed: int) -> None:
    """Add the configured adapter: an existing one, or a new one."""
    base, adapter = folders(config)
    rank, targets = config.lora.rank, config.lora.targets
    if adapter is not None:
        adapter_folder.load(decoder, adapter, base=base.resolve())
        found = decoder.adapter
        if rank is not None and found is not None and found.rank != rank:
            raise UserError(f"model.lora.rank={rank}, but the adapter in {adapter} is of rank {found.rank}")
    elif rank is not None:
        modules = lora.matched(decoder, targets)
        if not modules:
            known = sorted({name.rpartition(".")[2] for name in decoder.adaptable()})
            raise UserError(
                f"model.lora.targets={targets}: {base} has no such matrices; it has {', '.join(known)}"
            )
        new = lora.Adapter(rank, config.lora.alpha, config.lora.alpha / rank, base=str(base.resolve()))
        lora.attach(decoder, new, modules, seed=seed_of(seed, "adapter"))


def export(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the learned weights in the format that `transformers`, peft and vLLM read."""
    adapter_folder.save_learned(decoder, folder)
    tokenizer.save(folder)


def build_engine(config: schema.Config, decoder: Decoder, tokenizer: Tokenizer) -> Engine:
    build = engines.registry.get(config.engine.name).target
    return build(config.engine, decoder=decoder, tokenizer=tokenizer, dtype=dtype_of(config.model))
