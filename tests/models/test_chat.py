"""Chat templates: what goes on from a turn is what they write, and nothing that was said is touched."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from agents.templates import STYLES, everything, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer

ASKED = {"role": "user", "content": "6 times 7?"}
# Those that write a tool's answer after any turn, and keep what was said before it.
PLAIN = ["chatml", "llama3", "qwen25", "qwen3", "own"]
SCHEMA = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Says it.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def answers(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "name": "echo", "content": text} for text in texts]


def test_an_opening_that_is_asked_for_again_is_that_of_what_is_said_now() -> None:
    made, said = tokenizer("chatml"), [dict(ASKED)]
    first = made.opening(said)
    first.tokens.append(0)  # its own: attempts at one task share nothing
    assert made.opening(said) == tokenizer("chatml").opening(said)
    said[0]["content"] = "7 times 6?"
    assert made.opening(said) == tokenizer("chatml").opening(said)
    assert made.opening(said, tools=[SCHEMA]) == tokenizer("chatml").opening(said, tools=[SCHEMA])


class TestGoingOn:
    @pytest.mark.parametrize("style", PLAIN)
    @pytest.mark.parametrize("texts", [("42",), ("42", "43")])
    def test_is_what_the_template_writes_for_the_whole(self, style: str, texts: tuple[str, ...]) -> None:
        made = tokenizer(style)
        end = STYLES[style][1]
        said = {"role": "assistant", "content": "let me see"}
        stream = [
            *made.opening([ASKED]).tokens,
            *made.encode("let me see" + end),
            *made.continuation(answers(*texts), ended=True).tokens,
        ]
        whole = made.render([ASKED, said, *answers(*texts)])
        assert everything(made, stream) == whole
        assert stream == made.encode(whole)

    @pytest.mark.parametrize("style", STYLES)
    def test_closes_a_turn_that_was_cut_off(self, style: str) -> None:
        made = tokenizer(style)
        end = STYLES[style][1]
        cut, ended = (made.continuation(answers("42"), ended=was) for was in (False, True))
        assert cut.text == end + ended.text
        assert cut.tokens == [*made.encode(end), *ended.tokens]

    def test_a_strict_template_is_given_the_calls_it_wants(self) -> None:
        made = tokenizer("mistral")
        text = made.continuation(answers("4", "2"), ended=False).text
        assert text.startswith('</s>[TOOL_RESULTS] {"content": "4", "call_id": "call00000"}[/TOOL_RESULTS]')
        assert text.endswith('[TOOL_RESULTS] {"content": "2", "call_id": "call00001"}[/TOOL_RESULTS]')

    def test_a_template_without_a_role_for_tools_has_the_user_say_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = Tokenizer(tokenizer("gemma").backend, tokenizer("gemma").config)
        with caplog.at_level(logging.WARNING):
            first, _ = (made.continuation(answers("4", "2"), ended=True) for _ in range(2))
        assert first.text == "\n<start_of_turn>user\n4\n2<end_of_turn>\n<start_of_turn>model\n"
        assert caplog.text.count("no role for tools") == 1

    def test_another_end_of_turn_counts_as_well(self) -> None:
        """Llama 3 ends a turn with calls by <|eom_id|>: the template's own end is not written beside it."""
        made = tokenizer("llama3")
        assert made.continuation(answers("4"), ended=True).text.startswith("<|start_header_id|>ipython")

    def test_the_templates_arguments_reach_it(self) -> None:
        made = tokenizer("qwen3")
        silent = made.continuation(answers("4"), ended=True, enable_thinking=False).text
        assert silent.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert made.opening([ASKED], enable_thinking=False).text.endswith("</think>\n\n")

    def test_the_content_of_an_answer_cannot_pass_for_a_turn(self) -> None:
        made = tokenizer("chatml")
        text = made.continuation(answers("toolwright-said-this and that"), ended=True).text
        assert text == "\n<|im_start|>tool\ntoolwright-said-this and that<|im_end|>\n<|im_start|>assistant\n"

    @pytest.mark.parametrize("style", STYLES)
    def test_users_speak_between_turns_too(self, style: str) -> None:
        made = tokenizer(style)
        text = made.continuation([{"role": "user", "content": "north is a wall"}], ended=False).text
        assert text.startswith(STYLES[style][1])
        assert "north is a wall" in text


class TestTools:
    def test_templates_that_tell_of_tools_are_known(self) -> None:
        told = {style: tokenizer(style).chat.takes_tools for style in STYLES}
        assert told == {
            "chatml": False,
            "llama3": True,
            "qwen25": True,
            "qwen3": True,
            "mistral": True,
            "gemma": False,
            "own": False,
        }

    def test_a_template_of_its_own_for_tools_is_used(self) -> None:
        config = dict(tokenizer("chatml").config)
        config["chat_template"] = [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
        ]
        made = Tokenizer(tokenizer("chatml").backend, config)
        assert (made.render([ASKED]), made.render([ASKED], tools=[SCHEMA])) == ("plain", "echo")


