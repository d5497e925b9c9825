"""Images in task files: every form that a row may have, and what is said of those that cannot be."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pictures import picture, url

from toolwright import images
from toolwright.failures import UserError
from toolwright.images import images_in, read_image, text_of
from toolwright.tasks.builtin.file import tasks_of
from toolwright.tasks.rows import write

PNG = picture("red", (8, 6))


def lines(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def asking(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    "value",
    [
        "red.png",
        "file://red.png",
        {"path": "red.png"},
        {"bytes": base64.b64encode(PNG).decode(), "path": None},
        base64.b64encode(PNG).decode(),
        "data:image/png;base64," + base64.b64encode(PNG).decode(),
        "data:text/plain;base64," + base64.b64encode(PNG).decode(),  # what it is, its bytes say
    ],
)
def test_an_image_may_be_written_in_many_ways(tmp_path: Path, value: Any) -> None:
    (tmp_path / "red.png").write_bytes(PNG)
    row = {"prompt": asking({"type": "image", "image": value}, {"type": "text", "text": "what?"})}
    (task,) = tasks_of(lines(tmp_path, row))
    assert images_in(task.prompt) == [images.data_url(PNG)]
    assert task.prompt[0]["content"][1] == {"type": "text", "text": "what?"}


def test_openai_parts_are_read_as_well(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": images.data_url(PNG)}}
    (task,) = tasks_of(lines(tmp_path, {"prompt": asking(part)}))
    assert images_in(task.prompt) == [images.data_url(PNG)]


class TestColumn:
    def test_its_images_stand_where_the_prompt_says_image(self, tmp_path: Path) -> None:
        """As verl's files have it, the bytes in a Parquet file."""
        other = picture("blue", (5, 5))
        row = {
            "prompt": [{"role": "user", "content": "Is <image> or <image> red?"}],
            "images": [{"bytes": PNG, "path": None}, {"bytes": other, "path": None}],
        }
        write(tmp_path / "tasks.parquet", [row])
        (task,) = tasks_of(tmp_path / "tasks.parquet")
        assert images_in(task.prompt) == [images.data_url(PNG), images.data_url(other)]
        assert [part.get("text") for part in task.prompt[0]["content"]] == [
            "Is ",
            None,
            " or ",
            None,
            " red?",
        ]

    def test_parts_without_an_image_take_the_next_one(self, tmp_path: Path) -> None:
        (tmp_path / "red.png").write_bytes(PNG)
        row = {"prompt": asking({"type": "image"}, {"type": "text", "text": "?"}), "images": ["red.png"]}
        (task,) = tasks_of(lines(tmp_path, row))
        assert images_in(task.prompt) == [images.data_url(PNG)]

    def test_too_few_or_too_many_are_named(self, tmp_path: Path) -> None:
        row = {"prompt": "what?", "images": [images.data_url(PNG)]}
        with pytest.raises(UserError, match=r"row 1: it has 1 images, and 0 times <image> in its prompt"):
            tasks_of(lines(tmp_path, row))

    @pytest.mark.parametrize("empty", [None, []])
    def test_a_row_without_images_is_text(self, tmp_path: Path, empty: Any) -> None:
        (task,) = tasks_of(lines(tmp_path, {"prompt": "an <image> of words", "images": empty}))
        assert task.prompt == [{"role": "user", "content": "an <image> of words"}]


class TestRefused:
    def said(self, tmp_path: Path, value: Any) -> str:
        with pytest.raises(UserError) as found:
            tasks_of(lines(tmp_path, {"prompt": asking({"type": "image", "image": value})}))
        assert str(found.value).startswith(
            f"{tmp_path / 'tasks.jsonl'}, row 1: message 1 of `prompt`, part 1"
        )
        return str(found.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert "there is no image file 'none.png'" in self.said(tmp_path, "none.png")

    @pytest.mark.parametrize("content", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"words", b""])
    def test_a_file_that_is_no_image(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "odd.png").write_bytes(content)
        assert "odd.png: this is not an image; images are png, jpeg, gif, bmp, webp" in self.said(
            tmp_path, "odd.png"
        )

    def test_a_file_that_only_begins_like_one(self, tmp_path: Path) -> None:
        (tmp_path / "half.png").write_bytes(PNG[:20])
        assert "an image that cannot be read" in self.said(tmp_path, "half.png")

    def test_a_file_that_is_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(images, "MOST_BYTES", 10)
        (tmp_path / "red.png").write_bytes(PNG)
        assert "has more than 10 bytes" in self.said(tmp_path, "red.png")

    def test_one_with_too_many_pixels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(images, "MOST_PIXELS", 40)
        assert "an image of 8 × 6; it may have 40 pixels" in self.said(tmp_path, images.data_url(PNG))

    def test_an_address_on_the_network(self, tmp_path: Path) -> None:
        assert "images are not downloaded" in self.said(tmp_path, "https://example.org/a.png")

    @pytest.mark.parametrize("value", [3, {"other": 1}, "data:image/png,plain", "data:image/png;base64,***"])
    def test_what_is_no_image_at_all(self, tmp_path: Path, value: Any) -> None:
        assert self.said(tmp_path, value)

    def test_parts_of_other_kinds(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="part 1 is a 'video'; messages have text and image parts"):
            tasks_of(lines(tmp_path, {"prompt": asking({"type": "video", "video": "a.mp4"})}))

    def test_a_path_where_only_data_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "red.png").write_bytes(PNG)
        with pytest.raises(UserError, match="no image file"):
            read_image(str(tmp_path / "red.png"), "tool look", files=False)


def test_readers_are_told_what_stood_there() -> None:
    content = [{"type": "image", "image": url("red", (8, 6))}, {"type": "text", "text": " red?"}]
    assert text_of(content).startswith("[png image, ")
    assert text_of(content).endswith(f"{images.name_of(url('red', (8, 6)))}] red?")


def test_a_browser_is_given_pictures_alone() -> None:
    png = images.data_url(PNG)
    assert images.is_safe(png)
    assert not images.is_safe(png.replace("image/png", "image/gif"))
    assert not images.is_safe("data:image/svg+xml;base64,PHN2Zy8+")
    assert not images.is_safe(png + "' onload='alert(1)")
    assert not images.is_safe(images.name_of(png))
