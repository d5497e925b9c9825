"""Hugging Face fast tokenizers, read and written without importing transformers, which costs a second."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from toolwright.failures import UserError
from toolwright.models.folder import read_json

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unk|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTER_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",  # where a model with several end tokens lists them
)


class Tokenizer:
    """Text to token ids and back, and chat messages to the text a model was trained on."""

    def __init__(self, backend: Backend, config: dict[str, Any], *, end_tokens: Sequence[int] = ()) -> None:
        self.backend = backend
        self.config = config
        end = config.get("eos_token")
        end = backend.token_to_id(end["content"] if isinstance(end, dict) else end) if end else None
        self.end_tokens = frozenset([*end_tokens, *([end] if end is not None else [])])
        self.source: Path | None = None

    @classmethod
    def characters(cls, alphabet: str) -> Tokenizer:
        """One token a character, roles and ends as special tokens."""
        specials = [PAD, END, UNKNOWN, *ROLES]
        vocab = {token: index for index, token in enumerate([*specials, *sorted(set(alphabet))])}
        backend = Backend(models.WordLevel(vocab, unk_token=UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(specials)
        return cls(
            backend,
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": PAD,
                "unk_token": UNKNOWN,
                "additional_special_tokens": list(ROLES),
                "clean_up_tokenization_spaces": False,
                "chat_template": CHARACTER_TEMPLATE,
            },
        )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{folder} has no tokenizer.json; save its tokenizer as a fast one first")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:
            raise UserError(f"{path} cannot be read as a tokenizer: {error}") from None
        config = read_json(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"
        if template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")
        ends: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = read_json(folder / name).get("eos_token_id")
            ends += value if isinstance(value, list) else [value] if value is not None else []
        tokenizer = cls(backend, config, end_tokens=ends)
        tokenizer.source = folder
        if not tokenizer.end_tokens:
            raise UserError(
                f"{folder}: no end-of-sequence token, neither in tokenizer_config.json nor config.json"
            )
        return tokenizer

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.source is not None:
            for name in FILES:
                if (self.source / name).is_file() and self.source.resolve() != folder.resolve():
                    shutil.copyfile(self.source / name, folder / name)
            return
        self.backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2) + "\n")

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def end(self) -> int:
        """The token that ends a turn of ours; where a model has several, its tokenizer's own."""
        name = self.config.get("eos_token")
        name = name["content"] if isinstance(name, dict) else name
        own = self.backend.token_to_id(name) if name else None
        return own if own is not None else min(self.end_tokens)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text for reading and scoring: what the model said, without the marks around it."""
        return self.backend.decode(list(tokens), skip_special_tokens=True)

    def render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        """Messages as the chat template writes them; `generate` opens the assistant's turn."""
        from jinja2 import TemplateError

        specials = {key: self.config.get(key) for key in ("bos_token", "eos_token", "pad_token")}
        specials = {key: v["content"] if isinstance(v, dict) else v for key, v in specials.items() if v}
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=generate, **specials)
        except TemplateError as error:
            raise UserError(f"the chat template cannot write these messages: {error}") from None

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        source = self.config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = next((t["template"] for t in source if t["name"] == "default"), source[0]["template"])
        if not source:
            raise UserError(
                f"the tokenizer{f' in {self.source}' if self.source else ''} has no chat template; "
                "put one into chat_template.jinja beside it"
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
            value, ensure_ascii=ensure_ascii, **options
        )
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(source)
        except TemplateSyntaxError as error:
            raise UserError(f"the chat template cannot be read, line {error.lineno}: {error}") from None


def _raise(message: str) -> None:
    raise UserError(f"the chat template refuses these messages: {message}")
