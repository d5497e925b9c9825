"""verl's entry points beside PPO: each key in one of the four lists, and the same as a command of ours."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.verl.conftest import tasks
from toolwright.config.compose import Source, resolve
from toolwright.tasks import rows
from toolwright.tasks.conversations import conversation_of
from toolwright.verl.command import main_module

SFT = """data.train_files=talks.parquet data.val_files=more.parquet data.prompt_key=extra_info
    data.response_key=extra_info +data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer']
    data.micro_batch_size_per_gpu=4 data.train_batch_size=8 data.max_length=512 data.truncation=right
    model.partial_pretrain=weights/base model.lora_rank=16 model.lora_alpha=32 model.target_modules=all-linear
    optim.lr=1e-4 optim.weight_decay=0.1 optim.warmup_steps_ratio=0.1 optim.lr_scheduler=cosine
    optim.betas=[0.9,0.95] optim.clip_grad=1.0 trainer.total_epochs=2 trainer.project_name=p
    trainer.experiment_name=e trainer.logger=['console'] trainer.default_local_dir=kept/sft
    trainer.n_gpus_per_node=8 trainer.nnodes=1 ulysses_sequence_parallel_size=2 use_remove_padding=true
    engine.strategy=fsdp2 model.trust_remote_code=true checkpoint.save_contents=[model]
    trainer.save_freq=-1"""
GENERATION = """trainer.nnodes=1 trainer.n_gpus_per_node=2 data.path=asked.parquet data.prompt_key=prompt
    data.n_samples=4 data.output_path=kept/said.parquet model.path=weights/base rollout.temperature=0.7
    rollout.top_k=50 rollout.top_p=0.9 rollout.prompt_length=512 rollout.response_length=256
    rollout.tensor_model_parallel_size=2 rollout.gpu_memory_utilization=0.8"""
MERGE = "merge --backend fsdp --local_dir kept/checkpoints/step_3 --target_dir out"
LINES = {
    "sft": ("verl.trainer.fsdp_sft_trainer", SFT, "toolwright sft demonstrations=talks.parquet"),
    "sft by torchrun": (
        "torchrun",
        f"--nnodes=1 --nproc_per_node=4 -m verl.trainer.sft_trainer {SFT}",
        "toolwright sft demonstrations=talks.parquet",
    ),
    "sft by a launcher": ("somebodys.launch", f"verl.trainer.sft_trainer {SFT}", "toolwright sft"),
    "generation": ("verl.trainer.main_generation", GENERATION, "toolwright eval task=file"),
    "merge": ("verl.model_merger", MERGE, "toolwright model convert kept/checkpoints/step_3 --out out"),
    "an older merge": ("scripts/legacy_model_merger.py", MERGE, "toolwright model convert"),
    "data": (
        "examples/data_preprocess/gsm8k.py",
        "--local_dir data/gsm8k",
        "toolwright data prepare gsm8k --out data/gsm8k",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_shown_as_a_command_of_ours(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, words, ours = LINES[name]
    assert main_module([module, *words.split(), "--show", "--fit"]) == 0
    assert ours in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sft", "generation"])
def test_every_key_is_in_one_of_the_lists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, words, _ = LINES[name]
    main_module([module, *words.split(), "--show", "--fit"])
    shown = capsys.readouterr().out
    keys = [word.lstrip("+").partition("=")[0] for word in words.split()]
    assert [key for key in keys if key not in shown] == []


def test_what_is_near_needs_fit_and_a_misspelt_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module(["verl.trainer.sft_trainer", *SFT.split(), "--show"]) == 2
    assert "--fit accepts that" in capsys.readouterr().err
    assert main_module(["verl.trainer.sft_trainer", "optim.lrr=1", "--show", "--fit"]) == 2
    assert "did you mean optim.lr?" in capsys.readouterr().err
    assert main_module(["verl.trainer.main_eval", "data.path=x", "--show"]) == 2
    assert "toolwright eval" in capsys.readouterr().err


def test_epochs_are_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tasks(tmp_path / "talks.parquet", count=40)
    words = [f"data.train_files={file}", "data.train_batch_size=8", "trainer.total_epochs=3", "model.path=m"]
    words += ["optim.lr_warmup_steps_ratio=0.2", "optim.lr=1e-4", "optim.min_lr=1e-5"]
    assert main_module(["verl.trainer.sft_trainer", *words, "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    for word in ("epochs=3", "steps=auto", "optimizer.warmup_steps=3", "optimizer.min_lr_ratio=0.1"):
        assert word in shown
    assert "verl drops them" not in shown
    assert (
        main_module(["verl.trainer.sft_trainer", *words, "data.train_batch_size=12", "--show", "--fit"]) == 0
    )
    assert "10 steps: the rows at the end of an epoch are learned too" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["trainer.save_freq=-1"], ["checkpoint.every=0", "checkpoint.minutes=0"]),
        (["trainer.save_freq=5"], ["checkpoint.every=5", "checkpoint.minutes=0", "checkpoint.keep=5"]),
        (["trainer.save_freq=5", "trainer.max_ckpt_to_keep=3"], ["checkpoint.every=5", "checkpoint.keep=3"]),
        (["trainer.save_freq=after_each_epoch"], ["checkpoint.every=5", "checkpoint.keep=5"]),
    ],
)
def test_checkpoints_of_sft_are_written_as_in_verl(
    words: list[str], becomes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tasks(tmp_path / "talks.parquet", count=40)
    line = [f"data.train_files={file}", "data.train_batch_size=8", "trainer.total_epochs=3", "model.path=m"]
    assert main_module(["verl.trainer.sft_trainer", *line, *words, "--show", "--fit"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert set(becomes) <= set(command)


def test_sft_resumes_a_run_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "kept/mine", tmp_path / "global_step_4"
    run.mkdir(parents=True)
    line = ["verl.trainer.sft_trainer", "data.train_files=talks.parquet", "model.path=m", "--show", "--fit"]

    def shown(*words: str) -> tuple[int, list[str]]:
        code = main_module([*line, *words])
        return code, capsys.readouterr().out.splitlines()[-1].split()

    folder = f"trainer.default_local_dir={run}"
    assert "run.resume=false" in shown(folder, "trainer.resume_mode=auto")[1]
    (run / "config.yaml").write_text("{}")
    resumed = {"run.resume=true", "run.name=mine", f"run.dir={run.parent}", "steps=auto", "epochs=4"}
    assert resumed <= set(shown(folder)[1])
    place = f"trainer.resume_from_path={run}/checkpoints/step_4"
    assert resumed <= set(shown("trainer.resume_mode=resume_path", place)[1])
    assert "run.name=mine-2" in shown(folder, "trainer.resume_mode=disable")[1]
    for words in ([f"trainer.resume_from_path={other}"], []):
        assert shown("trainer.resume_mode=resume_path", *words)[0] == 2


def test_conversations_are_found_by_their_columns() -> None:
    talk = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    for row in (
        {"messages": talk},
        {"question": "1+1=", "answer": "2"},
        {"prompt": talk[:1], "completion": talk[1:]},
        {"prompt": "?", "extra_info": {"question": "1+1=", "answer": "2"}},
    ):
        assert conversation_of(row, "row 1").messages == talk


def test_a_line_of_sft_trains(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talks.parquet"
    rows.write(file, [{"extra_info": {"question": f"{n}+1=", "answer": str(n + 1)}} for n in range(8)])
    words = [f"data.train_files={file}", f"model.partial_pretrain={model}", "data.train_batch_size=4"]
    words += ["data.max_length=64", "trainer.total_epochs=1", "optim.lr=1e-3"]
    words += [f"trainer.default_local_dir={tmp_path / 'kept' / 'warm'}", "toolwright.run.threads=1"]
    assert main_module(["verl.trainer.fsdp_sft_trainer", *words, "--fit"]) == 0
    written = (tmp_path / "kept" / "warm" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(written[-1])["step"] == 2
    assert (tmp_path / "kept" / "warm" / "model" / "config.json").is_file()
    words = [word.replace("total_epochs=1", "total_epochs=2") for word in words]
    assert main_module(["verl.trainer.fsdp_sft_trainer", *words, "--fit"]) == 0, "the same line resumes"
    steps = [json.loads(line)["step"] for line in (tmp_path / "kept/warm/metrics.jsonl").open()]
    assert steps == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        ("model.fsdp_config.model_dtype=bfloat16", 0, "Nearly so"),
        ("model.fsdp_config.model_dtype=fp32", 0, "as it is here"),
        ("optim.lr_scheduler=wsd", 0, "Nearly so"),
        ("optim.optimizer=AdamW", 0, "as it is here"),
        ("optim.optimizer=Muon", 2, "Refused"),
    ],
)
def test_what_would_learn_otherwise_is_said_of_sft_too(
    word: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data.train_files=talks.parquet", "model.partial_pretrain=m", word, "--show", "--fit"]
    assert main_module(["verl.trainer.fsdp_sft_trainer", *words]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "becomes"),
    [
        ("fsdp_sft_trainer", ["optimizer.lr=1e-05", "optimizer.betas=[0.9, 0.95]", "optimizer.decay=cosine"]),
        ("sft_trainer", ["optimizer.lr=0.001", "optimizer.betas=[0.9, 0.999]", "optimizer.decay=constant"]),
        ("main_generation", ["eval.samples=5", "eval.sampling.top_p=0.7", "eval.sampling.top_k=50"]),
    ],
)
def test_what_a_line_does_not_say_is_as_in_verl(
    module: str, becomes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"main_generation": "data.path=asked.parquet"}.get(module, "data.train_files=talks.parquet")
    assert main_module([f"verl.trainer.{module}", words, "model.path=m", "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    assert [text for text in becomes if text not in shown] == []


def test_sft_without_an_adapter_and_with_quoted_betas_is_a_configuration_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ["model.lora_rank=0", "optim.betas='[0.9,0.98]'", "optim.lr_min=1e-5"]
    assert main_module(["verl.trainer.sft_trainer", *SFT.split(), *more, "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    line = shlex.split(shown.strip().splitlines()[-1])
    config = resolve(Source("sft"), line[2:]).config
    assert config.model.lora.rank is None
    assert tuple(config.optimizer.betas) == (0.9, 0.98)
    assert config.optimizer.min_lr_ratio == pytest.approx(0.1)


def test_a_key_of_ours_wins_over_a_translated_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=talks.parquet", "model.partial_pretrain=m", "optim.lr=1e-4"]
    command = ["verl.trainer.fsdp_sft_trainer", *words, "toolwright.optimizer.lr=2e-4", "--show", "--fit"]
    assert main_module(command) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.count("optimizer.lr=") == 1
    assert line.endswith("optimizer.lr=2e-4")
