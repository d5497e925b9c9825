"""Answers that follow a JSON schema: which tokens may come next. The grammar is llguidance's work."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from toolwright.engines import Completion, Sampling
from toolwright.failures import TaskFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Segment

# Between tokens of JSON: enough for any layout, and not so much that a weak policy never ends.
BLANKS = r"[\x20\x0A\x0D\x09]{1,16}"


class JsonConstraint:
    """The state of an answer under way. What may come next follows from the tokens so far."""

    def __init__(self, tokenizer: Tokenizer, schema: str, vocabulary: int) -> None:
        guidance = _library()
        grammar = guidance.LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": BLANKS})
        self._matcher = guidance.LLMatcher(_vocabulary(tokenizer, vocabulary), grammar, log_level=0)
        if self._matcher.is_error():
            raise TaskFailure(f"the JSON schema cannot be followed: {self._matcher.get_error()}")

    def allowed(self) -> Tensor:
        """[vocabulary] bool. Where the answer is complete, or cannot go on, only an end of turn is."""
        return torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) > 0

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


@dataclass(frozen=True)
class ConstrainedSampling(Sampling):
    """The sampling of one answer under a constraint, which knows how far the answer has come."""

    constraint: JsonConstraint = None  # type: ignore[assignment]

    @classmethod
    def of(cls, sampling: Sampling, tokenizer: Tokenizer, vocabulary: int) -> ConstrainedSampling:
        known: dict[str, Any] = {one.name: getattr(sampling, one.name) for one in fields(Sampling)}
        return cls(**known, constraint=JsonConstraint(tokenizer, sampling.schema, vocabulary))


def policy_segment(tokenizer: Tokenizer, sampling: Sampling, completion: Completion) -> Segment:
    """A completion as it is recorded, with the places at which its schema left no choice."""
    segment = Segment("policy", completion.tokens, completion.log_probs, completion.text)
    if sampling.schema:
        constraint = JsonConstraint(tokenizer, sampling.schema, tokenizer.size)
        for place, token in enumerate(segment.tokens):
            if int(constraint.allowed().sum()) == 1:
                segment.forced.append(place)
            constraint.take(token)
    return segment


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UserError("a JSON schema needs llguidance: pip install 'toolwright[schemas]'") from None
    return llguidance


@functools.lru_cache(maxsize=8)
def _vocabulary(tokenizer: Tokenizer, size: int) -> Any:
    """The tokenizer as the library reads it: a second's work for a large one."""
    guidance, backend = _library(), tokenizer.backend
    ends = sorted(tokenizer.end_tokens) or [tokenizer.end]
    try:
        return guidance.LLTokenizer(backend.to_str(), n_vocab=size, eos_token=ends)
    except ValueError:  # its decoder is none that the library knows
        special = [token for token, added in backend.get_added_tokens_decoder().items() if added.special]
        texts = [backend.decode([token], skip_special_tokens=False) for token in range(tokenizer.size)]

        class Own(SimpleNamespace):
            def __call__(self, text: str) -> list[int]:
                return tokenizer.encode_inside(text)

        own = Own(
            eos_token_id=ends[0],
            bos_token_id=None,
            tokens=[text.encode() for text in texts] + [b""] * (size - len(texts)),
            special_token_ids=special,
        )
        return guidance.LLTokenizer(guidance.TokenizerWrapper(own), n_vocab=size, eos_token=ends)
