"""What counts as data when every remote call is walked, arguments and results, as parity's runs are."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .watched import check


@pytest.mark.parametrize("thing", [threading.Lock(), print, partial(print), object(), Path("/")])
def test_the_walk_finds_what_is_no_data(thing: Any) -> None:
    with pytest.raises(TypeError, match="crossed"):
        check({"a": [1, (2.0, thing)]}, "argument")
