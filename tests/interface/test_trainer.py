"""The trainer as an object: its steps, its folder, leaving early, going on, and the model it saves."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toolwright as tw
from toolwright.trainer.loop import train

from .runs import SMALL, first_letter, small

HERE = Path(__file__).parent


def learned(trainer: tw.Trainer) -> dict[int, Any]:
    """What two runs that went the same way have in common."""
    return {row["step"]: (row["reward/mean"], row["policy/loss"]) for row in trainer.metrics if row["step"]}


def test_a_loop_over_a_trainer_gives_its_steps(tmp_path: Path) -> None:
    steps = list(small(tmp_path, reward=first_letter))
    assert [step.number for step in steps] == [1, 2, 3]
    for step in steps:
        assert 0 <= step.metrics["reward/mean"] <= 1
        assert len(step.attempts) == 8
        assert {attempt.reward for attempt in step.attempts} <= {0.0, 1.0}
        assert all(attempt.response for attempt in step.attempts)


def test_the_run_folder_is_that_of_the_command_line(tmp_path: Path) -> None:
    words = (f"run.dir={tmp_path}", "run.name=command")
    train(tw.config(*SMALL, *words), command=["toolwright", "train"])
    folder = small(tmp_path, name="python").run()
    assert {f.name for f in folder.iterdir()} == {f.name for f in (tmp_path / "command").iterdir()}
    assert learned(tw.Trainer("run.name=python", "run.resume=true", f"run.dir={tmp_path}")) == learned(
        tw.Trainer("run.name=command", "run.resume=true", f"run.dir={tmp_path}")
    )


def test_leaving_the_loop_writes_a_checkpoint_and_a_new_trainer_goes_on_from_it(tmp_path: Path) -> None:
    whole = small(tmp_path, name="whole", reward=first_letter)
    whole.run()
    broken = small(tmp_path, name="broken", reward=first_letter)
    for step in broken:
        if step.number == 2:
            break
    broken.close()
    assert (broken.folder / "checkpoints/step_2").is_dir()
    assert (broken.folder / "report.html").is_file()
    again = tw.Trainer("run.name=broken", "run.resume=true", f"run.dir={tmp_path}", reward=first_letter)
    assert [step.number for step in again] == [3]
    assert learned(again) == learned(whole)


def test_a_second_loop_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    trainer = small(tmp_path, reward=first_letter)
    for _ in trainer:
        break
    assert [step.number for step in trainer] == [2, 3]
    assert list(trainer) == []


def test_an_error_in_the_loop_leaves_a_checkpoint(tmp_path: Path) -> None:
    trainer = small(tmp_path, reward=first_letter)
    with pytest.raises(ZeroDivisionError):
        [1 / (2 - step.number) for step in trainer]
    trainer.close()
    assert (trainer.folder / "checkpoints/step_2").is_dir()


def fails(solution_str: str) -> float:
    raise KeyError(solution_str)


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: tw.Trainer("train.step=3"),
        lambda folder: tw.Trainer("model.path=nowhere"),
        lambda folder: small(folder, reward=fails).run(),
        lambda folder: tw.evaluate(model="nowhere"),
        lambda folder: tw.sft("demonstrations=nowhere.jsonl", f"run.dir={folder}"),
    ],
)
def test_the_traceback_of_a_mistake_has_no_calls_within_the_package(
    act: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(tw.UserError) as caught:
        act(tmp_path)
    frames = [Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)]
    inside = [frame for frame in frames if frame.is_relative_to(Path(tw.__file__).parent)]
    assert {frame.parent.name for frame in inside} == {"interface"}
    assert len(inside) <= 4


def test_a_closed_trainer_says_how_to_go_on(tmp_path: Path) -> None:
    trainer = small(tmp_path)
    trainer.close()
    trainer.close()
    with pytest.raises(tw.UserError, match=r"is closed; continue with Trainer\('run.name=run', "):
        trainer.run()
    with pytest.raises(tw.UserError, match="has no model"):
        trainer.save(tmp_path / "out")


def test_closing_an_iterator_that_somebody_keeps_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    trainer = small(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    steps = iter(trainer)
    assert next(steps).number == 1
    trainer.close()
    assert signal.getsignal(signal.SIGINT) is before
    assert (trainer.folder / "checkpoints/step_1").is_dir()


KEPT = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from interface.runs import small

trainer = small(Path({folder!r}))
steps = iter(trainer)
print(next(steps).number)
"""


