"""Tokenizers as they come from folders: whole texts in, nothing cut off, nothing added."""

from __future__ import annotations

import os

import pytest
from agents.templates import tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from toolwright.models import tokenizer as tokenizers
from toolwright.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Saved by somebody who had cut and padded batches with it: its file keeps that."""
    folder = tmp_path_factory.mktemp("used")
    tokenizer("chatml").save(folder)
    file = str(folder / "tokenizer.json")
    backend = Backend.from_file(file)
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=64)
    backend.save(file)
    return Tokenizer.load(folder)


def test_truncation_and_padding_of_a_saved_tokenizer_are_ignored(used: Tokenizer) -> None:
    plain, said = tokenizer("chatml"), [{"role": "user", "content": "how many are six times seven?"}]
    assert 4 < len(plain.encode("how many are six")) < 64
    assert used.encode("how many are six") == plain.encode("how many are six")
    assert used.opening(said) == plain.opening(said)


@given(st.lists(st.text(max_size=40) | st.just("half \ud800 a pair"), max_size=9))
def test_texts_are_counted_as_they_are_encoded(used: Tokenizer, texts: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "AT_ONCE", 4)
        assert used.lengths(texts) == [len(used.encode(text)) for text in texts]


@pytest.mark.parametrize(("told", "left"), [(None, "true"), ("false", "false")])
def test_counting_side_by_side_is_said_unless_the_user_has(
    told: str | None, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or older versions complain of every process that is forked afterwards."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", told or "")
    if told is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    assert Tokenizer.bytes().lengths(["some", "texts"]) == [4, 5]
    assert os.environ["TOKENIZERS_PARALLELISM"] == left
