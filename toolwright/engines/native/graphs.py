"""The native engine on a GPU: decoding as replayed graphs, sampling and ends found without asking the host.

A step of all rows is one graph, made once for each of a few numbers of rows and replayed. A table says where
the pages of each row's sequence are; the host writes it before a chunk of steps, for as far as they can get.
Whoever ends stands still until the host looks, once in a chunk, and refills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.batch import sent
from toolwright.config import schema
from toolwright.engines import SampledToken
from toolwright.engines.native.engine import ActiveTurn, NativeEngine
from toolwright.engines.native.paged_cache import PagedCache
from toolwright.failures import UserError
from toolwright.models.decoder import Decoder, DecoderWeights, Layer
from toolwright.models.kernels.decoding import KEYS, attend, place
from toolwright.models.kernels.flash import FlashAttention, Layout, attend_packed
from toolwright.models.kernels.sampling import Rows, draw, filtered, log_softmax
from toolwright.models.layer import LayerWeights
from toolwright.models.tokenizer import Tokenizer

CHUNK = 16  # steps between two looks of the host
TOP = 20  # of the likeliest tokens, if any row asks for them: what OpenAI's protocol may ask for
SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # rows of a graph
STILL_GOING = 0.6  # of a chunk's rows, for the next to be worth starting before the host has looked
POLL_S = 0.0003


class Kind(NamedTuple):
    """The properties that a recorded graph is made for."""

    rows: int
    filters: bool  # whether top-p or top-k leave anything out
    top: int  # of the likeliest tokens, returned beside each sampled one


@dataclass(frozen=True)
class SampledSteps:
    """Tokens that the device sampled, [steps, rows], and the likeliest ones, [steps, rows, top]."""

    tokens: Tensor
    log_probs: Tensor
    best: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class DecodedChunk:
    """Steps that the device is computing, and where their sampled tokens will be."""

    sequences: list[ActiveTurn]
    kind: Kind
    steps: int
    left: int  # of the row that had most, before these steps
    sampled: SampledSteps
    done: torch.cuda.Event


class GraphEngine(NativeEngine):
    takes_schemas = False  # a graph draws many tokens before the host sees one
    cache: PagedCache

    def __init__(
        self, config: schema.EngineConfig, *, decoder: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
    ) -> None:
        super().__init__(config, decoder=decoder, tokenizer=tokenizer, dtype=dtype)
        if self.cache.page_tokens % KEYS:
            raise UserError(
                f"engine.params.page_tokens={self.cache.page_tokens}: a multiple of {KEYS} is needed"
            )
        slots = self.cache.slots
        sizes = [size for size in SIZES if size < slots]
        self.sizes = [*sizes, next((size for size in SIZES if size >= slots), slots)]
        most, device = self.sizes[-1], self.device
        ends = sorted(tokenizer.end_tokens) or [-1]
        integers = torch.zeros(4, most, dtype=torch.int64, device=device)
        self.state = integers  # written by the host in one go
        # One column more: the page after the last is fetched too. Page 0 is that of rows that are nobody's.
        self.table = torch.zeros(most, self.cache.width + 1, dtype=torch.int32, device=device)
        self.columns = 0  # of the table that the present rows may look at
        self.heat = torch.zeros(3, most, dtype=torch.float32, device=device)
        self.rows = Rows(
            tokens=integers[0],
            positions=integers[1],
            left=integers[2],
            seeds=integers[3],
            temperature=self.heat[0],
            ends=torch.tensor(ends, device=device),
            step=torch.zeros(1, dtype=torch.int64, device=device),
            drawn=torch.empty(CHUNK, most, dtype=torch.int64, device=device),
            log_probs=torch.empty(CHUNK, most, dtype=torch.float32, device=device),
        )
        self.best: dict[int, tuple[Tensor, Tensor]] = {}  # by how many of them are returned
        self._graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._copies: DecoderWeights | None = None
        self._closing: dict[tuple[str, ...], frozenset[int] | None] = {}

    async def _run(self) -> None:
        """While the host reads what one chunk has drawn, the device is at the next: whoever has ended there
        stands still, and what is drawn of a turn that the host has ended is thrown away."""
        flying: DecodedChunk | None = None
        try:
            while self.waiting or self.reading or self.active or flying:
                if flying is None:
                    self._drop_cancelled()
                    self._admit()
                    if self.reading:
                        self._read()
                    flying = self._launch() if self.active else None
                ahead = self._launch(after=flying) if flying and self._worthwhile(flying) else None
                if flying is not None:
                    await self._collect(flying)
                flying = ahead
                await self._let_agents_run()
        except Exception as error:
            self._fail(error)

    @torch.inference_mode()
    def _prefill(self, leaders: list[ActiveTurn]) -> None:
        """Prompts laid end to end, without padding; what is cached already is looked back on."""
        starts = [leader.cached for leader in leaders]
        ends = [leader.cached + self._piece(leader) for leader in leaders]
        extend = PackedExtend(self.cache, [leader.slot for leader in leaders], starts, ends)
        spans = zip(leaders, starts, ends, strict=True)
        tokens = [token for leader, start, end in spans for token in leader.tokens[start:end]]
        weights = self._laid_out()
        given = torch.tensor(tokens, device=self.device)
        hidden = self.decoder.hidden(given, extend.positions, extend, weights=weights)
        rows = self._whole(leaders, ends)
        if not rows:
            return
        last = extend.layout.queries[1:] - 1
        if len(rows) < len(leaders):
            last = last[sent(torch.tensor(rows), self.device)]
        logits = self.decoder.head(hidden.index_select(0, last), weights=weights)
        members, of_family = self._families([leaders[row] for row in rows])
        self._draw(logits.index_select(0, of_family), self._stand(members), kind := self._kind(members))
        sampled = self._fetch(1, len(members), kind.top)
        torch.cuda.current_stream().synchronize()
        self.active += self._distribute(members, sampled)

    @torch.inference_mode()
    def _launch(self, after: DecodedChunk | None = None) -> DecodedChunk | None:
        """A chunk of steps for all active sequences, or one more for those of the chunk before.
        None: there is no memory to go on with."""
        if after is None:
            self._laid_out()
            self._grow(self.cache, 2 * CHUNK)  # as many as two chunks take that follow each other
            if not self.active:
                return None
            sequences = list(self.active)
            kind = self._kind(sequences, next(size for size in self.sizes if size >= len(sequences)))
            if kind not in self._graphs:
                self._graphs[kind] = self._capture(kind)
            self._stand(sequences, kind.rows)
            self.columns = 0  # rows are others' now
            self._send_table(sequences, kind.rows)
            left = max(self._left(sequence) for sequence in sequences)
        else:
            sequences, kind, left = after.sequences, after.kind, after.left - after.steps
            if not self._grow_ahead(sequences, after.steps + min(CHUNK, left), kind.rows):
                return None
            self.rows.step.zero_()
        steps, graph = min(CHUNK, left), self._graphs[kind]
        for _ in range(steps):
            graph.replay()
        sampled = self._fetch(steps, len(sequences), kind.top)
        done = torch.cuda.Event()
        done.record()
        return DecodedChunk(sequences, kind, steps, left, sampled, done)

    def _needed(self, sequence: ActiveTurn, steps: int) -> int:
        """No more than the sequence may draw."""
        return len(sequence.tokens) - 1 + min(steps, self._left(sequence))

    def _grow_ahead(self, sequences: Sequence[ActiveTurn], steps: int, rows: int) -> bool:
        """Reserve pages for `steps` steps beyond those the host knows of, while the device still computes. No
        sequence is suspended for it. A row whose sequence has ended writes to the page that belongs to
        nobody, since its own pages may be reused."""
        going = [s for s in sequences if s.slot >= 0 and self.cache.held[s.slot]]
        short = [s for s in going if s.room < self._needed(s, steps)]
        for sequence in short:
            if not self.cache.reserve(sequence.slot, self._needed(sequence, steps)):
                return False
            sequence.room = self.cache.room_of(sequence.slot)
        if short:
            self._send_table(sequences, rows)
        return True

    def _send_table(self, sequences: Sequence[ActiveTurn], rows: int) -> None:
        """Send the pages of the first rows; those up to `rows` have none. A row that stands still may be
        one token behind its last page, and one whose sequence is over wherever that had pages: there the
        table must say 0, and not what it said before."""
        slots = [sequence.slot for sequence in sequences]
        width = max(len(self.cache.held[slot]) for slot in slots)
        self.columns = min(max(self.columns, width + 1), self.table.shape[1])
        pages = torch.zeros(rows, self.columns, dtype=torch.int32)
        pages[: len(slots), :width] = self.cache.pages_of(slots, width)
        self.table[:rows, : self.columns] = sent(pages, self.device)

    def _kind(self, sequences: Sequence[ActiveTurn], rows: int | None = None) -> Kind:
        filters = any(s.sampling.top_p < 1 or s.sampling.top_k > 0 for s in sequences)
        most = max((s.sampling.top for s in sequences), default=0)
        return Kind(
            rows or len(sequences), filters, min(max(most, TOP), self.decoder.shape.vocab) if most else 0
        )

    def _fetch(self, steps: int, rows: int, top: int) -> SampledSteps:
        """Start the copy of sampled steps to the host."""
        kept = (self.rows.drawn, self.rows.log_probs, *(self.best[top] if top else ()))
        drawn, log_probs, *best = (x[:steps, :rows].to("cpu", non_blocking=True) for x in kept)
        return SampledSteps(drawn, log_probs, (best[0], best[1]) if best else None)

    def _worthwhile(self, flying: DecodedChunk) -> bool:
        """True if decoding should go on with the same rows: most are still active, and no waiting turn could
        take a place."""
        if flying.left <= flying.steps or self.reading:
            return False
        if self.waiting and self.cache.could_take(len(self.waiting[0].tokens), spare=self._under_way()):
            return False
        going = sum(not sequence.done.done() for sequence in flying.sequences)
        return going > STILL_GOING * len(flying.sequences)

    async def _collect(self, chunk: DecodedChunk) -> None:
        while not chunk.done.query():
            await asyncio.sleep(POLL_S)
        before = set(map(id, self.active))
        sequences = [s if id(s) in before else None for s in chunk.sequences]
        self.active = self._distribute(sequences, chunk.sampled)

    def _left(self, sequence: ActiveTurn) -> int:
        """Tokens it may still draw."""
        drawn = len(sequence.log_probs)
        return min(sequence.sampling.max_tokens - drawn, self.context - len(sequence.tokens))

    def _stand(self, sequences: Sequence[ActiveTurn], size: int | None = None) -> Rows:
        """The first rows stand for these sequences, and up to `size` for nobody."""
        size = size or len(sequences)
        idle = [0] * (size - len(sequences))
        numbers = [
            [s.tokens[-1] for s in sequences] + idle,
            [len(s.tokens) - 1 for s in sequences] + idle,
            [self._left(s) for s in sequences] + idle,
            [s.sampling.seed % 2**63 for s in sequences] + idle,
        ]
        heat = [
            [s.sampling.temperature for s in sequences] + idle,
            [s.sampling.top_p for s in sequences] + [1] * len(idle),
            [float(s.sampling.top_k) for s in sequences] + idle,
        ]
        self.state[:, :size] = torch.tensor(numbers, dtype=torch.int64).to(self.device)
        self.heat[:, :size] = torch.tensor(heat, dtype=torch.float32).to(self.device)
        self.rows.step.zero_()
        return self.rows[:size]

    def _distribute(self, sequences: Sequence[ActiveTurn | None], sampled: SampledSteps) -> list[ActiveTurn]:
        """Give each sequence the tokens of its row. Answer those that end, and return the others. None stands
        for a sequence that was over already."""
        going_on = []
        of_rows = (sampled.tokens.t().tolist(), sampled.log_probs.t().tolist())
        for row, (sequence, tokens, likely) in enumerate(zip(sequences, *of_rows, strict=True)):
            if sequence is None:
                continue
            stop = self._take(sequence, tokens, likely, _best(sampled, row, sequence.sampling.top))
            sequence.cached = len(sequence.tokens) - 1
            if stop is None:
                going_on.append(sequence)
            else:
                self._finish(sequence, stop)
        return going_on

    def _take(
        self,
        sequence: ActiveTurn,
        drawn: Sequence[int],
        log_probs: Sequence[float],
        best: Sequence[tuple[tuple[int, float], ...]],
    ) -> str | None:
        """Append sampled tokens up to the end of the turn. -1 marks steps after the row had stopped."""
        if drawn[-1] < 0:
            drawn = drawn[: drawn.index(-1)]
        closing = self._closing_tokens(sequence.sampling.stop)
        for step, (token, log_prob) in enumerate(zip(drawn, log_probs, strict=False)):
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            if best:
                sequence.top.append(best[step])
            if sequence.on_token is not None:
                sequence.on_token(SampledToken(token, log_prob, best[step] if best else ()))
            if closing is None or token in closing:
                stop = self._stop(sequence, token)
                if stop is not None:
                    return stop
        return self._stop(sequence, sequence.tokens[-1])

    def _closing_tokens(self, stops: tuple[str, ...]) -> frozenset[int] | None:
        """The tokens that can complete one of these strings; None: any may."""
        if stops not in self._closing:
            last = {text[-1] for text in stops}
            plain = all(mark.isascii() and mark.isprintable() and not mark.isspace() for mark in last)
            texts = ((i, self.tokenizer.decode([i])) for i in range(self.tokenizer.size)) if plain else ()
            found = frozenset(i for i, text in texts if any(mark in text for mark in last))
            self._closing[stops] = found if plain else None
        return self._closing[stops]

    def _capture(self, kind: Kind) -> torch.cuda.CUDAGraph:
        """A step of its rows, done once for nobody so that every kernel is there, then recorded."""
        self._stand([], kind.rows)
        self.table[: kind.rows] = 0
        rows = self.rows[: kind.rows]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(rows, kind)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._step(rows, kind)
        return graph

    def _step(self, rows: Rows, kind: Kind) -> None:
        weights = self._copies
        assert weights is not None
        table, positions = self.table[: len(rows.tokens)], rows.positions

        def put(index: int, flat: Tensor, w: LayerWeights, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            keys, values = self.cache.keys[index], self.cache.values[index]
            turns = self.decoder.turns
            q = place(flat, w.qk_norm, w.norm_eps, turns, positions, table, keys, values, w.heads)
            return q, keys, values

        def look(index: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend(q, keys, values, positions, table)

        hidden = self.decoder.hidden(rows.tokens, positions, look, weights=weights, split=put)
        self._draw(self.decoder.head(hidden, weights=weights), rows, kind)

    def _draw(self, logits: Tensor, rows: Rows, kind: Kind) -> None:
        if kind.top:
            self._look_around(logits, rows, kind.top)
        if kind.filters:
            top_p, top_k = self.heat[1:, : len(logits), None]
            draw(filtered(logits, rows.temperature, top_p, top_k), rows, whole=logits)
        else:
            draw(logits, rows)

    def _look_around(self, logits: Tensor, rows: Rows, top: int) -> None:
        """The likeliest tokens, to where this step's are kept."""
        if top not in self.best:
            size = (CHUNK, self.sizes[-1], top)
            self.best[top] = (
                torch.empty(size, dtype=torch.int64, device=self.device),
                torch.empty(size, dtype=torch.float32, device=self.device),
            )
        values, tokens = log_softmax(logits, rows.temperature).topk(top, dim=-1)
        for kept, found in zip(self.best[top], (tokens, values), strict=True):
            kept[:, : len(logits)].index_copy_(0, rows.step, found[None])

    def _laid_out(self) -> DecoderWeights:
        """Weights in the engine's precision, always in the same place: graphs know no other. What the learner
        keeps in that precision is read where it is; of the rest there are copies."""
        if self._weights is None:
            with torch.no_grad():
                if self._copies is None:
                    parts = [_mapped(part, self._copied, name) for name, part in self._current()]
                    self._copies = DecoderWeights(parts[0], parts[3:], parts[1], parts[2])
                else:
                    for kept, (_, current) in zip(_parts(self._copies), self._current(), strict=True):
                        _copy(kept, current)
            self._weights = self._copies
        assert self._copies is not None
        return self._copies

    def _current(self) -> Iterator[tuple[str, Any]]:
        """The decoder's weights in parts, with their names: an adapter's sums are gone with their layer."""
        decoder = self.decoder
        yield from (("embedding", decoder.embedding.weight), ("norm", decoder.norm))
        yield "unembedding", decoder.unembedding.weight.t()
        for one in decoder.layers:
            assert isinstance(one, Layer)
            yield "", one.weights(torch.t)

    def _copied(self, name: str, weight: Tensor) -> Tensor:
        """Gains of norms stay as precise as the learner has them."""
        if "norm" in name:
            return weight.clone()
        return weight if weight.dtype == self.dtype else weight.to(self.dtype)


