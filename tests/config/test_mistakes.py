"""A mistake is one message that names the key, the value and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Complaint = Callable[..., str]
Write = Callable[[str, str], Path]


FORM = "settings are written like rollout.samples=8 or algorithm=grpo"


@pytest.mark.parametrize(
    "mistakes",
    [
        {  # keys that do not exist
            "rollout.sampels=4": "unknown key; did you mean rollout.samples?",
            "rolout.samples=4": "unknown key; did you mean rollout.samples?",
            "lr=3": "unknown key; did you mean update.policy.lr or update.critic.lr?",
            "rollout.samples.x=4": "unknown key; did you mean rollout.samples?",
            "foo/bar=3": "unknown config group; known: algorithm, engine, model, runtime, task",
        },
        {  # values that cannot be
            "rollout.samples=many": "expected a positive integer, found 'many'",
            "rollout.prompts=0": "expected a positive integer, found 0",
            "rollout.max_tokens=true": "expected a positive integer or auto, found true",
            "train.steps=null": "expected a positive integer, found null",
            "checkpoint.keep=": "expected a positive integer, found ''",
            "run.threads=0": "expected a positive integer or null, found 0",
            "rollout.top_p=1.5": "expected a number > 0 and ≤ 1, found 1.5",
            "update.policy.lr=nan": "expected a positive number or auto, found nan",
            "update.policy.betas=[0.9]": "expected a list of 2 numbers ≥ 0 and < 1, found [0.9]",
            "update.critic.betas=[0.9, 1]": "expected a list of 2 numbers ≥ 0 and < 1, found [0.9, 1]",
            "rollout.stop=[[1]]": "expected a list of strings, found [[1]]",
            "run.resume=maybe": "expected true or false, found 'maybe'",
            "eval=5": "expected a block of keys, found 5",
            "algorithm.params.gigpo=5": "expected a block of keys, found 5",
            "runtime.placement.policy.ranks={sequnce: 2}": (
                "expected a positive integer or {data, sequence, tensor}, found {sequnce: 2}"
            ),
            "algorithm.kl.where=los": "expected one of none, reward, loss, found 'los'; did you mean 'loss'?",
        },
        {  # words that are no settings
            "rollout": "not a key=value; `toolwright config` shows its value, rollout=… sets it",
            "grpo": "not a key=value; did you mean algorithm=grpo?",
            "xyzzy": f"not a key=value; {FORM}",
            "=4": "no key before the =",
            "rollout..samples=4": f"cannot be read; {FORM}",
            "rollout.samples=4,8": "several values; add --multirun for a run of each, "
            "or write a list as rollout.samples=[4,8]",
            "rollout.stop=[</a>, b]": "the value cannot be read; close every bracket and quote text: "
            """'rollout.stop=["</a>","b"]'""",
            "rollout.prompts=[1": "the value cannot be read; close every bracket and quote text: "
            """'rollout.prompts="[1"'""",
            'run.name="x': "the value cannot be read; close every bracket and quote text: "
            """'run.name="\\"x"'""",
        },
    ],
    ids=["keys", "values", "words"],
)
def test_every_mistake_on_the_command_line_is_named(complaint: Complaint, mistakes: dict[str, str]) -> None:
    heading, *lines = complaint(*mistakes).splitlines()
    assert heading == f"{len(mistakes)} problems in the configuration:"
    assert sorted(lines) == sorted(f"  {word}: {said}" for word, said in mistakes.items())


def test_a_single_mistake_is_a_single_line(complaint: Complaint) -> None:
    assert complaint("rollout.samples=many") == (
        "rollout.samples=many: expected a positive integer, found 'many'"
    )


def test_an_unknown_key_among_a_few_names(complaint: Complaint) -> None:
    assert (
        complaint("eval.sampling.topk=5") == "eval.sampling.topk=5: unknown key; expected 'top_p' or 'top_k'"
    )


def test_mistakes_in_a_block_and_in_a_removal(complaint: Complaint) -> None:
    said = complaint("rollout={sampels: 3}", "model={layres: 3}", "~eval.sampels")
    assert "model.layres=3: unknown key; did you mean model.layers?" in said
    assert "rollout.sampels=3: unknown key; did you mean rollout.samples?" in said
    assert "eval.sampels: unknown key; did you mean eval.samples?" in said


def test_keys_of_a_block_that_cannot_go_together(complaint: Complaint) -> None:
    words = [
        "model.width=100",
        "algorithm.kl.where=none",
        "algorithm.kl.target=6",
        "algorithm.correction.mode=mask",
        "algorithm.correction.low=3",
    ]
    assert complaint(*words).splitlines()[1:] == [
        "  model.width=100 must be a multiple of 2 × model.heads=4",
        "  algorithm.kl.target=6.0 has no effect if algorithm.kl.where=none",
        "  algorithm.correction.low=3.0 must be below algorithm.correction.high=2.0",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["update.minibatches=9", "rollout.prompts=2", "rollout.samples=4"],
            "update.minibatches=9 is more than the 2 × 4 trajectories of a step",
        ),
        (
            ["rollout.max_tokens=500"],
            "rollout.max_tokens=500 leaves no room for a prompt in model.context=256",
        ),
        (
            ["task.name=file"],
            "task.name=file needs task.train, a Parquet or JSON lines file, or task.held_out for eval",
        ),
    ],
)
def test_blocks_that_cannot_go_together(complaint: Complaint, words: list[str], said: str) -> None:
    assert complaint(*words) == said


def test_an_unknown_preset_lists_the_presets(complaint: Complaint) -> None:
    said = complaint("algorithm=gprp")
    assert said.startswith("algorithm=gprp: unknown preset 'gprp'; did you mean algorithm=grpo? Known: ")
    assert "known" in complaint("algorithm=null").lower()


def test_an_unknown_name_lists_the_registered_ones(complaint: Complaint) -> None:
    mistakes = {
        "algorithm.adv_estimator=grop": "unknown advantage estimator 'grop'; did you mean 'grpo'? Known: ",
        "algorithm.loss=poo": "unknown loss 'poo'; did you mean 'ppo'? Known: ",
        "algorithm.kl.estimator=k9": "unknown KL estimator 'k9'; known: abs, abs+, k1, ",
        "algorithm.aggregate=token_mean": "unknown aggregation 'token_mean'; did you mean 'token-mean'? ",
        "task.name=arithmetik": "unknown task 'arithmetik'; did you mean 'arithmetic'? Known: ",
        "rollout.agent=singel_turn": "unknown agent 'singel_turn'; did you mean 'single_turn'? Known: ",
    }
    said = complaint(*mistakes)
    for word, expected in mistakes.items():
        assert f"\n  {word}: {expected}" in said


def test_a_key_set_twice(complaint: Complaint) -> None:
    said = complaint("rollout.samples=4", "+rollout.samples=8")
    assert said == "+rollout.samples=8: set twice, first as rollout.samples=4; remove one of them"


def test_all_mistakes_are_listed_together(complaint: Complaint) -> None:
    said = complaint(
        "rollout.sampels=4", "rollout.samples=many", "algorithm=gprp", "dapo", "task.name=arithmetik"
    )
    heading, *rest = said.splitlines()
    assert heading == "5 problems in the configuration:"
    assert [line.split(":")[0].strip() for line in rest] == [
        "rollout.sampels=4",
        "algorithm=gprp",
        "dapo",
        "rollout.samples=many",
        "task.name=arithmetik",
    ]


def test_combinations_are_not_checked_if_an_override_is_unknown(complaint: Complaint) -> None:
    assert "minibatches" not in complaint("update.minibatches=1000", "rollout.promts=500")


def test_mistakes_in_a_users_file_name_the_file(complaint: Complaint, write: Write) -> None:
    write("conf/mine.yaml", "defaults: [train, _self_]\nrollout: {sampels: 4, prompts: few}\n")
    assert complaint(config_dir="conf", config_name="mine").splitlines()[1:] == [
        "  rollout.prompts=few (file conf/mine.yaml): expected a positive integer, found 'few'",
        "  rollout.sampels=4 (file conf/mine.yaml): unknown key; did you mean rollout.samples?",
    ]


def test_mistakes_in_a_users_preset_name_the_file(complaint: Complaint, write: Write) -> None:
    write("conf/algorithm/mix.yaml", "clip_hgih: 3\n")
    assert complaint("algorithm=mix", config_dir="conf") == (
        "algorithm.clip_hgih=3 (file conf/algorithm/mix.yaml): unknown key; did you mean algorithm.clip_high?"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "defaults: [train, override algorithm: gprp]",
            "algorithm=gprp (config mine): unknown preset 'gprp'; ",
        ),
        ("defaults: [trian]", "trian (config mine): the defaults list names it, but there is no such file"),
        (
            "rollout: {samples: 4}",
            "mine: it does not build on `train`; begin the file with\n  defaults:\n    - train",
        ),
        ("rollout: {samples: 4", "conf/mine.yaml, line 2: not valid YAML"),
        ("- rollout.samples=4", "conf/mine.yaml should hold keys and values, such as `rollout:` over `"),
        ("defaults: [train]\nrun: {name: '${run.nmae}'}", "run.name: Interpolation key 'run.nmae' not found"),
    ],
)
def test_a_users_file_that_cannot_work(complaint: Complaint, write: Write, text: str, said: str) -> None:
    write("conf/mine.yaml", text + "\n")
    assert complaint(config_dir="conf", config_name="mine").startswith(said)


def test_a_users_file_that_is_no_text_is_named(complaint: Complaint, write: Write) -> None:
    write("conf/mine.yaml", "")
    Path("conf/mine.yaml").write_bytes(b"\xff\xfe")
    assert complaint(config_dir="conf", config_name="mine").startswith("conf/mine.yaml cannot be read: ")


def test_a_file_with_the_name_of_a_built_in_preset(complaint: Complaint, write: Write) -> None:
    write("conf/algorithm/grpo.yaml", "clip_high: 3\n")
    assert "conf/algorithm/grpo.yaml: a built-in preset has this name" in complaint(
        "algorithm=grpo", config_dir="conf"
    )


def test_folders_and_files_that_are_not_there(complaint: Complaint, write: Write) -> None:
    write("conf/mine.yaml", "defaults: [train]\n")
    assert complaint(config_dir="nope") == "--config-dir nope: no such folder"
    assert "did you mean 'mine'?" in complaint(config_dir="conf", config_name="mien")


def test_sft_names_the_command_that_has_the_key(complaint: Complaint) -> None:
    said = complaint("update.epochs=4", "algorithm=grpo", command="sft")
    assert "update.epochs=4: a key of `train`, which `sft` does not have" in said
    assert "algorithm=grpo: `sft` has no presets of algorithm; known: model, task" in said


def test_messages_have_no_jargon_of_hydra_or_pydantic(complaint: Complaint) -> None:
    for word in ["rollout.samples=x", "rollout=5", "a b=3", "hydra.nope=3", "hydra/launcher=nope"]:
        said = complaint(word).lower()
        assert not any(jargon in said for jargon in ("pydantic", "http", "input should", "antlr", "_error"))
