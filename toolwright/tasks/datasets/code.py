"""Short Python problems that tests check: HumanEval and MBPP."""

from __future__ import annotations

import ast
from dataclasses import replace

from toolwright.tasks.datasets import Example, dataset, hub_splits
from toolwright.tasks.public_tests import called, examples
from toolwright.tasks.rows import Row


def _to_complete(declaration: str) -> str:
    """Ask for a function of which the declaration and the docstring are given."""
    return (
        "Complete this function. Answer with the whole of it in one Python block.\n"
        f"```python\n{declaration.strip()}\n```"
    )


@dataset("humaneval", "openai/openai_humaneval", hub_splits("openai_humaneval/{}", "test"))
def humaneval(row: Row) -> Example:
    """Functions to complete. The examples of their docstrings are public."""
    return Example(
        prompt=_to_complete(row["prompt"]),
        ground_truth={"test": row["test"], "entry_point": row["entry_point"]},
        extra={
            "task_id": row["task_id"],
            "declaration": row["prompt"],
            "solution": row["canonical_solution"],
            "entry_point": row["entry_point"],
            "public_tests": examples(row["prompt"], row["entry_point"]),
        },
    )


def _split(row: Row) -> str:
    """Return the split of a row of MBPP as the authors divide them, by number. The first ten are for prompts
    with examples; here they train."""
    number = int(row["task_id"])
    return "test" if 10 < number <= 510 else "validation" if 510 < number <= 600 else "train"


@dataset(
    "mbpp",
    "google-research-datasets/mbpp",
    hub_splits("full/{}", "train", "validation", "test"),
    split_of=_split,
)
def mbpp(row: Row) -> Example:
    """The full and the sanitized files. The first assertion is shown. The others are hidden: they give the
    reward, and no tool runs them."""
    text = row["text"] if "text" in row else row["prompt"]
    setup = row["test_setup_code"] if "test_setup_code" in row else "\n".join(row["test_imports"])
    return Example(
        # The assertion is the only place that names the function.
        prompt=f"{text}\nAnswer with one Python block. It must pass:\n{row['test_list'][0]}",
        ground_truth={"setup": setup, "tests": row["test_list"]},
        extra={
            "task_id": int(row["task_id"]),
            "solution": row["code"],
            "entry_point": called(row["test_list"]),
            "public_tests": row["test_list"][:1],
        },
    )


@dataset(
    "mbpp-functions",
    "google-research-datasets/mbpp",
    hub_splits("full/{}", "train", "validation", "test"),
    hub="google-research-datasets/mbpp",
    split_of=_split,
)
def mbpp_functions(row: Row) -> Example:
    """MBPP asked as HumanEval asks: a declaration whose docstring has the question and the shown assertion.
    The declaration is the solution's own. Where it has none, the question is MBPP's."""
    plain = mbpp(row)
    declared = _declaration(row["code"], str(plain.extra["entry_point"]))
    if declared is None:
        return plain
    text = row["text"] if "text" in row else row["prompt"]
    docstring = f'    """{text}\n\n    {row["test_list"][0]}\n    """'
    return replace(plain, prompt=_to_complete(f"{declared}\n{docstring}"))


def _declaration(code: str, name: str) -> str | None:
    """Return the line that declares the function, if it stands at the top of the code."""
    try:
        top = ast.parse(code).body
    except SyntaxError:
        return None
    found = next((one for one in top if isinstance(one, ast.FunctionDef) and one.name == name), None)
    return None if found is None else f"def {name}({ast.unparse(found.args)}):"