class PackedExtend:
    """Attention of new tokens, packed end to end, that are written to the cache and look back on it."""

    def __init__(
        self, cache: PagedCache, slots: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        fresh = [end - start for start, end in zip(starts, ends, strict=True)]
        self.cache, self.layout = cache, Layout.of(fresh, ends, cache.keys.device)
        self.page, self.place, self.positions = cache.cells(slots, starts, ends)
        self.back = None if not any(starts) else cache.cells(slots, [0] * len(slots), ends)[:2]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.page, :, self.place] = k
        values[self.page, :, self.place] = v
        if self.back is not None:
            page, place = self.back
            k, v = keys[page, :, place], values[page, :, place]
        return attend_packed(q, k, v, FlashAttention(self.layout))


def _best(sampled: SampledSteps, row: int, top: int) -> list[tuple[tuple[int, float], ...]]:
    """The likeliest tokens of a row at each step, best first."""
    if sampled.best is None or not top:
        return []
    tokens, values = (x[:, row, :top].tolist() for x in sampled.best)
    return [tuple(zip(*step, strict=True)) for step in zip(tokens, values, strict=True)]


def _mapped(tree: Any, change: Callable[[str, Tensor], Any], name: str = "") -> Any:
    """A tensor or a layer's weights with every tensor changed, by its name."""
    if isinstance(tree, Tensor):
        return change(name, tree)
    if isinstance(tree, LayerWeights):
        return LayerWeights(**{key: _mapped(x, change, key) for key, x in tree._asdict().items()})
    return tree


def _parts(weights: DecoderWeights) -> list[Any]:
    """The parts of the weights, in the order of `_current`."""
    return [weights.embedding, weights.norm, weights.unembedding, *weights.layers]


def _copy(kept: Any, current: Any) -> None:
    """Into the places of a layer's weights or of one tensor, unless they are the same."""
    pairs = zip(kept, current, strict=True) if isinstance(kept, LayerWeights) else ((kept, current),)
    moved = [
        (to, new)
        for to, new in pairs
        if isinstance(to, Tensor) and isinstance(new, Tensor) and to.data_ptr() != new.data_ptr()
    ]
    if moved:
        torch._foreach_copy_([to for to, _ in moved], [new for _, new in moved])
