"""Images on their way into a vision model of `transformers`: what its body is given in place of their tokens.

A picture is seen alone, whatever stands beside it in a pass: engine and learner compute the same of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from toolwright import images
from toolwright.batch import Batch
from toolwright.models.attention import PackedAttention
from toolwright.models.folder import first_line
from toolwright.models.image_reader import ImageReader
from toolwright.trajectory import SeenImage

if TYPE_CHECKING:
    from toolwright.models.own_forward import OwnForward

# A picture of 2 × 2 pixels and one of 3 × 1, on which a model's vision is tried when it is loaded.
PROBES = (
    bytes.fromhex(
        "424d460000000000000036000000280000000200000002000000010018000000000010000000130b0000130b0000000000000000"
        "00000000ff00ff000000ff0000ffffff0000"
    ),
    bytes.fromhex(
        "424d42000000000000003600000028000000030000000100000001001800000000000c000000130b0000130b0000000000000000"
        "0000ff8000102030404040000000"
    ),
)


class ImageRow(NamedTuple):
    """A sequence with images in it."""

    images: list[tuple[str, Tensor]]  # data URL, and where in the sequence its vectors stand
    turned: Tensor | None  # [3, tokens]: the positions that rotate keys, where those are not the plain ones


@dataclass(frozen=True)
class VisionInputs:
    """The images that a pass sees beside its tokens."""

    places: Tensor  # [image tokens] int64, in the pass, in order
    vectors: Tensor  # [1 + layers, image tokens, width]: in place of tokens, and added after the first layers
    turned: Tensor | None  # [3, tokens of the pass]

    def body_arguments(self, said: Tensor, positions: Tensor) -> dict[str, Any]:
        """What a text model is given in place of tokens, whose vectors are `said`, and plain positions."""
        vectors = self.vectors.to(said.dtype)
        turned = positions[None] if self.turned is None else self.turned[:, None]
        shown = said.index_copy(0, self.places, vectors[0])[None]
        found: dict[str, Any] = {"inputs_embeds": shown, "position_ids": turned}
        if len(vectors) > 1:  # DeepStack, arXiv 2406.04334
            there = torch.zeros(1, len(said), dtype=torch.bool, device=said.device)
            there[0, self.places] = True
            found |= {"visual_pos_masks": there, "deepstack_visual_embeds": list(vectors[1:])}
        return found


def locate_images(decoder: OwnForward, tokens: Tensor, seen: Sequence[SeenImage]) -> ImageRow:
    """The places of the images in a sequence: their tokens in the segments that they belong to, in order. A
    token of this kind that the policy sampled is none of them."""
    reader = decoder.reader
    assert reader is not None
    of_image = torch.zeros(len(tokens), dtype=torch.bool)
    for start, stop, _ in seen:
        of_image[start:stop] = True
    of_image &= tokens.cpu() == reader.token
    counts = [reader.tokens(url) for _, _, url in seen]
    places = of_image.nonzero()[:, 0]
    if len(places) != sum(counts):
        raise ValueError(f"{len(seen)} images take {sum(counts)} tokens, and there are {len(places)}")
    parts = zip(seen, places.split(counts), strict=True)
    return ImageRow([(url, part) for (_, _, url), part in parts], _turned(decoder, tokens, of_image, seen))


def _turned(
    decoder: OwnForward, tokens: Tensor, of_image: Tensor, seen: Sequence[SeenImage]
) -> Tensor | None:
    """Positions in three axes, by the model's own rule (M-RoPE, arXiv 2409.12191); None: it has none."""
    if not decoder.three_axes:
        return None
    assert decoder.reader is not None
    grids = torch.cat([decoder.reader.numbers(url)["image_grid_thw"] for _, _, url in seen])
    found, _ = decoder.model.base_model.get_rope_index(
        tokens.cpu()[None], mm_token_type_ids=of_image[None].int(), image_grid_thw=grids
    )
    turned: Tensor = found[:, 0]
    return turned


def vectors_of(decoder: OwnForward, url: str) -> Tensor:
    """[1 + layers, image tokens, width]: what the model's vision makes of one image, and what it adds after
    each of the first layers."""
    assert decoder.reader is not None
    numbers = {key: value.to(decoder.device) for key, value in decoder.reader.numbers(url).items()}
    seen = decoder.model.get_image_features(**numbers, return_dict=True)
    every = [seen.pooler_output, *(getattr(seen, "deepstack_features", None) or ())]
    return torch.stack([torch.cat(list(one)) if isinstance(one, list | tuple) else one for one in every])


