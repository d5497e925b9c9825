"""`toolwright plan`: what fits where, in a few lines; a mistake is one sentence."""

from __future__ import annotations

import pytest

from toolwright.cli import main


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["plan", *words])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "model=7b")
    assert status == 0
    assert "7.62 billion parameters on 1 × h200" in out
    assert (
        "all weights: fits; auto chooses\n  settings  model.dtype=bfloat16 update.optimizer_state=int8" in out
    )
    assert "LoRA of rank 16: fits" in out
    assert "GiB       weights 28.4, gradients 28.4, optimiser 14.4" in out


def test_several_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "model=7b", "gpus=8", "samples=8")
    assert status == 0
    assert "runtime=ray runtime.placement.policy.ranks=" in out
    assert "GPUs learn, " in out
    assert "  sampling  weights 28.4" in out


def test_what_does_not_fit_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "model=72b", "memory=80")
    assert status == 0
    assert "all weights: does not fit; GiB needed of 78: weights 135.4" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["model=8b"], "model=8b is neither a folder nor a size; known: 0.5b"),
        (["gpus=8"], "name a model: model=7b, or a folder"),
        (["model=7b", "gpus=many"], "gpus=many: expected a whole number"),
        (["model=7b", "gpus=0"], "gpus=0: expected a number above 0"),
        (["model=7b", "memory=nan"], "memory=nan: expected a number above 0"),
        (["model=7b", "gpu=h300"], "gpu=h300 is not known; did you mean 'h200'?"),
        (["model=7b", "gpus"], "gpus: expected KEY=VALUE"),
        (["model=7b", "contxt=1"], "did you mean 'context'?"),
        (["model=7b", "context=99"], "exceed context=99 tokens"),
    ],
)
def test_mistakes(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, *words)
    assert (status, out) == (2, "")
    assert error in err
    assert err.count("\n") == 1


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "--help")
    assert status == 0
    for key in ("model", "gpus", "gpu", "memory", "rank", "context", "prompts", "samples", "answer", "slots"):
        assert f"\n  {key} " in out
