"""A check that engine and learner compute the same bits on this processor, measured as in a run."""

from __future__ import annotations

from toolwright.doctor.checks import CHECKS
from toolwright.doctor.result import CheckResult, ok, problem, warning


@CHECKS.register("exactness", needs=["torch"])
def exactness() -> CheckResult:
    try:
        from toolwright.engines.native.agreement import difference
        from toolwright.models.decoder import Decoder, Shape
        from toolwright.models.product_kernel import kernel
    except (ImportError, OSError) as error:
        return problem(f"cannot be measured: {error}", "see the line of torch")
    shape = Shape(
        vocab=97, layers=2, width=64, heads=4, kv_heads=2, ffn=128, context=64, head_dim=16, qk_norm=True
    )
    found, products = difference(Decoder(shape).initialise(0)), kernel()
    if found == 0:
        width = f", vectors of {products.vectors.width} numbers" if products else ""
        return ok(f"engine and learner compute the same numbers, to the last bit{width}")
    text = f"engine and learner differ by up to {found:.1g} in a log-probability"
    if products is None:
        return warning(
            f"{text}: llvmlite does not load, so products are torch's", "pip install 'llvmlite>=0.45'"
        )
    return warning(f"{text}; updates correct for it", "docs/engines.md, The gap")
