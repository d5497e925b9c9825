"""A single run: composed once, and inside a job of Hydra's only where something is said to Hydra."""

from __future__ import annotations

import cProfile
import os
import pstats
from pathlib import Path

from toolwright.config.launch import launch


def greeted(*line: str) -> str | None:
    """What a variable of the environment is inside the run."""
    found: list[str | None] = []

    def start(config: object, command: list[str]) -> None:
        found.append(os.environ.get("GREETING"))

    assert launch("train", list(line), about="", start=start) == 0
    (greeting,) = found
    return greeting


def test_a_configuration_is_composed_once() -> None:
    profile = cProfile.Profile()
    profile.runcall(greeted, "task=sums", "rollout.samples=2")
    calls = {name: counts[1] for (_, _, name), counts in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert calls["load_configuration"] == 1


def test_a_word_for_hydra_holds_for_the_run() -> None:
    assert greeted() is None
    assert greeted("+hydra.job.env_set.GREETING=hello") == "hello"


def test_a_setting_of_hydras_in_the_users_file_holds_for_the_run(folder: Path) -> None:
    block = "hydra: {job: {env_set: {GREETING: hello}}}"
    (folder / "mine.yaml").write_text(f"defaults: [train, _self_]\n{block}\n")
    assert greeted("--config-dir", str(folder), "--config-name", "mine") == "hello"
