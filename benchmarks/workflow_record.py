"""Records what a model scores with many workflows on real data sets, within a given time: one small file.

    python benchmarks/workflow_record.py MODEL tables.json.gz --minutes 8 \\
        --data gsm8k=gsm8k_test.jsonl math500=math500.jsonl humaneval=HumanEval.jsonl.gz \\
               mbpp=mbpp_sanitized.json hotpotqa=hotpotqa_validate.jsonl drop=drop_validate.jsonl

MODEL is a Hugging Face folder. The data sets are dealt to a few processes (`--processes`), each with a
native engine of its own, all of them on the same GPU. AFlow's public tests are used where
NAME_public_test.jsonl lies beside the data. Splits are AFlow's, one to four; smaller data sets are taken
whole. Workflows are those of benchmarks/recorded_workflows.yaml and random edits of them, the same in every
run of this script. A table holds those that ran on every task when the time was up. The file is written every
few seconds, so that what was recorded is there whenever this is ended. Started again with the same file, it
goes on where it was.
`benchmarks/workflow.py --tables FILE` replays searches.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toolwright.cli import main as toolwright
from toolwright.failures import UserError
from toolwright.workflow.table import RecordedTable, load_tables, save_tables

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = Path(__file__).with_name("recorded_workflows.yaml")
LATE_S = 30.0  # that a process may take to end when the time is up
LOOK_S = 10.0  # between two looks at what the processes have written


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("out", type=Path, help="the file of tables")
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=FILE", help="raw files")
    parser.add_argument("--minutes", type=float, default=8.0, help="of wall time, start included (8)")
    parser.add_argument("--processes", type=int, default=3, help="that share the data sets, in turn (3)")
    parser.add_argument("--workflows", type=int, default=60, help="of each data set (60)")
    parser.add_argument("--repeats", type=int, default=1, help="the second begins when all have had one (1)")
    parser.add_argument("--tasks", type=int, default=80, help="of the validation split at most (80)")
    parser.add_argument("--test", type=int, default=160, help="of the test split at most (160)")
    parser.add_argument("--slots", type=int, default=192, help="replies generated side by side, each (192)")
    parser.add_argument("--context", type=int, default=3072, help="tokens of a conversation (3072)")
    parser.add_argument("--max-tokens", type=int, default=512, help="of a reply (512)")
    parser.add_argument("--temperature", type=float, default=0.7)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    work = asked.out.absolute().with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    names = [name for told in asked.data if (name := prepared(told, work / "data"))]
    groups = [names[n :: asked.processes] for n in range(asked.processes)]
    cores = sorted(os.sched_getaffinity(0))
    running = {
        work / f"{'-'.join(group)}.json.gz": start(
            group, asked, work, until, cores=cores[number :: asked.processes] or cores
        )
        for number, group in enumerate(groups)
        if group
    }
    made = watched(running, asked.out, until + LATE_S)
    for table in made:
        print(summary(table), flush=True)
    lacking = sorted({told.partition("=")[0] for told in asked.data} - {table.name for table in made})
    if lacking:
        print(f"no table of {', '.join(lacking)}: see {work}/*.log", flush=True)
    return 0 if made else 1


def prepared(told: str, folder: Path) -> str:
    """Turn a raw file into tasks, with AFlow's public tests if they lie beside it. Returns the name, or none
    where that fails."""
    name, _, path = told.partition("=")
    file = Path(path)
    public = file.with_name(f"{name}_public_test.jsonl")
    folder.mkdir(exist_ok=True)
    if public.is_file():
        shutil.copy(public, folder)
    with contextlib.redirect_stdout(io.StringIO()):
        code = toolwright(["data", "prepare", name, "--from", str(file), "--out", str(folder)])
    return "" if code else name


def start(
    names: Sequence[str], asked: argparse.Namespace, work: Path, until: float, *, cores: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start the recording of some data sets on some cores: scorers and sandboxes start a process for each
    core. What it says goes to a file."""
    chat = {
        "provider": "engine",
        "model": str(asked.model.absolute()),
        "price": 1,  # so that costs are millions of tokens
        "context": asked.context,
        "slots": asked.slots,
        "timeout_s": 600,
        "limits": f"{{concurrency: {4 * asked.slots}}}",
    }
    words = [
        f"data=[{','.join(names)}]",
        f"search.folder={work / 'data'}",
        f"search.portfolio={WORKFLOWS}",
        f"search.tasks={asked.tasks}",
        f"search.held_out={asked.test}",
        "executor.name=chat",
        f"executor.chat={{{', '.join(f'{key}: {value}' for key, value in chat.items())}}}",
        f"executor.max_tokens={asked.max_tokens}",
        f"executor.temperature={asked.temperature}",
        f"executor.parallel={asked.slots}",
    ]
    minutes = (until - time.monotonic()) / 60
    limits = ["--workflows", str(asked.workflows), "--repeats", str(asked.repeats), "--minutes", str(minutes)]
    out = work / f"{'-'.join(names)}.json.gz"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (work / f"{'-'.join(names)}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolwright.cli", "workflow", "record", str(out), *limits, *words],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(len(cores))},
        )
    os.sched_setaffinity(process.pid, cores)
    return process


def watched(running: dict[Path, subprocess.Popen[bytes]], out: Path, limit: float) -> list[RecordedTable]:
    """Gather what the processes write until they end, or until the limit. Returns the tables."""
    made: list[RecordedTable] = []
    while True:
        over = all(process.poll() is not None for process in running.values())
        if not over and time.monotonic() > limit:
            for process in running.values():
                process.kill()
                process.wait()
            over = True
        made = []
        for file in running:
            with contextlib.suppress(UserError):  # nothing is written yet
                made += load_tables(file).values()
        if made:
            save_tables(made, out)
        if over:
            return made
        time.sleep(LOOK_S)


def summary(table: RecordedTable) -> str:
    """One line: the size, the start's score, the best one's, and tokens."""
    means = [sum(sum(row) for row in rows) / sum(len(row) for row in rows) for rows in table.scores]
    tokens = sum(cost for rows in table.costs for row in rows for cost in row)
    calls = sum(number for rows in table.calls for row in rows for number in row)
    return (
        f"{table.name}: {len(means)} workflows × {len(table.columns)} tasks × {table.repeats}, a single call "
        f"{100 * means[0]:.1f} %, the highest of all {100 * max(means):.1f} %, {tokens:.2f} M tokens, "
        f"{calls:,.0f} calls"
    )


if __name__ == "__main__":
    sys.exit(main())
