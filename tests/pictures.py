"""Tiny vision models of random weights with a tokenizer of bytes, and pictures for them."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from toolwright.models.tokenizer import END, PAD, Tokenizer

NEEDED = "what reads images is missing or too old: pip install 'toolwright[vision]'"
pytest.importorskip("PIL", reason=NEEDED)
pytest.importorskip("transformers", minversion="5.21", reason=NEEDED)

QWEN_TOKENS = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
SMOL_TOKENS = [
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]
# Content in parts or as plain text, as Qwen's templates have it.
QWEN_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# In parts alone, as SmolVLM's has it: plain text is left out.
SMOL_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}{{ '<image>' }}"
    "{% endif %}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def picture(colour: str | tuple[int, int, int] = "red", size: tuple[int, int] = (60, 90)) -> bytes:
    """A PNG of one colour, with a corner of another."""
    from PIL import Image

    image = Image.new("RGB", size, colour)
    image.paste((20, 40, 60), (0, 0, size[0] // 3, size[1] // 3))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def url(colour: str | tuple[int, int, int] = "red", size: tuple[int, int] = (60, 90)) -> str:
    return "data:image/png;base64," + base64.b64encode(picture(colour, size)).decode()


def asks(text: str, *urls: str) -> list[dict[str, Any]]:
    """A user's message with these images before its text."""
    parts = [{"type": "image", "image": one} for one in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def _tokenizer(folder: Path, tokens: list[str], template: str) -> Tokenizer:
    words = Tokenizer.bytes()
    words.backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    words.config["chat_template"] = template
    words.save(folder)
    return words


def qwen_folder(folder: Path, *, seed: int = 0, width: int = 32, scale: float = 6) -> Path:
    """Qwen2.5-VL's shape. `scale`: by how much its weights are larger than a fresh model's."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    words = _tokenizer(folder, QWEN_TOKENS, QWEN_TEMPLATE)
    image, video, start, end = map(words.backend.token_to_id, QWEN_TOKENS)
    ends = {"eos_token_id": words.backend.token_to_id(END), "pad_token_id": words.backend.token_to_id(PAD)}
    sizes = {"hidden_size": width, "intermediate_size": 2 * width}
    pairs = width // 8  # of a head, which turn by time, height and width
    config = Qwen2_5_VLConfig(
        text_config={
            **sizes,
            **ends,
            "bos_token_id": None,
            "vocab_size": words.size,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [pairs // 4, pairs // 4, pairs - 2 * (pairs // 4)],
            },
        },
        vision_config={
            **sizes,
            "depth": 2,
            "num_heads": 2,
            "out_hidden_size": width,
            "patch_size": 8,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        **ends,
    )
    torch.manual_seed(seed)
    _wide(Qwen2_5_VLForConditionalGeneration(config), scale).save_pretrained(folder)
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 8,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def qwen3_folder(folder: Path, *, seed: int = 0, width: int = 32) -> Path:
    """Qwen3-VL's shape: what it sees is added again after its first layers."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    given = json.loads((qwen_folder(folder, seed=seed, width=width) / "config.json").read_text())
    text, vision = given["text_config"], given["vision_config"]
    for key in ("model_type", "layer_types", "use_sliding_window", "sliding_window", "max_window_layers"):
        text.pop(key, None)
    config = Qwen3VLConfig(
        text_config={**text, "head_dim": width // 4},
        vision_config={
            **{key: vision[key] for key in ("hidden_size", "intermediate_size", "depth", "num_heads")},
            "out_hidden_size": width,
            "patch_size": 8,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        tie_word_embeddings=True,
        **{key: given[key] for key in given if key.endswith("_token_id")},
    )
    torch.manual_seed(seed)
    _wide(Qwen3VLForConditionalGeneration(config)).save_pretrained(folder)
    return folder


def smol_folder(folder: Path, *, seed: int = 0, width: int = 32) -> Path:
    """SmolVLM's shape: images in tiles."""
    import torch
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    words = _tokenizer(folder, SMOL_TOKENS, SMOL_TEMPLATE)
    ends = {"eos_token_id": words.backend.token_to_id(END), "pad_token_id": words.backend.token_to_id(PAD)}
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 4}
    config = SmolVLMConfig(
        text_config={
            **sizes,
            **ends,
            "bos_token_id": None,
            "model_type": "llama",
            "vocab_size": words.size,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "head_dim": width // 4,
        },
        vision_config={**sizes, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8},
        image_token_id=words.backend.token_to_id("<image>"),
        scale_factor=2,
        tie_word_embeddings=True,
        **ends,
    )
    torch.manual_seed(seed)
    _wide(SmolVLMForConditionalGeneration(config)).save_pretrained(folder)
    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_image_splitting": True,
        "size": {"longest_edge": 64},
        "max_image_size": {"longest_edge": 32},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def _wide(model: Any, scale: float = 6) -> Any:
    """With larger weights, so that what it says depends on what it sees."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(scale)
    return model
