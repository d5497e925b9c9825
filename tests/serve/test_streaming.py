"""A streamed answer, put together, is the answer; and nothing is shown that would have to be taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from toolwright.models.tokenizer import Tokenizer
from toolwright.providers.local import cut
from toolwright.serve.service import StreamedText


def byte_tokenizer() -> Tokenizer:
    """A token a byte: most characters beyond ASCII come in halves."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: number for number, character in enumerate(alphabet)}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {}, end_tokens=[0])


BYTES = byte_tokenizer()
LETTERS = Tokenizer.characters("abc <>/")
SHORT = st.text("abc <>", min_size=1, max_size=3)


@given(text=st.text(max_size=20), stops=st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_bytes_make_whole_characters(text: str, stops: list[str]) -> None:
    stream = StreamedText(BYTES, stops=stops, opens=[])
    shown = [stream.push(token) for token in BYTES.encode(text)]
    final, _ = cut(BYTES.decode(BYTES.encode(text)), stops)
    assert "".join(shown) + stream.rest(final) == final
    assert not any("\ufffd" in piece for piece in shown if "\ufffd" not in text)


@given(tokens=st.lists(st.integers(0, 255), max_size=20))
def test_bytes_that_are_no_text_stream_as_they_decode(tokens: list[int]) -> None:
    stream, final = StreamedText(BYTES, stops=[], opens=[]), BYTES.decode(tokens)
    assert "".join(stream.push(token) for token in tokens) + stream.rest(final) == final


@given(
    text=st.text("abc <>", max_size=30), stops=st.lists(SHORT, max_size=3), opens=st.lists(SHORT, max_size=2)
)
def test_nothing_is_shown_of_a_stop_or_of_a_call(text: str, stops: list[str], opens: list[str]) -> None:
    stream = StreamedText(LETTERS, stops=stops, opens=opens)
    shown = "".join(stream.push(token) for token in LETTERS.encode(text))
    without, _ = cut(text, [*stops, *opens])
    assert without.startswith(shown)
    if opens:
        assert shown == shown.rstrip()
        assert shown + stream.rest(without.rstrip()) == without.rstrip()


@given(text=st.text("abc", min_size=1, max_size=20))
def test_without_marks_every_token_is_shown_at_once(text: str) -> None:
    stream = StreamedText(LETTERS, stops=[], opens=[])
    assert [stream.push(token) for token in LETTERS.encode(text)] == list(text)
