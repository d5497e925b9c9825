"""The native engine: generates with the learner's own weights and code, many sequences side by side."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from toolwright.batch import partition
from toolwright.config import schema
from toolwright.engines import Completion, SampledToken, Sampling, TokenCallback
from toolwright.engines.constraint import ConstrainedSampling
from toolwright.engines.native import agreement
from toolwright.engines.native.cache import CacheRows, ExtendAttention, SlotCache, fitting
from toolwright.engines.native.decoding import InPlace, PackedWeights
from toolwright.engines.native.decoding_batch import DecodingBatch, Forward
from toolwright.engines.native.sampler import Sampler
from toolwright.engines.turns import check_prompt, stopped, turn_of
from toolwright.failures import InfrastructureFailure
from toolwright.models.decoder import Decoder, DecoderWeights
from toolwright.models.own_forward import seeing
from toolwright.models.precision import autocast
from toolwright.models.products import fixed
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.vision import Sight, look, sight_of
from toolwright.trajectory import SeenImage

PREFILL_TOKENS = 8_192  # prompts computed in one pass, padding counted: bounds the memory of admission
ROWS, ROWS_OF_GRAPHS = CacheRows(1), CacheRows(2, idle=1)


@dataclass(eq=False)
class ActiveTurn:
    """One turn under way."""

    attempt: str
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    done: asyncio.Future[Completion]
    on_token: TokenCallback | None = None
    log_probs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    slot: int = -1
    cached: int = 0  # tokens whose keys and values are in the slot
    version: int = 0  # of the weights they were computed with, the first of them at least
    images: Sequence[SeenImage] = ()
    turned: int = 0  # by how much the positions that rotate keys differ from the plain ones, after images

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class NativeEngine:
    """Slots that refill as sequences end; each turn advances by itself, none waits for its neighbours."""

    takes_weights = takes_schemas = True
    rows_kept = ROWS

    def __init__(
        self, config: schema.EngineConfig, *, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
    ) -> None:
        self.decoder, self.tokenizer, self.timeout_s = decoder, tokenizer, config.timeout_s
        self.dtype = dtype
        self.device = decoder.device
        full = dtype == torch.float32  # in bfloat16 engine and learner round in different places
        self._written_in_place = type(decoder) is Decoder and full and fixed(decoder.embedding.weight)
        # Where products and models are not our own, only a measurement can tell.
        self.difference = math.inf
        if full and decoder.exact:
            self.difference = 0.0 if self._written_in_place else agreement.difference(decoder)
        self.exact = self.difference == 0
        self.context = decoder.shape.context
        self.cache = self._make_cache(config.slots)
        self.waiting: deque[ActiveTurn] = deque()
        self.active: list[ActiveTurn] = []
        self.weights_version = 0
        self._pump: asyncio.Task[None] | None = None
        self._decoding: DecodingBatch | None = None
        self._weights: DecoderWeights | None = None
        self._in_place: InPlace | None = None
        self._packed = PackedWeights()

    def _make_cache(self, slots: int) -> SlotCache:
        shape = self.decoder.shape
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            slots = fitting(slots, shape, self.dtype, rows=self.rows_kept, free=free)
        rows = self.rows_kept.of(slots)
        return SlotCache(shape, slots, rows=rows, dtype=self.dtype, device=self.device)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        attempt: str,
        on_token: TokenCallback | None = None,
        images: Sequence[SeenImage] = (),
    ) -> Completion:
        check_prompt(prompt, context=self.context, attempt=attempt)
        if sampling.schema:
            sampling = ConstrainedSampling.of(sampling, self.tokenizer, self.decoder.shape.vocab)
        if images:
            seeing(self.decoder)
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        sequence = ActiveTurn(attempt, list(prompt), len(prompt), sampling, done, on_token, images=images)
        self.waiting.append(sequence)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await turn_of(attempt, done, who="the native engine", limit_s=self.timeout_s)

    def release(self, attempt: str) -> None:
        self.cache.release(attempt)

    def rest(self) -> None:
        """Do nothing: the weights are the learner's, and the cache is needed again at once."""

    def publish(self, version: int) -> None:
        """The weights are the learner's own tensors: there is old cache to forget, nothing to wait for."""
        self.weights_version = version
        self._weights = self._in_place = None
        self.cache.forget()

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail(InfrastructureFailure("the native engine was closed"))

    async def _run(self) -> None:
        try:
            while self.waiting or self.active:
                self._drop_cancelled()
                self._admit()
                if self.active:
                    self._decode()
                await asyncio.sleep(0)  # let agents read what ended, call tools, and ask for more
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Nobody is left waiting: every sequence is answered with the error, every slot is free again."""
        for sequence in [*self.active, *self.waiting]:
            if not sequence.done.done():
                sequence.done.set_exception(error)
        self.active.clear()
        self.waiting.clear()
        self.cache.clear()
        self._decoding = None

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self.active if s.done.done()]:
            self.active.remove(sequence)
            self.cache.give_back(sequence.slot)
            self._decoding = None

    def _admit(self) -> None:
        """Give waiting sequences a slot, compute what of their prompts is not cached, draw a first token."""
        admitted: list[ActiveTurn] = []
        while self.waiting:
            if self.waiting[0].done.done():
                self.waiting.popleft()
                continue
            parked = self.cache.parked.get(self.waiting[0].attempt)
            place = self.cache.take(self.waiting[0].attempt, self.waiting[0].tokens)
            if place is None:
                break
            sequence = self.waiting.popleft()
            sequence.slot, sequence.cached = place
            if sequence.images and parked is not None and sequence.cached < len(parked.tokens):
                sequence.cached = 0  # never a part of an image
            sequence.version = self.weights_version
            admitted.append(sequence)
        if not admitted:
            return
        leaders: dict[Any, list[ActiveTurn]] = {}
        for sequence in admitted:  # attempts at one task share its prompt: compute it once
            key: Any = tuple(sequence.tokens) if sequence.cached == 0 else id(sequence)
            if sequence.images:
                key = key, *sequence.images
            leaders.setdefault(key, []).append(sequence)
        families = list(leaders.values())
        fresh = [len(family[0].tokens) - family[0].cached for family in families]
        try:
            for part in partition(fresh, PREFILL_TOKENS):
                self._prefill([families[i] for i in part])
        except Exception:
            self.waiting.extend(admitted)  # where those are found who must hear of it
            raise

    @torch.inference_mode()
    def _prefill(self, families: list[list[ActiveTurn]]) -> None:
        leaders = [family[0] for family in families]
        fresh = [leader.tokens[leader.cached :] for leader in leaders]
        width = max(map(len, fresh))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in fresh], device=self.device)
        starts = torch.tensor([leader.cached for leader in leaders], device=self.device)
        positions = starts[:, None] + torch.arange(width, device=self.device)[None]
        slots = torch.tensor([leader.slot for leader in leaders], device=self.device)
        attend, weights = ExtendAttention(self.cache, slots, positions), self._laid_out()
        with self._precision():
            places = attend.positions.flatten()
            if any(leader.images for leader in leaders):
                sight = self._sight(leaders, width, places)
                hidden = seeing(self.decoder).hidden(tokens.flatten(), places, attend, sight=sight)
            else:
                hidden = self.decoder.hidden(tokens.flatten(), places, attend, weights=weights)
            last = [i * width + len(row) - 1 for i, row in enumerate(fresh)]
            chosen = hidden.index_select(0, torch.tensor(last, device=self.device))
            logits = self.decoder.head(chosen, weights=weights)
        members = []
        for family in families:
            for member in family:
                if member is not family[0]:
                    self.cache.copy(family[0].slot, member.slot, len(member.tokens))
                member.cached, member.turned = len(member.tokens), family[0].turned
                members.append(member)
        rows = torch.tensor([i for i, family in enumerate(families) for _ in family], device=self.device)
        sampler = Sampler([member.sampling for member in members], [len(m.tokens) for m in members])
        self.active += self._record(members, *sampler(logits[rows]), sampler.best)
        self._decoding = None

    def _sight(self, leaders: list[ActiveTurn], width: int, places: Tensor) -> Sight:
        """What a pass over prompts of so many tokens each sees; what is cached is not looked at again."""
        own, rows = seeing(self.decoder), []
        for number, leader in enumerate(leaders):
            if not leader.images:
                continue
            tokens = torch.tensor(leader.tokens)
            row = look(own, tokens, leader.images)
            if row.turned is not None:
                leader.turned = int(row.turned.max()) + 1 - len(tokens)
            fresh = torch.arange(len(tokens)) - leader.cached
            rows.append((row, torch.where(fresh >= 0, fresh + number * width, -1)))
        return sight_of(own, rows, places)

    @torch.inference_mode()
    def _decode(self) -> None:
        """One more token for every active sequence."""
        self._compact()
        if self._decoding is None:
            self._decoding = DecodingBatch(
                self.cache,
                [s.slot for s in self.active],
                [s.tokens for s in self.active],
                [s.sampling for s in self.active],
            )
        with self._precision():
            drawn = self._decoding.step(self._forward(self._turned()))
        for sequence in self.active:
            sequence.cached = len(sequence.tokens)
        going_on = self._record(self.active, *drawn, self._decoding.sampler.best)
        if len(going_on) != len(self.active):
            self._decoding = None
        self.active = going_on

    def _record(
        self,
        sequences: list[ActiveTurn],
        tokens: Tensor,
        log_probs: Tensor,
        best: list[list[tuple[int, float]]] | None,
    ) -> list[ActiveTurn]:
        """Append what was drawn; those that end are answered, the others returned."""
        going_on = []
        drawn = zip(sequences, tokens.tolist(), log_probs.tolist(), strict=True)
        for row, (sequence, token, log_prob) in enumerate(drawn):
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            if best is not None and sequence.sampling.top:
                sequence.top.append(tuple(best[row][: sequence.sampling.top]))
            if sequence.on_token is not None:
                sequence.on_token(SampledToken(token, log_prob, sequence.top[-1] if sequence.top else ()))
            stop = self._stop(sequence, token)
            if stop is None:
                going_on.append(sequence)
            else:
                self._finish(sequence, stop)
        return going_on

    def _stop(self, sequence: ActiveTurn, token: int) -> str | None:
        if token in self.tokenizer.end_tokens:
            return "eos"
        sampling = sequence.sampling
        if sampling.stop and stopped(self.tokenizer, sequence.generated, sampling.stop):
            return "stop"
        full = len(sequence.tokens) >= self.context
        return "length" if full or len(sequence.log_probs) >= sampling.max_tokens else None

    def _finish(self, sequence: ActiveTurn, stop: str) -> None:
        if len(sequence.tokens) < self.context and sequence.version == self.weights_version:
            self.cache.park(sequence.slot, sequence.attempt, sequence.tokens[: sequence.cached])
        else:
            self.cache.give_back(sequence.slot)
        if sequence.done.done():
            return
        sequence.done.set_result(
            Completion(
                tokens=sequence.generated,
                log_probs=sequence.log_probs,
                text=self.tokenizer.decode(sequence.generated),
                stop=stop,
                weights_version=self.weights_version,
                top=sequence.top,
            )
        )

    def _compact(self) -> None:
        """Move the highest sequences into free slots below, so that a step does not compute idle rows."""
        free, count = self.cache.free, len(self.active)
        while not self.waiting and free and free[0] < count:
            sequence = max(self.active, key=lambda s: s.slot)
            if sequence.slot < count:
                return
            target = self.cache.lowest()
            self.cache.copy(sequence.slot, target, sequence.cached)
            self.cache.give_back(sequence.slot)
            sequence.slot = target
            self._decoding = None

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype == torch.float32 else autocast(self.device, self.dtype)

    def _turned(self) -> Tensor | None:
        """[slots]: by how much each row's positions differ from the plain ones; None: no row's do."""
        if not any(sequence.turned for sequence in self.active):
            return None
        found = torch.zeros(max(sequence.slot for sequence in self.active) + 1, dtype=torch.int64)
        for sequence in self.active:
            found[sequence.slot] = sequence.turned
        return found.to(self.device)

    def _forward(self, turned: Tensor | None) -> Forward:
        """A pass over one token a row."""
        weights = self._laid_out()
        if not self._written_in_place:
            return lambda tokens, positions, attend: self.decoder.head(
                self.decoder.hidden(
                    tokens, positions if turned is None else positions + turned, attend, weights=weights
                ),
                weights=weights,
            )
        if self._in_place is None:
            self._in_place = InPlace(self.decoder, weights)
        return self._in_place

    def _laid_out(self) -> DecoderWeights:
        """The weights as a pass reads them, laid out once for each publication."""
        if self._weights is None:
            self._weights = self._packed(self.decoder) if self._written_in_place else self.decoder.weights()
        return self._weights
