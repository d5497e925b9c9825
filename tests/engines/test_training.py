"""Ten steps of SmolLM2-135M's shape, with two layers, on each engine: sampling and learning stay in step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from trainer import runs

from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.models.huggingface import read_shape
from toolwright.trainer.building import build_model, dtype_of

from .conftest import make
from .served import Server
from .stub_server import StubServer

SHAPE = {
    "layers": 2,
    "width": 576,
    "heads": 9,
    "kv_heads": 3,
    "ffn": 1536,
    "config.qk_norm": "false",
    "context": 64,
}
STEPS = 10
WORDS = [
    *(f"model.{name}={value}" for name, value in SHAPE.items()),
    f"train.steps={STEPS}",
    "rollout.prompts=8",
    "rollout.samples=8",
    "engine.slots=64",
    "update.policy.lr=1e-3",
]


def trained(folder: Path, engine: str, *own: str) -> list[dict[str, float]]:
    run = runs.trained(folder, f"engine.name={engine}", *WORDS, *own)
    shape = read_shape(run / "model")
    assert (shape.layers, shape.width, shape.kv_heads, shape.tied) == (2, 576, 3, True)
    versions = {t.weights_version for attempts in runs.rollouts(run).values() for t in attempts}
    assert versions == set(range(STEPS)), "each step samples with what the one before has learned"
    assert "engine and learner were far apart" not in (run / "report.html").read_text()
    return [row for row in runs.metrics(run) if row["step"] > 0]


def sane(rows: list[dict[str, float]], *, near: float) -> None:
    assert [row["weights_version"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert math.isfinite(row["policy/loss"])
        assert row["policy/skipped"] == 0
        assert row["gap/abs_max"] <= near
        assert row["gap/alarm"] == 0
    late = sum(row["reward/mean"] for row in rows[-3:]) / 3
    assert late > rows[0]["reward/mean"] + 0.1


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A model of the run's shape, and none of its weights."""
    config = runs.configured(*WORDS)
    task = runs.load_tasks(config)
    decoder, tokenizer = build_model(config.model, task.alphabet, seed=99)
    return Server(tmp_path / "served", decoder, tokenizer)


class TestTenSteps:
    def test_native(self, tmp_path: Path) -> None:
        rows = trained(tmp_path, "native")
        sane(rows, near=1e-5)
        assert not any(name.startswith("correction/") for name in rows[0])

    @pytest.mark.vllm
    @pytest.mark.xdist_group("training on vllm")
    def test_vllm(self, tmp_path: Path) -> None:
        rows = trained(tmp_path, "vllm")
        sane(rows, near=1e-3)
        assert all(row["correction/weight_mean"] == pytest.approx(1, abs=1e-3) for row in rows)

    @pytest.mark.vllm
    @pytest.mark.xdist_group("training on http")
    def test_http(self, tmp_path: Path, server: Server) -> None:
        with server:
            rows = trained(tmp_path, "http", f"engine.url={server.url}")
        sane(rows, near=1e-3)
        assert all(row["correction/weight_mean"] == pytest.approx(1, abs=1e-3) for row in rows)


def test_pages_change_no_number_of_a_run_that_is_resumed(tmp_path: Path) -> None:
    whole = runs.trained(tmp_path, "run.name=slots", "train.steps=3")
    pages = ("engine.params.page_tokens=1", "engine.params.cache_tokens=40", "run.name=pages")
    runs.trained(tmp_path, "train.steps=1", *pages)
    resumed = runs.trained(tmp_path, "train.steps=3", "run.resume=true", *pages)
    for step, attempts in runs.rollouts(whole).items():
        found = runs.rollouts(resumed)[step]
        assert [(t.segments, t.reward) for t in attempts] == [(t.segments, t.reward) for t in found]
    weights = [(run / "model/model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]
    used = [row for row in runs.metrics(resumed) if row["step"]]
    assert all(0.5 < row["use/cache"] <= 1 for row in used)
    assert all(row["use/cache_shared_tokens"] > 0 for row in used)


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_an_adapter_is_learned_with_a_server_that_takes_weights(
    dtype: str, near: float, tmp_path: Path
) -> None:
    """It is sent the adapted matrices, and so it samples from what the learner computes with."""
    config = runs.configured(f"model.dtype={dtype}")
    decoder, tokenizer = build_model(config.model, runs.load_tasks(config).alphabet, seed=0)
    for parameter in decoder.parameters():
        parameter.data.copy_(parameter.bfloat16())  # as the hub stores them
    huggingface.save(decoder, tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    server = StubServer(make("native", decoder, tokenizer, dtype=dtype_of(config.model)), takes_weights=True)
    own = ("train.steps=6", "rollout.prompts=8", "rollout.samples=8", "update.policy.lr=2e-2")
    words = ("model.lora.rank=4", f"model.path={tmp_path / 'base'}", f"model.dtype={dtype}", *own)
    with server:
        run = runs.trained(tmp_path, "engine.name=http", f"engine.url={server.url}", *words)
    rows = runs.metrics(run)[1:]
    assert [row["weights_version"] for row in rows] == list(range(1, 7))
    assert max(row["gap/abs_mean"] for row in rows) <= near
    before = huggingface.load(tmp_path / "base")
    moved = [(a - b).abs().max() for a, b in zip(decoder.parameters(), before.parameters(), strict=True)]
    assert max(moved) > 0.02, "the server computes with what was learned"


class TestAServerThatTakesNoWeights:
    @pytest.fixture
    def stub(self) -> StubServer:
        config = runs.configured()
        decoder, tokenizer = build_model(config.model, runs.load_tasks(config).alphabet, seed=0)
        return StubServer(make("native", decoder, tokenizer))

    def test_nothing_is_trained_with_it(self, tmp_path: Path, stub: StubServer) -> None:
        with (
            stub,
            pytest.raises(UserError, match=r"does not accept weights, so it can evaluate .* but not train"),
        ):
            runs.trained(tmp_path, "engine.name=http", f"engine.url={stub.url}")
        assert not list(tmp_path.glob("*/metrics.jsonl"))

    def test_it_evaluates(self, stub: StubServer) -> None:
        from toolwright.trainer.evaluation import evaluate

        with stub:
            config = runs.configured("engine.name=http", f"engine.url={stub.url}")
            assert evaluate(config, command=[]).counts["attempts"] == 8
