"""Seconds a GRPO step, and from the command to the first finished step, beside TRL on one CPU thread.

    python benchmarks/step_cpu.py --trl-python PATH [--smollm2 FOLDER] [--json FILE]

The work: steps of 2 prompts × 8 samples × 64 new tokens with a decoder of 1M parameters (in the shape of
Qwen 3: 5 layers, width 128, 4 heads that share 2 key-value heads; a token a character), one optimiser update
a step. Both sides run as their users run them: `python -m toolwright train …`, and `trl_step.py`, the least
script around TRL's GRPOTrainer with its plain `generate`.

With `--smollm2`, a Hugging Face folder of SmolLM2-135M, a second table: 1 prompt × 8 samples × 64 new tokens
with its real weights, two threads on either side. All that is said below holds there as well.

Equal on both sides:
- the weights and the tokenizer, a Hugging Face folder that Toolwright writes once; the prompts, all of one
  length, in the same chat template; the reward, one function called in the process itself;
- all 64 tokens are always sampled, at temperature 1 without top-p and top-k: the end token's id lies beyond
  the vocabulary, so both look for it and neither can draw it. The benchmark checks that this held;
- GRPO: no KL and no reference model, clip 0.2, scores over the group's deviation, each answer weighing the
  same, fused AdamW with the same settings, gradients clipped at norm 1;
- float32, one thread (OMP, MKL and torch; two for SmolLM2), passive waiting, no network, no evaluation, no
  checkpoint before the end, output not to a terminal.
Not equal, in TRL's favour: its gradient checkpointing (on by default), its periodic logging and the rounding
up of its tensors' lengths are off, which makes it faster; Toolwright writes its metrics and each step's
rollouts as it always does.

Steps: the two live side by side and take turns, a step each, so that whatever else the machine does falls on
both. Both call the same reward function once a step; there the turn ends, and the process sleeps until its
next. A turn is thus one whole step: the update, all that is written, the next sampling. The first turns of
each process are left out, and of the others the median is taken, over several pairs of processes; the ratio
is the median of the turns' ratios. Processor time is given as well: other programs disturb it less.

First step: each alone, one after the other, from the start of the process until it says that step 1 is
finished; the median. A run of each before warms the file cache and writes the bytecode.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import step_work

HERE = Path(__file__).resolve().parent
TRL = "1.16.0"
STEP_TARGETS, FIRST_TARGET = {step_work.SMALL: 0.4, step_work.SMOLLM2: 0.6}, 1.0  # as parts of TRL's
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
OURS, THEIRS = "toolwright", "trl"


def main() -> None:
    options = arguments()
    results = {}
    if not options.only_smollm2:
        with tempfile.TemporaryDirectory(prefix="step_cpu_") as folder:
            model = Path(folder) / "model"
            make_model(model)
            bench = Bench(step_work.SMALL, Path(folder), model, options.trl_python)
            results[bench.kind] = bench.measure(options.rounds, options.turns, warm_up=options.warm_up)
            print(table(results[bench.kind]))
    if options.smollm2 is not None:
        with tempfile.TemporaryDirectory(prefix="step_cpu_") as folder:
            model = Path(folder) / "model"
            endless(options.smollm2, model)
            bench = Bench(step_work.SMOLLM2, Path(folder), model, options.trl_python)
            results[bench.kind] = bench.measure(1, options.smollm2_turns, warm_up=1)
            print(table(results[bench.kind]))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trl-python", metavar="PATH", help="interpreter with TRL; this one, if it has")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side, of either kind (3)")
    parser.add_argument("--turns", type=int, default=24, help="steps timed in each process (24)")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before these, not counted (4)")
    parser.add_argument("--smollm2", type=Path, metavar="FOLDER", help="SmolLM2-135M: measure that as well")
    parser.add_argument("--smollm2-turns", type=int, default=4, help="steps of it timed on each side (4)")
    parser.add_argument("--only-smollm2", action="store_true", help="leave the small model out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    options = parser.parse_args()
    if options.trl_python is None and importlib.util.find_spec("trl") is not None:
        options.trl_python = sys.executable
    if options.trl_python is not None:
        try:
            versions(options.trl_python, "trl")
        except (OSError, subprocess.CalledProcessError):
            parser.error(f"no TRL there: {options.trl_python} -m pip install trl=={TRL}")
    return options


class Bench:
    """The commands of both sides, and what becomes of them."""

    def __init__(self, kind: str, folder: Path, model: Path, trl_python: str | None) -> None:
        self.kind, self.work = kind, step_work.WORKS[kind]
        self.folder, self.model, self.trl_python = folder, model, trl_python
        self.sides = [OURS, THEIRS] if trl_python else [OURS]
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.work.threads)
        )
        # With bytecode, as users run it: without, each start would compile every module of ours again.
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment = {**own, **ENVIRONMENT, **threads, step_work.KIND: kind}
        self.runs = 0
        self.parts: dict[str, list[float]] = {"update": [], "record": []}

    def measure(self, rounds: int, turns: int, *, warm_up: int) -> dict[str, Any]:
        load = os.getloadavg()[0]
        first = self.first_steps(rounds)
        return self.result(first, self.turns(rounds, turns, warm_up=warm_up), load=load)

    def first_steps(self, rounds: int) -> dict[str, list[float]]:
        """Seconds to the first finished step, side by side name."""
        found: dict[str, list[float]] = {side: [] for side in self.sides}
        for number in range(-1, rounds):
            for side in _in_turn(self.sides, number):
                seconds = until_first_step(self._command(side, self._work(side), steps=1), self.environment)
                if number >= 0:
                    found[side].append(seconds)
                    say(f"first step {number + 1}/{rounds}  {side:<10}  {seconds:.2f} s")
        return found

    def turns(self, rounds: int, turns: int, *, warm_up: int) -> dict[str, list[tuple[float, float]]]:
        """(wall, processor) seconds of each turn, by side; turn i of one was beside turn i of the other."""
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in self.sides}
        for number in range(rounds):
            works = {side: self._work(side) for side in self.sides}
            steps = warm_up + turns + 1
            players = {
                side: Player(self._command(side, work, steps), work, self.environment)
                for side, work in works.items()
            }
            try:
                took = play(players, warm_up + turns)
            finally:
                for player in players.values():
                    player.process.kill()
            self._read_ours(works[OURS], skip=warm_up + 1)
            for side in self.sides:
                found[side] += took[side][warm_up:]
                median = statistics.median(wall for wall, _ in took[side][warm_up:])
                say(f"turns {number + 1}/{rounds}  {side:<10}  {median:.3f} s a step")
        return found

    def result(
        self,
        first: dict[str, list[float]],
        turns: dict[str, list[tuple[float, float]]],
        *,
        load: float,
    ) -> dict[str, Any]:
        measured = {
            side: {
                "step_s": [wall for wall, _ in turns[side]],
                "step_cpu_s": [cpu for _, cpu in turns[side]],
                "first_step_s": first[side],
            }
            for side in self.sides
        }
        medians = {side: _medians(values) for side, values in measured.items()}
        ratio = None
        if THEIRS in measured:
            ratio = {
                **{key: _paired(measured, key) for key in ("step_s", "step_cpu_s")},
                "first_step_s": medians[OURS]["first_step_s"] / medians[THEIRS]["first_step_s"],
            }
        parts = _medians(self.parts)
        return {
            **medians,
            "ratio": ratio,
            "parts_s": {"sample": medians[OURS]["step_s"] - sum(parts.values()), **parts},
            "work": {
                "prompts": self.work.prompts,
                "samples": self.work.samples,
                "new_tokens": self.work.new_tokens,
                "parameters": parameters_of(self.model),
                "target": STEP_TARGETS[self.kind],
            },
            "versions": {
                OURS: versions(sys.executable, "toolwright", "torch"),
                THEIRS: self.trl_python and versions(self.trl_python, "trl", "transformers", "torch"),
            },
            "machine": machine(),
            "threads": self.work.threads,
            "load": {"before": load, "after": os.getloadavg()[0]},
            "measured": measured,
        }

    def _work(self, side: str) -> Path:
        self.runs += 1
        return self.folder / f"{self.runs:03d}_{side}"

    def _command(self, side: str, work: Path, steps: int) -> list[str]:
        return self._ours(work, steps) if side == OURS else self._trl(work, steps)

    def _ours(self, work: Path, steps: int) -> list[str]:
        settings: dict[str, Any] = {
            "algorithm.kl.where": "none",
            "algorithm.clip_low": step_work.CLIP,
            "algorithm.clip_high": step_work.CLIP,
            "task.name": f"{HERE / 'step_work.py'}:tasks",
            "model.path": self.model,
            "model.device": "cpu",
            "task.max_prompt_tokens": 64,
            "rollout.prompts": self.work.prompts,
            "rollout.samples": self.work.samples,
            "rollout.max_tokens": self.work.new_tokens,
            "update.policy.lr": step_work.LEARNING_RATE,
            "update.policy.betas": list(step_work.BETAS),
            "update.policy.max_grad_norm": step_work.MAX_GRAD_NORM,
            "train.steps": steps,
            "run.dir": work.parent,
            "run.name": work.name,
            "run.threads": self.work.threads,
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        return [sys.executable, "-m", "toolwright", "train", "algorithm=grpo", *words]

    def _trl(self, work: Path, steps: int) -> list[str]:
        assert self.trl_python is not None
        return [self.trl_python, str(HERE / "trl_step.py"), str(self.model), str(steps), str(work)]

    def _read_ours(self, work: Path, *, skip: int) -> None:
        rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
        lengths = {row["response/tokens_mean"] for row in rows}
        if lengths != {self.work.new_tokens}:
            raise SystemExit(f"toolwright: answers of {lengths} tokens, expected {self.work.new_tokens}")
        for part, values in self.parts.items():
            values += [row[f"time/{part}_s"] for row in rows[skip:]]


class Player:
    """A process that does one step whenever it is told to, and sleeps in between."""

    def __init__(self, command: Sequence[str], work: Path, environment: dict[str, str]) -> None:
        self.command, self.log = command, work.with_suffix(".log")
        hear, to = os.pipe()
        back, self._turn = os.pipe()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env={**environment, step_work.TURNS: f"{to},{back}"},
                pass_fds=(to, back),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(to)
        os.close(back)
        self._hear = os.fdopen(hear)

    def go(self) -> None:
        os.write(self._turn, b".")

    def wait(self) -> tuple[float, float]:
        """Until its turn is over: what it took, by the wall and of the processor."""
        line = self._hear.readline()
        if not line:
            self.process.wait()
            raise SystemExit(failure(self.command, self.process.returncode, self.log.read_text()))
        wall, cpu = map(float, line.split())
        return wall, cpu

    def finish(self) -> None:
        os.close(self._turn)  # with nobody to wait for it runs to its end
        if self.process.wait():
            raise SystemExit(failure(self.command, self.process.returncode, self.log.read_text()))
        self._hear.close()


def play(players: dict[str, Player], turns: int) -> dict[str, list[tuple[float, float]]]:
    """A step of one, a step of the other, and so on; then both run to their end."""
    took: dict[str, list[tuple[float, float]]] = {side: [] for side in players}
    for player in players.values():
        player.wait()
    for turn in range(turns):
        for side in _in_turn(list(players), turn):
            players[side].go()
            took[side].append(players[side].wait())
    for player in players.values():
        player.finish()
    return took


def make_model(folder: Path) -> None:
    """An ordinary Hugging Face folder whose end token cannot be drawn."""
    from toolwright.config.schema import Model
    from toolwright.models import huggingface
    from toolwright.trainer.building import build_model

    shape = Model(layers=5, width=128, heads=4, kv_heads=2, ffn=384, context=256, device="cpu")
    decoder, tokenizer = build_model(shape, step_work.ALPHABET, seed=0)
    beyond = {**decoder.shape.extra, "eos_token_id": decoder.shape.vocab}
    decoder.shape = replace(decoder.shape, extra=beyond)
    del tokenizer.config["eos_token"]
    huggingface.save(decoder, folder)
    tokenizer.save(folder)


def endless(source: Path, folder: Path) -> None:
    """The same for a folder from the hub: its weights, and an end token that cannot be drawn."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name not in ("config.json", "generation_config.json", "tokenizer_config.json"):
            (folder / path.name).symlink_to(path.resolve())
    config = json.loads((source / "config.json").read_text())
    config["eos_token_id"] = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer.pop("eos_token", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def parameters_of(folder: Path) -> int:
    from safetensors import safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as weights:
            names = weights.keys()
            count += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    return count


def until_first_step(command: Sequence[str], environment: dict[str, str]) -> float:
    """Runs the command to its end. Seconds from its start until it says that step 1 is finished."""
    first, lines = None, []
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if first is None and line.startswith("step "):
                first = time.perf_counter() - started
            lines.append(line)
    if process.returncode or first is None:
        raise SystemExit(failure(command, process.returncode, "".join(lines)))
    return first


def failure(command: Sequence[str], code: int, output: str) -> str:
    return f"{' '.join(command)}\nended with exit code {code}; its last output:\n{output[-4000:]}"


def versions(python: str, *packages: str) -> dict[str, str]:
    code = (
        "import json, platform, sys; from importlib.metadata import version;"
        "print(json.dumps({'python': platform.python_version(), **{p: version(p) for p in sys.argv[1:]}}))"
    )
    answer = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [line for line in described.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def table(result: dict[str, Any]) -> str:
    ours, theirs, work = result[OURS], result.get(THEIRS), result["work"]
    rows = [("", "toolwright", "TRL", "ratio", "target")]
    for key, label, target in (
        ("step_s", "seconds a step", f"<= {work['target']:.2f}"),
        ("step_cpu_s", "  of the processor", ""),
        ("first_step_s", "seconds to the first finished step", f"<= {FIRST_TARGET:.2f}"),
    ):
        compared = (f"{theirs[key]:.3f}", f"{result['ratio'][key]:.2f}") if theirs else ("-", "-")
        rows.append((label, f"{ours[key]:.3f}", *compared, target))
    lines = [f"{label:<36}{a:>11}{b:>9}{c:>8}{d:>10}".rstrip() for label, a, b, c, d in rows]
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in result["parts_s"].items())
    lines += [
        "",
        f"our step  {parts} s",
        f"work      {work['prompts']} prompts x {work['samples']} samples x {work['new_tokens']} new tokens, "
        f"{work['parameters']:,} parameters, float32, 1 update a step, no KL",
        f"ours      {_listed(result['versions'][OURS])}",
        f"TRL       {_listed(result['versions'][THEIRS])}"
        if theirs
        else f"TRL       not measured: pip install trl=={TRL}, here or where --trl-python points",
        f"machine   {result['machine']}; {result['threads']} thread(s) each; "
        f"load {result['load']['before']:.2f} before, {result['load']['after']:.2f} after",
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _in_turn(sides: Sequence[str], number: int) -> list[str]:
    """Who begins alternates."""
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def _medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(column) for name, column in values.items()}


def _paired(measured: dict[str, dict[str, list[float]]], key: str) -> float:
    pairs = zip(measured[OURS][key], measured[THEIRS][key], strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


if __name__ == "__main__":
    main()
