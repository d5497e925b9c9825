"""Reads images for a vision model: the text that stands for each in a prompt, and the numbers it sees.

The numbers are those of the image processor of `transformers` in its Pillow form, which needs no torchvision.
The text is written here, because the library's own processors ask for what videos need as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolwright import images
from toolwright.failures import UserError
from toolwright.models.folder import foreign_code, quiet_transformers, read_json

FILES = ("preprocessor_config.json", "processor_config.json")
KEPT_BYTES = 1 << 29  # of numbers that are kept for the next pass over the same image
FAKE, WHOLE = "<fake_token_around_image>", "<global-img>"  # around a tile, and before the picture as a whole


class ImageReader:
    """The image reader of one model folder. `placeholder` is the token that the chat template writes for an
    image, `token` its number."""

    def __init__(self, folder: Path, *, token: int, placeholder: str) -> None:
        self.folder, self.token, self.placeholder = folder, token, placeholder
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()

    @classmethod
    def of(
        cls, folder: Path, token_of: Callable[[int], str | None] = lambda _: "<image>"
    ) -> ImageReader | None:
        """None for a model without vision. `token_of`: a token's text by its number, for who writes."""
        config = read_json(folder / "config.json")
        token = config.get("image_token_id", config.get("image_token_index"))
        if not isinstance(token, int) or not any((folder / name).is_file() for name in FILES):
            return None
        placeholder = token_of(token)
        return None if placeholder is None else cls(folder, token=token, placeholder=placeholder)

    def __deepcopy__(self, memo: dict[int, Any]) -> ImageReader:
        """Copies of a model read images alike."""
        return self

    @cached_property
    def processor(self) -> Any:
        transformers = quiet_transformers()
        with foreign_code(f"transformers cannot build the image processor of {self.folder}"):
            return transformers.AutoImageProcessor.from_pretrained(self.folder, backend="pil")

    @cached_property
    def tiled(self) -> bool:
        """Idefics3's way: a large image is cut into tiles. Else Qwen's: as many tokens as it has patches."""
        if hasattr(self.processor, "merge_size"):
            return False
        if hasattr(self.processor, "do_image_splitting") and self._tile_tokens:
            return True
        raise UserError(
            f"{self.folder}: images of this model are not supported: its image processor is a "
            f"{type(self.processor).__name__}; Qwen2-VL to Qwen3-VL, Idefics3 and SmolVLM are supported"
        )

    @cached_property
    def _tile_tokens(self) -> int:
        config = read_json(self.folder / "config.json")
        vision = config.get("vision_config") or {}
        side = int(vision.get("image_size", 0)) // int(vision.get("patch_size", 1))
        return side**2 // int(config.get("scale_factor", 2)) ** 2

    def written(self, url: str) -> str:
        """Return the text that stands in a prompt for this image: one placeholder for each vector that is
        put there."""
        if not self.tiled:
            return self.placeholder * self.tokens(url)
        _, rows, columns = self._patches(url)
        tile = self.placeholder * self._tile_tokens
        lines = [
            "".join(f"{FAKE}<row_{row}_col_{column}>{tile}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        ]
        return "".join(lines) + ("\n" if lines else "") + FAKE + WHOLE + tile + FAKE

    def tokens(self, url: str) -> int:
        """The number of vectors that stand in a prompt for this image."""
        patches = self._patches(url)
        if not self.tiled:
            return int(patches // self.processor.merge_size**2)
        _, rows, columns = patches
        return int(rows * columns + 1) * self._tile_tokens

    def _patches(self, url: str) -> Any:
        width, height = images.size_of(url)
        try:
            return self.processor.get_number_of_image_patches(height, width)
        except ValueError as error:  # a strip of a pixel's height, say
            raise UserError(f"image {images.name_of(url)} of {width} × {height}: {error}") from None

    def expanded(self, text: str, urls: Sequence[str]) -> str:
        """A rendered text with each of its placeholders replaced by what is written for its image."""
        pieces = text.split(self.placeholder)
        if len(pieces) != len(urls) + 1:
            raise UserError(
                f"the chat template wrote {len(pieces) - 1} times {self.placeholder} for {len(urls)} images; "
                "it must write it once for each part of type image"
            )
        return pieces[0] + "".join(
            self.written(url) + piece for url, piece in zip(urls, pieces[1:], strict=True)
        )

    def numbers(self, url: str) -> dict[str, Any]:
        """Return the tensors that the model's vision is given. The last images are kept."""
        name = images.name_of(url)
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        import torch

        with torch.inference_mode(False):  # an engine's numbers are read by the learner as well
            found = self.processor(images=[images.opened(url)], return_tensors="pt")
        tensors = self._kept[name] = dict(found)
        while len(self._kept) > 1 and self._bytes() > KEPT_BYTES:
            self._kept.popitem(last=False)
        return tensors

    def _bytes(self) -> int:
        return sum(tensor.nbytes for one in self._kept.values() for tensor in one.values())
