"""A model folder with other settings in its config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import tiny
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.models.folder import overridden
from toolwright.trainer import building


def test_a_setting_replaces_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    huggingface.save(tiny.decoder(), folder)
    tiny.characters().save(folder)
    own = schema.Model(path=str(folder), config={"max_position_embeddings": 4096})
    assert building.context_of(own) == 4096
    decoder, _ = building.build_model(own, "", seed=0)
    assert decoder.shape.context == 4096
    made = overridden(folder, {"max_position_embeddings": 4096})
    before, after = (json.loads((at / "config.json").read_text()) for at in (folder, made))
    assert {key for key in after if after[key] != before.get(key)} == {"max_position_embeddings"}


def test_a_folder_without_a_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        overridden(tmp_path, {"rope_theta": 1.0})


def test_a_fresh_decoder_has_two_settings() -> None:
    with pytest.raises(ValueError, match="a new decoder takes only"):
        schema.Model(config={"rope_theta": 1.0})
    plain = schema.Model(config={"qk_norm": False}, context=32)
    decoder, _ = building.build_model(plain, "ab", seed=0)
    assert not decoder.shape.qk_norm
