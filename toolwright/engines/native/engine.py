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

from toolwright.batch import partition, sent
from toolwright.config import schema
from toolwright.engines import Completion, SampledToken, Sampling, TokenCallback
from toolwright.engines.constraint import ConstrainedSampling
from toolwright.engines.native import agreement
from toolwright.engines.native.cache import SlotCache
from toolwright.engines.native.decoding import DecodingBatch, Forward, InPlace, PackedWeights
from toolwright.engines.native.paged_cache import PagedCache, new_cache
from toolwright.engines.native.sampler import Sampler
from toolwright.engines.turns import check_prompt, stopped, turn_of
from toolwright.failures import InfrastructureFailure
from toolwright.models.decoder import Decoder, DecoderWeights
from toolwright.models.own_forward import vision_model
from toolwright.models.precision import autocast
from toolwright.models.products import fixed
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.vision import VisionInputs, locate_images, vision_of
from toolwright.trajectory import SeenImage

# Of prompts computed in one pass, padding counted: bounds the memory of it. Of a longer prompt so many are
# computed before sequences that are decoding go on.
PREFILL_TOKENS = 8_192
# Of the event loop between two passes. A request needs two from its socket to the engine, a tool call of our
# own agents as many: with one turn alone, each would wait for a pass that it could have been part of.
LOOP_TURNS = 4


