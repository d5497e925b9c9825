"""Hugging Face fast tokenizers, read and written without importing transformers, which costs a second."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from toolwright import images
from toolwright.failures import UserError
from toolwright.models.folder import read_json

if TYPE_CHECKING:
    from toolwright.models.chat import ChatTemplates, Messages, Tools
    from toolwright.models.image_reader import ImageReader

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unk|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTER_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OWN_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "pad_token": PAD,
    "additional_special_tokens": list(ROLES),
    "clean_up_tokenization_spaces": False,
    "chat_template": CHARACTER_TEMPLATE,
}
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",  # where a model with several end tokens lists them
    # What slow tokenizers and llama.cpp's converter read.
    "added_tokens.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
    # How a vision model's images are read.
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.json",
)
MORE_TEMPLATES = "additional_chat_templates"  # a folder of NAME.jinja, beside chat_template.jinja
SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")
# Characters of private use, one of which marks where a text must be cut before it is encoded.
MARKS = [*range(0xE000, 0xF900), *range(0xF0000, 0xF0800)]
# No token is longer than this many characters, near enough: what is cut to size need not be encoded whole.
CHARACTERS_A_TOKEN = 16
AT_ONCE = 512  # texts that are counted side by side, so that few are in memory encoded
# Whose words are quoted. The system's are the operator's, the assistant's its own.
QUOTED = ("user", "tool", "environment")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Written:
    """A text and its tokens. An image is one placeholder of the text, and as many tokens as it takes."""

    text: str
    tokens: list[int]
    images: list[str] = field(default_factory=list)  # data URLs, in order


class Tokenizer:
    """Text to token ids and back, and chat messages to the text a model was trained on."""

    def __init__(self, backend: Backend, config: dict[str, Any], *, end_tokens: Sequence[int] = ()) -> None:
        self.backend = backend
        self.config = config
        end = self._number("eos_token")
        self.end_tokens = frozenset([*end_tokens, *([end] if end is not None else [])])
        self.source: Path | None = None
        # The last opening, and what it was of: attempts at one task come one after another.
        self._opened: tuple[Any, Written] | None = None

    @classmethod
    def characters(cls, alphabet: str) -> Tokenizer:
        """Build a tokenizer with a token a character, and roles and ends as special tokens."""
        specials = [PAD, END, UNKNOWN, *ROLES]
        vocab = {token: index for index, token in enumerate([*specials, *sorted(set(alphabet))])}
        backend = Backend(models.WordLevel(vocab, unk_token=UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(specials)
        return cls(backend, {**OWN_CONFIG, "unk_token": UNKNOWN})

    @classmethod
    def bytes(cls) -> Tokenizer:
        """A tokenizer with one token per byte, so that it can encode any text. Roles and ends are as in
        `characters`."""
        specials = [PAD, END, *ROLES]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {token: index for index, token in enumerate([*specials, *alphabet])}
        backend = Backend(models.BPE(vocab, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(specials)
        return cls(backend, dict(OWN_CONFIG))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"{folder} has no tokenizer.json; if it has another kind of tokenizer, `toolwright model "
                f"convert {folder} --out FOLDER` makes one"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:
            raise UserError(f"{path} cannot be read as a tokenizer: {error}") from None
        # Whoever saved it may have cut and padded batches with it; we take texts whole.
        backend.no_truncation()
        backend.no_padding()
        config = read_json(folder / "tokenizer_config.json")
        for name, token in read_json(folder / "special_tokens_map.json").items():
            if name in SPECIALS and config.get(name) is None:  # older folders name them there alone
                config[name] = token
        if templates := _templates(folder):
            config["chat_template"] = templates
        files = (folder / "generation_config.json", folder / "config.json")
        ends = [end for file in files for end in _ends(file)]
        # An end that no token has is none, unless it is the only one: such a model ends no turn by itself.
        tokenizer = cls(backend, config, end_tokens=[e for e in ends if backend.id_to_token(e) is not None])
        tokenizer.end_tokens = tokenizer.end_tokens or frozenset(ends)
        tokenizer.source = folder
        if not tokenizer.end_tokens:
            raise UserError(
                f"{folder}: neither tokenizer_config.json nor config.json names an end-of-sequence token"
            )
        return tokenizer

    @property
    def fingerprint(self) -> str:
        """The same for tokenizers whose tokens mean the same."""
        return hashlib.blake2b(self.backend.to_str().encode(), digest_size=8).hexdigest()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self.source is not None:
            for name in FILES:
                if (self.source / name).is_file() and self.source.resolve() != folder.resolve():
                    shutil.copyfile(self.source / name, folder / name)
            if (self.source / MORE_TEMPLATES).is_dir():
                shutil.copytree(self.source / MORE_TEMPLATES, folder / MORE_TEMPLATES, dirs_exist_ok=True)
            return
        self.backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2) + "\n")

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def end(self) -> int:
        """The token that ends a turn of ours; where a model has several, its tokenizer's own."""
        own = self._number("eos_token")
        return own if own is not None else min(self.end_tokens)

    @property
    def pad(self) -> int | None:
        return self._number("pad_token")

    def special(self, name: str) -> str | None:
        """The text of a special token that the configuration names, such as `bos_token`."""
        token = self.config.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def _number(self, name: str) -> int | None:
        token = self.special(name)
        return self.backend.token_to_id(token) if token else None

    def encode(self, text: str) -> list[int]:
        """The text opens a sequence, and special tokens written in it are meant."""
        return self.backend.encode(clean(text), add_special_tokens=False).ids

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n characters is at least n / longest_token tokens."""
        return max(map(len, self.backend.get_vocab()))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens that `encode` makes of each text, computed on every core."""
        # Unless told so, versions before 0.23 complain of every process that is forked from then on.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        parts = ([*map(clean, texts[i : i + AT_ONCE])] for i in range(0, len(texts), AT_ONCE))
        count = self.backend.encode_batch_fast
        return [len(found) for part in parts for found in count(part, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text for reading and scoring: what the model said, without the marks around it."""
        return self.backend.decode(list(tokens), skip_special_tokens=True)

    def render(
        self, messages: Messages, *, generate: bool = True, tools: Tools | None = None, **extra: Any
    ) -> str:
        """Messages as the chat template writes them; `generate` opens the assistant's turn. What stands for
        an image is as long as the model needs it."""
        messages, urls = images.apart(messages)
        text = self.chat.render(messages, generate=generate, tools=tools, **extra)
        return self._sees().expanded(text, urls) if urls else text

    def opening(self, messages: Messages, *, tools: Tools | None = None, **extra: Any) -> Written:
        """A conversation up to where the assistant's first turn begins. What users and tools say is encoded
        as text, whatever it looks like: only the template writes special tokens."""
        minute = time.time() // 60  # templates may ask for the date
        asked, last = (messages, tools, extra, minute), self._opened
        if last is None or last[0] != asked:
            shown, urls = images.apart(messages)
            said, known, mark = self._quoted(shown, tools)
            text = self.chat.render(said, tools=known, **extra)
            written = self._written(text, mark, opens=True, urls=urls)
            last = self._opened = copy.deepcopy(asked), written
        return Written(last[1].text, list(last[1].tokens), list(last[1].images))

    def conversation(self, messages: Messages) -> list[int]:
        """A whole conversation of others, to be judged. Nobody's words in it count as special tokens, the
        assistant's neither: a policy could write the judge's own."""
        said, _, mark = self._quoted(messages, None, roles=None)
        return self._written(self.render(said, generate=False), mark, opens=True).tokens

    def continuation(
        self, messages: Messages, *, ended: bool, tools: Tools | None = None, **extra: Any
    ) -> Written:
        """What stands between an assistant's turn and the next, `messages` being said in between; `ended`
        tells that the turn's end-of-turn token is there already. Quoted as in `opening`."""
        shown, urls = images.apart(messages)
        said, known, mark = self._quoted(shown, tools)
        text = self.chat.continuation(said, ended=ended, tools=known, **extra)
        return self._written(text, mark, urls=urls)

    def quote(self, text: str, write: Callable[[str], str] = str) -> Written:
        """A text of the world's, in which no special token counts as one; `write` puts something around it,
        in which they do."""
        mark = _unused(text)
        return self._written(write(self._cut(clean(text), mark)), mark)

    def clip(self, text: str, most: int) -> str:
        """At most so many tokens of it: its head and its tail, the cut between them marked."""
        text, reach = clean(text), most * CHARACTERS_A_TOKEN
        if len(text) <= 2 * reach:
            head = tail = text
        else:  # the middle will be left out in any case, and is not worth encoding
            head, tail = text[:reach], text[-reach:]
        starts, ends = list(self._spans(head)), list(self._spans(tail))
        if head is text and len(starts) <= most:
            return text
        for notice in (f"\n… {len(text):,} characters, the middle left out …\n", "…"):
            room = most - len(self.encode_inside(notice))
            if 2 * room >= most:
                break
        last = max(room, 1) // 3  # the head is worth more: it says what the rest is
        kept = starts[max(room, 1) - last - 1][1]
        return head[:kept] + notice + (tail[ends[-last][0] :] if last else "")

    @property
    def end_marks(self) -> list[str]:
        """The end-of-turn tokens as they are written."""
        written = (self.backend.id_to_token(end) for end in sorted(self.end_tokens))
        return [mark for mark in written if mark is not None]

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The place of each token in the text, special tokens counted as text."""
        start, mark = 0, _unused(text)
        for piece in self._cut(text, mark).split(mark):
            offsets = self.backend.encode(piece, add_special_tokens=False).offsets
            yield from ((start + begin, start + end) for begin, end in offsets)
            start += len(piece)

    def _quoted(
        self, messages: Messages, tools: Tools | None, roles: Sequence[str] | None = QUOTED
    ) -> tuple[Any, Any, str]:
        """Split the words of users and tools, and tool descriptions, wherever they spell a special token.
        `roles`: the roles whose words are split; None: all."""
        mark = _unused("".join(str(message.get("content")) for message in messages))

        def quoted(value: Any) -> Any:
            if isinstance(value, str):
                return self._cut(clean(value), mark)
            if isinstance(value, Mapping):
                return {key: quoted(item) for key, item in value.items()}
            return [quoted(item) for item in value] if isinstance(value, list | tuple) else value

        def content(value: Any) -> Any:
            if not isinstance(value, list):
                return quoted(value)
            return [{**part, "text": quoted(part["text"])} if "text" in part else part for part in value]

        said = [
            {**m, "content": content(m["content"])}
            if (roles is None or m["role"] in roles) and "content" in m
            else m
            for m in messages
        ]
        return said, quoted(tools), mark

    def _cut(self, text: str, mark: str) -> str:
        """The text with a mark inside everything that reads as a special token."""
        text = text.replace(mark, REPLACEMENT).translate(self._unspeakable)
        if self._forgeable is None:
            return text
        starts = [match.start() for match in self._forgeable.finditer(text)]
        if starts:
            cuts = [0, *(start + 1 for start in starts), len(text)]
            text = mark.join(text[a:b] for a, b in pairwise(cuts))
        # Half of one, which what is written next to it could make whole.
        before, after = self._halves
        if any(text[-n:] in before for n in range(1, self._longest)):
            text += mark
        if any(text[:n] in after for n in range(1, self._longest)):
            text = mark + text
        # Full-width letters, say, which the tokenizer's own normalisation turns into the real thing.
        normalizer = self.backend.normalizer
        if normalizer is not None and self._forgeable.search(normalizer.normalize_str(text)):
            text = mark.join(text.replace(mark, ""))
        return text

    def _written(self, text: str, mark: str, *, opens: bool = False, urls: Sequence[str] = ()) -> Written:
        """Encoded piece by piece, cut at the marks: no token reaches over one."""
        tokens: list[int] = []
        for piece in (self._sees().expanded(text, urls) if urls else text).split(mark):
            tokens += self.encode(piece) if opens else self.encode_inside(piece)
            opens = False
        return Written(text.replace(mark, ""), tokens, list(urls))

    def _sees(self) -> ImageReader:
        if self.image_reader is None:
            where = f" in {self.source}" if self.source else ""
            raise UserError(
                f"the prompt has images, but the model{where} takes none; a vision model's folder has "
                "image_token_id in config.json, and preprocessor_config.json"
            )
        return self.image_reader

    @cached_property
    def image_reader(self) -> ImageReader | None:
        """None for a model without vision."""
        from toolwright.models.image_reader import ImageReader

        return ImageReader.of(self.source, self.backend.id_to_token) if self.source else None

    def encode_inside(self, text: str) -> list[int]:
        """Encode text that follows other tokens, without the space that some tokenizers put before a text."""
        return self.encode(self._before + text)[1:] if self._before else self.encode(text)

    @cached_property
    def _before(self) -> str:
        """A token that a text can be encoded after, for tokenizers that treat the start of a text
        differently."""
        for mark in self.end_marks:
            token = self.backend.token_to_id(mark)
            if self.encode(mark) == [token] and self.encode(f"{mark}a") != [token, *self.encode("a")]:
                return mark
        return ""

    @cached_property
    def _marks(self) -> list[str]:
        """The texts that must not be forged: special tokens, and tokens that the template writes itself."""
        added = self.backend.get_added_tokens_decoder().values()
        source = self.config.get("chat_template") or ""
        source = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        return [t.content for t in added if len(t.content) > 1 and (t.special or t.content in source)]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._marks), default=0)

    @cached_property
    def _halves(self) -> tuple[set[str], set[str]]:
        """Every prefix and every suffix of the special tokens."""
        begins = {mark[:n] for mark in self._marks for n in range(1, len(mark))}
        return begins, {mark[n:] for mark in self._marks for n in range(1, len(mark))}

    @cached_property
    def _forgeable(self) -> re.Pattern[str] | None:
        """Finds where one of these begins."""
        marks = self._marks
        if not marks:
            return None
        first = "".join(re.escape(mark) for mark in sorted({mark[0] for mark in marks}))
        return re.compile(f"(?=[{first}])(?={'|'.join(re.escape(mark) for mark in sorted(marks))})")

    @cached_property
    def _unspeakable(self) -> dict[int, str]:
        """Special tokens of a single character: there is no other way to write them."""
        added = self.backend.get_added_tokens_decoder().values()
        return {ord(t.content): REPLACEMENT for t in added if t.special and len(t.content) == 1}

    @cached_property
    def chat(self) -> ChatTemplates:
        from toolwright.models.chat import ChatTemplates

        source = self.config.get("chat_template")
        if not source:
            raise UserError(
                f"the tokenizer{f' in {self.source}' if self.source else ''} has no chat template; write one "
                "into chat_template.jinja beside it"
            )
        named = (
            {t["name"]: t["template"] for t in source} if isinstance(source, list) else {"default": source}
        )
        named.setdefault("default", next(iter(named.values())))
        specials = {name: str(token) for name in SPECIALS if (token := self.special(name))}
        return ChatTemplates(named, specials, ends=self.end_marks)


def _templates(folder: Path) -> str | list[dict[str, str]] | None:
    """The chat template in a file of its own; all by name if there are more beside it."""
    whole = folder / "chat_template.jinja"
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    found = [("default", whole)] * whole.is_file() + [(file.stem, file) for file in more]
    named = [{"name": name, "template": file.read_text(encoding="utf-8")} for name, file in found]
    if not found:  # as older folders of vision models have it
        return read_json(folder / "chat_template.json").get("chat_template")
    return named if more else named[0]["template"] if named else None


def _ends(file: Path) -> list[int]:
    """The numbers of the tokens that end a turn, as the file has them."""
    value = read_json(file).get("eos_token_id")
    ends = value if isinstance(value, list) else [value] if value is not None else []
    if not all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise UserError(
            f"{file}: eos_token_id={value!r} should be the number of a token, or a list of numbers"
        )
    return [end for end in ends if end >= 0]


def clean(text: str) -> str:
    """Text that every encoder takes: half a surrogate pair is none."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unused(text: str) -> str:
    """A character of private use that does not occur in the text."""
    used = set() if text.isascii() else set(text)
    return next((chr(code) for code in MARKS if chr(code) not in used), chr(MARKS[0]))