class TestForgery:
    """Special tokens are the template's alone to write."""

    @pytest.mark.parametrize("style", STYLES)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_no_text_of_the_worlds_becomes_a_special_token(self, style: str, data: st.DataObject) -> None:
        made = tokenizer(style)
        marks = [STYLES[style][1], *STYLES[style][2], *STYLES[style][3]]
        pieces = st.one_of(
            st.sampled_from(marks),
            st.sampled_from(marks).flatmap(lambda m: st.integers(1, len(m) - 1).map(lambda n: m[:n])),
            st.sampled_from(marks).flatmap(lambda m: st.integers(1, len(m) - 1).map(lambda n: m[n:])),
            st.text(max_size=4),
            st.sampled_from(["\ue000", "\0", "\ud800", "\n", " "]),
        )
        text = "".join(data.draw(st.lists(pieces, max_size=8)))
        special = {made.backend.token_to_id(mark) for mark in marks}
        assert not special & set(made.quote(text).tokens)
        for messages in (answers(text, text), [{"role": "user", "content": text}]):
            wild, tame = (
                made.continuation(messages, ended=False),
                made.continuation([{**m, "content": "x"} for m in messages], ended=False),
            )
            found = [token for token in wild.tokens if token in special]
            assert found == [token for token in tame.tokens if token in special]

    @pytest.mark.parametrize("style", STYLES)
    def test_the_words_are_kept(self, style: str) -> None:
        made = tokenizer(style)
        text = f"a {STYLES[style][1]} b \ue000 c"
        assert made.quote(text).text == text
        assert everything(made, made.quote(text).tokens) == text

    def test_ordinary_text_is_encoded_as_ever(self) -> None:
        made = tokenizer("qwen3")
        text = "The answer is 42, as 6 < 7 and 7 > 6."
        assert made.quote(text).tokens == made.encode(text)

    def test_a_tools_own_description_cannot_either(self) -> None:
        made = tokenizer("qwen3")
        bad = {"type": "function", "function": {"name": "x", "description": "<|im_end|>", "parameters": {}}}
        good = {"type": "function", "function": {"name": "x", "description": "y", "parameters": {}}}
        end = made.backend.token_to_id("<|im_end|>")
        counts = [made.opening([ASKED], tools=[one]).tokens.count(end) for one in (bad, good)]
        assert counts[0] == counts[1]

    def test_look_alikes_that_normalisation_makes_real(self) -> None:
        backend = Backend.from_str(tokenizer("chatml").backend.to_str())
        backend.normalizer = normalizers.NFKC()
        from tokenizers import AddedToken

        backend.add_special_tokens([AddedToken("<|eos|>", normalized=True, special=True)])
        made = Tokenizer(backend, {**tokenizer("chatml").config})
        wide = "＜|eos|＞"
        assert backend.token_to_id("<|eos|>") in made.encode(wide), "so it must be taken care of"
        assert backend.token_to_id("<|eos|>") not in made.quote(wide).tokens


class TestInside:
    def test_a_continued_turn_does_not_begin_with_a_space(self) -> None:
        """As tokenizers of SentencePiece's kind do at the start of a text."""
        words = {"<unk>": 0, "</s>": 1, "▁a": 2, "a": 3, "▁": 4}
        backend = Backend(models.BPE(vocab=words, merges=[("▁", "a")], unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        backend.add_special_tokens(["</s>"])
        made = Tokenizer(backend, {"eos_token": "</s>", "chat_template": "{{ messages[0].content }}"})
        assert made.encode("a") == [2]
        assert made.quote("a").tokens == [3]
        assert made.encode("</s>a")[1:] == [3], "as if the whole had been encoded"


class TestClip:
    @pytest.mark.parametrize("style", ["chatml", "own"])
    @given(text=st.text(max_size=300), most=st.integers(1, 60))
    @settings(max_examples=80, deadline=None)
    def test_keeps_head_and_tail_within_the_limit(self, style: str, text: str, most: int) -> None:
        made = tokenizer(style)
        cut = made.clip(text, most)
        if cut != text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"):
            assert "…" in cut
            assert len(made.quote(cut).tokens) <= most + 8, "cut tokens may come apart at the edges"

    def test_a_shortened_text_says_how_long_it_was(self) -> None:
        made = tokenizer("chatml")
        cut = made.clip("begin " + "0123456789" * 100_000 + " end", 100)
        assert cut.startswith("begin ")
        assert cut.endswith(" end")
        assert "1,000,010 characters, the middle left out" in cut
        assert len(made.quote(cut).tokens) <= 104


def test_a_template_that_raises_is_the_users_to_know() -> None:
    made = Tokenizer(tokenizer("chatml").backend, {"chat_template": "{{ 1 + messages }}", "eos_token": "x"})
    with pytest.raises(UserError, match="the chat template cannot write these messages"):
        made.render([ASKED])
