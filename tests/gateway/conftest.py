"""A policy that was taught to call a tool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.serve.taught import teach
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer

from .programs import Recording


class Taught:
    """A model that calls `add` when it is asked for 2+3."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self.decoder: Decoder = huggingface.load(folder)

    def engine(self) -> Recording:
        config = schema.EngineConfig(slots=16)
        made = NativeEngine(config, decoder=self.decoder, tokenizer=self.tokenizer, dtype=torch.float32)
        return Recording(made)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    folder = tmp_path_factory.mktemp("models") / "taught"
    teach(folder)
    return Taught(folder)