def vision_of(
    decoder: OwnForward, rows: Sequence[tuple[ImageRow, Tensor]], positions: Tensor
) -> VisionInputs:
    """Of a pass with plain `positions` [tokens]. With each row goes where in the pass each of its tokens
    stands, -1 for those that are not in it. An image that several rows show is seen once."""
    known: dict[str, Tensor] = {}
    places, vectors = [], []
    turned = positions.cpu().expand(3, -1).clone() if decoder.three_axes else None
    for row, where in rows:
        if turned is not None and row.turned is not None:
            inside = where >= 0
            turned[:, where[inside]] = row.turned[:, inside]
        for url, own in row.images:
            there = where[own] >= 0
            if not bool(there.any()):
                continue
            if url not in known:
                known[url] = vectors_of(decoder, url)
            places.append(where[own][there])
            vectors.append(known[url][:, there.to(decoder.device)])
    device = decoder.device
    none = torch.empty(1, 0, decoder.shape.width, device=device)
    return VisionInputs(
        torch.cat([torch.empty(0, dtype=torch.int64), *places]).to(device),
        torch.cat(vectors, dim=1) if vectors else none,
        None if turned is None else turned.to(device),
    )


def vision_of_batch(decoder: OwnForward, batch: Batch, packed: PackedAttention) -> VisionInputs:
    """The images of the learner's pass over packed sequences."""
    computed = torch.zeros(len(batch.tokens), dtype=torch.bool)
    computed[packed.kept] = True
    where = torch.where(computed, packed.where, -1)
    rows, start = [], 0
    for length, seen in zip(batch.lengths, batch.images, strict=True):
        stop = start + length
        if seen:
            rows.append((locate_images(decoder, batch.tokens[start:stop], seen), where[start:stop]))
        start = stop
    return vision_of(decoder, rows, packed.positions)


class VisionProbe:
    """Sequences with a picture each, and what the model itself says of them."""

    def __init__(self, model: Any, reader: ImageReader, vocab: int) -> None:
        urls = [images.data_url(content) for content in PROBES]
        text = [token for token in range(vocab) if token != reader.token][:8]
        self.rows, self.logits = [], []
        for url in urls:
            count = reader.tokens(url)
            tokens = torch.tensor([*text[:3], *[reader.token] * count, *text[3:]])
            self.rows.append((tokens, [(0, len(tokens), url)]))
            kinds = {"mm_token_type_ids": (tokens == reader.token).int()[None]} if has_turns(model) else {}
            out = model(input_ids=tokens[None], use_cache=False, **reader.numbers(url), **kinds)
            self.logits.append(out.logits[0])

    def agrees(self, decoder: OwnForward) -> bool:
        """True if the model by its parts, in one pass, says what it says of each sequence as a whole."""
        lengths = [len(tokens) for tokens, _ in self.rows]
        attend = PackedAttention(lengths, decoder.device)
        starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
        rows = [
            (locate_images(decoder, tokens, seen), start + torch.arange(len(tokens)))
            for (tokens, seen), start in zip(self.rows, starts, strict=True)
        ]
        vision = vision_of(decoder, rows, attend.positions)
        tokens = torch.cat([tokens for tokens, _ in self.rows])
        found = decoder.head(decoder(tokens, attend.positions, attend, vision=vision))
        return torch.allclose(found, torch.cat(self.logits), rtol=1e-3, atol=1e-3)


def has_turns(model: Any) -> bool:
    return hasattr(model.base_model, "get_rope_index")


@torch.no_grad()
def vision_probe(model: Any, reader: ImageReader | None, vocab: int) -> VisionProbe | str:
    """The probe of a model's vision, or the reason why the model cannot take images."""
    if reader is None:
        return "its folder has no image_token_id in config.json, or no preprocessor_config.json"
    try:
        return VisionProbe(model.eval(), reader, vocab)
    except Exception as error:  # whatever a stranger's code raises
        return first_line(error)


@torch.no_grad()
def enable_vision(decoder: OwnForward, reader: ImageReader | None, probe: VisionProbe | str) -> None:
    """Let the decoder take images, if it then says what the model itself says."""
    if isinstance(probe, str) or decoder.handed is None:
        decoder.no_vision_because = probe if isinstance(probe, str) else "its attention cannot be handed in"
        return
    decoder.reader = reader
    try:
        if probe.agrees(decoder):
            return
        decoder.no_vision_because = "its vision gives other numbers by its parts than as a whole"
    except Exception as error:  # a model that was not made for it may fail in any way
        decoder.no_vision_because = f"its vision cannot be run by its parts: {first_line(error)}"
    decoder.reader = None