@pytest.mark.parametrize("more", ["", "again = iter(trainer)\nprint(next(again).number)\n"])
def test_an_iterator_that_a_script_keeps_to_its_end_leaves_a_checkpoint(tmp_path: Path, more: str) -> None:
    script = KEPT.format(here=str(HERE.parent), folder=str(tmp_path)) + more
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / f"run/checkpoints/step_{2 if more else 1}").is_dir()


def test_the_saved_model_is_the_one_that_was_trained(tmp_path: Path) -> None:
    trainer = small(tmp_path, reward=first_letter)
    for step in trainer:
        if step.number == 2:
            during = trainer.save(tmp_path / "during")
            break
    weights = (during / "model.safetensors").read_bytes()
    assert weights == (trainer.folder / "model/model.safetensors").read_bytes()
    trainer.run()
    after = trainer.save(tmp_path / "during")
    assert (after / "model.safetensors").read_bytes() != weights
    result = tw.evaluate("task=reverse", "task.held_out_size=4", model=after, reward=first_letter)
    assert result["held_out/attempts"] == 4


def test_saving_over_something_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("years of work")
    with small(tmp_path) as trainer, pytest.raises(tw.UserError, match="exists and is not a model's folder"):
        trainer.save(tmp_path / "precious")


def test_it_works_in_a_notebook_which_has_an_event_loop_running(tmp_path: Path) -> None:
    async def cell() -> list[int]:
        trainer = small(tmp_path, reward=first_letter)
        numbers = [step.number for step in trainer]
        await asyncio.sleep(0)  # the notebook's own loop goes on
        assert tw.evaluate(*SMALL[:4], model=trainer.save(tmp_path / "out"))["held_out/attempts"] == 4
        return numbers

    assert asyncio.run(cell()) == [1, 2, 3]


def test_progress_where_there_is_no_terminal_is_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path).run()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "step 3/3" in shown


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {here!r})
{before}
from interface.runs import small
from pathlib import Path
for step in small(Path({folder!r}), reward=lambda solution_str: len(solution_str)):
    os.kill(os.getpid(), signal.SIGINT)
    print("the body goes on", flush=True)
"""


@pytest.mark.parametrize("before", ["", "sys.ps1 = '>>> '"], ids=["script", "prompt"])
def test_ctrl_c_in_a_script_writes_a_checkpoint_and_ends_it(tmp_path: Path, before: str) -> None:
    script = SCRIPT.format(here=str(HERE.parent), folder=str(tmp_path), before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stdout.count("the body goes on") == 1
    assert "stopping; a checkpoint is written first" in done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert (tmp_path / "run/checkpoints/step_1").is_dir()


def test_a_second_ctrl_c_does_not_kill_a_notebook(tmp_path: Path) -> None:
    script = SCRIPT.format(here=str(HERE.parent), folder=str(tmp_path), before="sys.ps1 = '>>> '")
    body = '    os.kill(os.getpid(), signal.SIGINT)\n    print("the'
    twice = script.replace(body, "    os.kill(os.getpid(), signal.SIGINT)\n" + body)
    twice = "import time\ntry:\n" + "".join(f"    {line}\n" for line in twice.splitlines())
    # Longer than a script that was told twice is given.
    twice += "except KeyboardInterrupt:\n    time.sleep(3)\n    print('still here')\n"
    done = subprocess.run([sys.executable, "-c", twice], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "still here"


def test_a_chart_is_a_picture_with_its_own_style(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    trainer = small(tmp_path, reward=first_letter)
    with pytest.raises(tw.UserError, match="no step has been taken"):
        trainer.chart()
    trainer.run()
    chart = trainer.chart("reward/mean")
    assert repr(chart).startswith("MetricsChart(reward/mean")
    chart.save(tmp_path / "chart.svg")
    picture = ElementTree.parse(tmp_path / "chart.svg").getroot()
    assert picture.tag.endswith("svg")
    assert "--c1" in picture[0].text
    legend = [text for text in picture.iter() if text.tag.endswith("text")][-1]
    assert "".join(legend.itertext()) == "■ reward/mean"
    assert "■" in chart._repr_html_()
    with pytest.raises(tw.UserError, match="no step has a metric 'reward/men'; did you mean 'reward/mean'"):
        trainer.chart("reward/men")