@dataclass(eq=False)
class ActiveTurn:
    """A turn that is being decoded."""

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
    room: int = 0  # tokens that it has memory for
    waits_for: int | None = None  # a page of its opening that another sequence has yet to compute
    followers: list[ActiveTurn] = field(default_factory=list)  # that have the same prompt, read with this one
    arrival: int = 0
    version: int = 0  # of the weights they were computed with, the first of them at least
    images: Sequence[SeenImage] = ()
    turned: int = 0  # by how much the positions that rotate keys differ from the plain ones, after images

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class NativeEngine:
    """Slots that refill as sequences end; each turn advances by itself, none waits for its neighbours."""

    takes_weights = takes_schemas = True

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
        self.cache = self._make_cache(config)
        self.waiting: deque[ActiveTurn] = deque()
        self.reading: list[ActiveTurn] = []  # admitted, their prompts not wholly computed
        self.active: list[ActiveTurn] = []
        self.arrivals = self.suspended = 0
        self.weights_version = 0
        self._pump: asyncio.Task[None] | None = None
        self._decoding: DecodingBatch | None = None
        self._weights: DecoderWeights | None = None
        self._in_place: InPlace | None = None
        self._packed = PackedWeights()

    def _make_cache(self, config: schema.EngineConfig) -> SlotCache | PagedCache:
        return new_cache(config, self.decoder.shape, dtype=self.dtype, device=self.device)

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
            vision_model(self.decoder)
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        sequence = ActiveTurn(attempt, list(prompt), len(prompt), sampling, done, on_token, images=images)
        self.arrivals += 1
        sequence.arrival = self.arrivals
        self.waiting.append(sequence)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await turn_of(attempt, done, who="the native engine", limit_s=self.timeout_s)

    def release(self, attempt: str) -> None:
        self.cache.release(attempt)

    def cache_use(self) -> dict[str, float]:
        """Report the use of the cache since the last call; nothing where it is not in pages."""
        if isinstance(self.cache, SlotCache):
            return {}
        suspended, self.suspended = self.suspended, 0
        return {**self.cache.use(), "use/cache_suspended": suspended}

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
            while self.waiting or self.reading or self.active:
                self._drop_cancelled()
                if self.waiting:
                    self._admit()
                if self.reading:
                    self._read()
                if self.active:
                    self._decode()
                await self._let_agents_run()
        except Exception as error:
            self._fail(error)

    async def _let_agents_run(self) -> None:
        """Let them read what ended, call tools, and ask for more."""
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)

    def _fail(self, error: Exception) -> None:
        """Nobody is left waiting: every sequence is answered with the error, every slot is free again."""
        read_together = [one for leader in self.reading for one in (leader, *leader.followers)]
        for sequence in [*self.active, *read_together, *self.waiting]:
            if not sequence.done.done():
                sequence.done.set_exception(error)
        self.active.clear()
        self.reading.clear()
        self.waiting.clear()
        self.cache.clear()
        self._decoding = None

    def _drop_cancelled(self) -> None:
        """Drop the cancelled turns. A prompt that is being read is read on, as others may have pages
        of it."""
        for sequence in [s for s in self.active if s.done.done()]:
            self.active.remove(sequence)
            self.cache.give_back(sequence.slot)
            self._decoding = None

    def _admit(self) -> None:
        """Give waiting sequences a slot. Attempts at one task share its prompt, which is computed once."""
        leaders: dict[Any, ActiveTurn] = {}
        under_way = self._under_way()  # each of them will want another page
        while self.waiting and self.cache.has_slot:
            sequence = self.waiting[0]
            if sequence.done.done():
                self.waiting.popleft()
                continue
            key = (tuple(sequence.tokens), *sequence.images)
            leader = leaders.get(key)
            place = self.cache.take(
                sequence.attempt,
                sequence.tokens,
                leader=None if leader is None else leader.slot,
                shares=not sequence.images,
                spare=under_way,
            )
            if place is None:
                return
            self.waiting.popleft()
            under_way += 1
            sequence.slot, sequence.cached, sequence.waits_for = place.slot, place.cached, place.waits_for
            sequence.room, sequence.version = place.room, self.weights_version
            if leader is not None and not place.kept:
                leader.followers.append(sequence)
                continue
            self.reading.append(sequence)
            if not place.kept:
                leaders[key] = sequence

    def _under_way(self) -> int:
        return len(self.active) + sum(1 + len(leader.followers) for leader in self.reading)

    def _read(self) -> None:
        """Compute what of the admitted prompts is not cached; of a long one a part, if others decode."""
        left = list(self.reading)
        if self.active:
            long = [s for s in left if self._piece(s) < len(s.tokens) - s.cached]
            later = set(long[1:])
            left = [s for s in left if s not in later]
        while ready := {s for s in left if s.waits_for not in self.cache.unread}:
            chosen = [s for s in left if s in ready]
            left = [s for s in left if s not in ready]
            for part in partition([self._piece(s) for s in chosen], PREFILL_TOKENS):
                self._prefill([chosen[i] for i in part])

    def _piece(self, sequence: ActiveTurn) -> int:
        """The number of prompt tokens that the next pass computes. An image is never split."""
        fresh = len(sequence.tokens) - sequence.cached
        return fresh if sequence.images else min(fresh, PREFILL_TOKENS)

    @torch.inference_mode()
    def _prefill(self, leaders: list[ActiveTurn]) -> None:
        ends = [leader.cached + self._piece(leader) for leader in leaders]
        fresh = [leader.tokens[leader.cached : end] for leader, end in zip(leaders, ends, strict=True)]
        width = max(map(len, fresh))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in fresh], device=self.device)
        starts = torch.tensor([leader.cached for leader in leaders], device=self.device)
        positions = starts[:, None] + torch.arange(width, device=self.device)[None]
        attend = self.cache.extending([leader.slot for leader in leaders], positions)
        weights = self._laid_out()
        with self._precision():
            places = attend.positions.flatten()
            if any(leader.images for leader in leaders):
                vision = self._vision(leaders, width, places)
                hidden = vision_model(self.decoder).hidden(tokens.flatten(), places, attend, vision=vision)
            else:
                hidden = self.decoder.hidden(tokens.flatten(), places, attend, weights=weights)
            rows = self._whole(leaders, ends)
            if not rows:
                return
            last = [row * width + len(fresh[row]) - 1 for row in rows]
            chosen = hidden.index_select(0, torch.tensor(last, device=self.device))
            logits = self.decoder.head(chosen, weights=weights)
        members, of_family = self._families([leaders[row] for row in rows])
        sampler = Sampler([member.sampling for member in members], [len(m.tokens) for m in members])
        self.active += self._record(members, *sampler(logits[of_family]), sampler.best)
        self._decoding = None

    def _whole(self, leaders: list[ActiveTurn], ends: list[int]) -> list[int]:
        """Note how far these prompts are computed; return the rows of those that are to their end."""
        for leader, end in zip(leaders, ends, strict=True):
            self.cache.read(leader.slot, leader.cached, end)
            leader.cached = end
        return [row for row, leader in enumerate(leaders) if leader.cached == len(leader.tokens)]

    def _families(self, leaders: list[ActiveTurn]) -> tuple[list[ActiveTurn], Tensor]:
        """Copy each leader's computed prompt to its followers. Returns leaders with followers, and each one's
        leader."""
        members, copied = [], []
        for leader in leaders:
            for follower in leader.followers:
                copied.append((leader.slot, follower.slot, len(leader.tokens)))
                follower.cached, follower.turned = leader.cached, leader.turned
            members += [leader, *leader.followers]
        if copied:
            self.cache.copy_opening(copied)
        of_family = [row for row, leader in enumerate(leaders) for _ in range(1 + len(leader.followers))]
        done = set(leaders)
        for leader in leaders:
            leader.followers = []
        self.reading = [one for one in self.reading if one not in done]
        return members, sent(torch.tensor(of_family), self.device)

    def _vision(self, leaders: list[ActiveTurn], width: int, places: Tensor) -> VisionInputs:
        """The images that a pass over these prompts sees. Images of cached tokens are not encoded again."""
        own, rows = vision_model(self.decoder), []
        for number, leader in enumerate(leaders):
            if not leader.images:
                continue
            tokens = torch.tensor(leader.tokens)
            row = locate_images(own, tokens, leader.images)
            if row.turned is not None:
                leader.turned = int(row.turned.max()) + 1 - len(tokens)
            fresh = torch.arange(len(tokens)) - leader.cached
            rows.append((row, torch.where(fresh >= 0, fresh + number * width, -1)))
        return vision_of(own, rows, places)

    @torch.inference_mode()
    def _decode(self) -> None:
        """Decode one more token of every active sequence."""
        if isinstance(self.cache, PagedCache):
            self._grow(self.cache, 1)
            if not self.active:
                return
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

    def _grow(self, cache: PagedCache, steps: int) -> None:
        """Memory for so many tokens more of every active sequence. Where there is none, the youngest give
        theirs, and are computed again once there is."""
        short = [s for s in self.active if s.room < self._needed(s, steps)]
        for sequence in sorted(short, key=lambda s: s.arrival):
            while sequence.slot >= 0 and not cache.reserve(sequence.slot, self._needed(sequence, steps)):
                self._suspend(cache, max(self.active, key=lambda s: s.arrival))
            if sequence.slot >= 0:
                sequence.room = cache.room_of(sequence.slot)
        if short:
            self._decoding = None

    def _needed(self, sequence: ActiveTurn, steps: int) -> int:
        """The number of tokens with keys and values after `steps` more steps: all but the last."""
        return min(len(sequence.tokens) - 1 + steps, self.context)

    def _suspend(self, cache: PagedCache, sequence: ActiveTurn) -> None:
        shares = not sequence.images and sequence.version == self.weights_version
        self.active.remove(sequence)
        cache.suspend(sequence.slot, sequence.tokens[: sequence.cached], shares=shares)
        sequence.slot, sequence.cached, sequence.room = -1, 0, 0
        self.waiting.appendleft(sequence)
        self.suspended += 1

    def _record(
        self,
        sequences: list[ActiveTurn],
        tokens: Tensor,
        log_probs: Tensor,
        best: list[list[tuple[int, float]]] | None,
    ) -> list[ActiveTurn]:
        """Append the sampled tokens. Turns that end are answered; the others are returned."""
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
            kept = sequence.tokens[: sequence.cached]
            self.cache.park(sequence.slot, sequence.attempt, kept, shares=not sequence.images)
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
            self.cache.move(sequence.slot, target, sequence.cached)
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
