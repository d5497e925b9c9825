"""Mistakes on the command line: one sentence on standard error and exit status 2, whatever the command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from toolwright.cli import main

MISTAKES = {
    "view": "the following arguments are required: RUN; `toolwright view --help` lists the options",
    "view nowhere": "there is no run at nowhere; the folder runs/ has none here either",
    "data": "the following arguments are required: command; `toolwright data --help` lists the options",
    "data show": "the following arguments are required: file; `toolwright data show --help` lists the "
    "options",
    "data mix gone.parquet --out x.parquet": "no such file: gone.parquet",
    "data prepare gsm9k": "argument NAME: invalid choice: 'gsm9k'",
    "data prepare hub gone.csv --map prompt=q": "no such file: gone.csv",
    "model": "the following arguments are required: command; `toolwright model --help` lists the options",
    "model init llama": "the following arguments are required: --out; `toolwright model init --help` lists "
    "the",
    "plan modle=7b": "modle=7b: unknown key; did you mean 'model'?",
    "plan 7b": "7b: expected KEY=VALUE",
    "sandbox": "the following arguments are required: serve | run",
    "sandbox run gone.py": "no such file: gone.py",
    "serve": "the following arguments are required: MODEL; `toolwright serve --help` lists the options",
    "serve nowhere --slots many": "argument --slots: invalid int value: 'many'",
    "completion": "expected one shell: toolwright completion bash | zsh | fish",
    "completion tcsh": "unknown shell 'tcsh'; expected one shell",
    "workflow serach": "unknown command `workflow serach`; did you mean 'search'?",
    "workflow show": "the following arguments are required: RUN",
    "workflow train": "the following arguments are required: FOLDER; `toolwright workflow train --help` "
    "lists",
    "workflow search search.start=gone": "search.start: gone cannot be read: No such file",
    "workflow search data=[gsm8k]": "executor.name=simulated cannot run data=gsm8k: simulated data needs",
    "train model=hugee": "unknown preset 'hugee'; known: small, tiny",
    "train model.path=nowhere": "model.path=nowhere is not a folder; name a Hugging Face folder, or download "
    "one",
    "train engine=http engine.url=nonsense": "engine.url=nonsense: expected an address such as http://host:port",
    "train task=own.py:tasks": "a preset is a name; for your own task, set task.name=own.py:tasks",
    "train reward.function=broken.py:score": "broken.py cannot be imported: SyntaxError: invalid syntax "
    "(line 1)",
    "train run.dir=broken.py/here": "broken.py is not a folder; choose another run.dir",
    "doctor .": ". is not a run folder: it has neither config.yaml nor metrics.jsonl nor log.txt",
    "workflow search search.portfolio=broken.py": "the portfolio broken.py cannot be read: it lists "
    "no workflows",
    "sft demonstrations=runs/nope": "demonstrations=runs/nope: no such file or folder",
    "train run.resume=true": "run.resume=true needs run.name, the run to resume; the folder runs has no runs",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_sentence_and_never_a_traceback(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("x =\n")
    assert main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("toolwright: ")
    assert error.count("\n") == 1
    assert MISTAKES[line] in error
