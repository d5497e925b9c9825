"""Standard output as a run sees it."""

from __future__ import annotations

import io

from toolwright.observe.outlet import Outlet


def test_a_sign_that_the_encoding_lacks_does_not_silence_the_run() -> None:
    written = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(written, encoding="ascii"))
    outlet.write("16 prompts × 8 samples\n")
    outlet.write("step 1\n")
    outlet.flush()
    assert written.getvalue() == b"16 prompts ? 8 samples\nstep 1\n"
