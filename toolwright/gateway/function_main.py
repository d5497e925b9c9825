"""The process in which an agent's function is called, one attempt after the other.

A line of JSON in, a line of JSON out. What the function prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

SAID = 4000  # characters of an exception


def main(reference: str) -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    from toolwright.registry import load_object

    function = load_object(reference)
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_called(function, json.loads(line))), file=replies, flush=True)


def _called(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """What it returned, or what it raised."""
    os.environ.update(request["env"])
    with tempfile.TemporaryDirectory(prefix="toolwright-agent-") as folder:
        os.chdir(folder)
        try:
            takes = len(inspect.signature(function).parameters)
            returned = function(*(request["task"], request["policy"])[:takes])
            if inspect.isawaitable(returned):
                returned = asyncio.run(_awaited(returned))
            json.dumps(returned)
        except Exception as error:
            text = "".join(traceback.format_exception_only(error)).strip()
            return {"error": text[-SAID:]}
        finally:
            os.chdir(tempfile.gettempdir())
    return {"returned": returned}


async def _awaited(work: Any) -> Any:
    return await work


if __name__ == "__main__":
    main(sys.argv[1])
