"""What verl's words become, table by table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verl.conftest import BARE, Line, tasks
from toolwright.verl.config import Machine
from toolwright.verl.translate import translate

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
GAE = "algorithm.adv_estimator=gae"
CORRECTION = "algorithm.rollout_correction."


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["algorithm.adv_estimator=grpo"], {"algorithm.adv_estimator": "grpo"}),
        (["algorithm.adv_estimator=rloo_vectorized"], {"algorithm.adv_estimator": "rloo"}),
        ([], {"algorithm.adv_estimator": "gae", "algorithm.name": "ppo"}),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {"algorithm.normalize_by_std": False}),
        # Losses.
        ([], {"algorithm.loss": "ppo", "algorithm.aggregate": "token-mean", "algorithm.norm_tokens": 512}),
        ([f"{ACTOR}policy_loss.loss_mode=geo_mean"], {"algorithm.loss": "gmpo"}),
        ([f"+{ACTOR}loss_mode=geo_mean"], {"algorithm.loss": "gmpo"}),
        ([f"{ACTOR}policy_loss.loss_mode=gspo"], {"algorithm.aggregate": "seq-mean-token-mean"}),
        ([f"{ACTOR}policy_loss.loss_mode=sapo"], {"algorithm.aggregate": "seq-mean-token-mean"}),
        ([f"{ACTOR}policy_loss.loss_mode=gpg"], {"algorithm.loss": "gpg"}),
        ([f"{ACTOR}policy_loss.loss_mode=kl_cov"], {"algorithm.params.kl_cov.ppo_kl_coef": 0.1}),
        ([f"{ACTOR}policy_loss.loss_mode=clip_cov"], {"algorithm.params.clip_cov.clip_cov_ub": 5.0}),
        ([f"{ACTOR}clip_ratio=0.3"], {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.3}),
        ([f"{ACTOR}clip_ratio=0.3", f"{ACTOR}clip_ratio_high=0.28"], {"algorithm.clip_high": 0.28}),
        ([f"{ACTOR}entropy_coeff=0.01"], {"algorithm.entropy_coef": 0.01}),
        # The reference.
        ([], {"algorithm.kl.where": "none", "algorithm.kl.target": None}),
        (
            [f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=mse", f"{ACTOR}kl_loss_coef=0.02"],
            {"algorithm.kl.where": "loss", "algorithm.kl.estimator": "k2", "algorithm.kl.coef": 0.02},
        ),
        ([f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_type=low_var_kl+"], {"algorithm.kl.estimator": "k3+"}),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"],
            {"algorithm.kl.where": "reward", "algorithm.kl.estimator": "k1", "algorithm.kl.target": 0.1},
        ),
        # The optimiser.
        (
            [],
            {
                "update.policy.lr": 1e-6,
                "update.policy.weight_decay": 0.01,
                "update.policy.betas": [0.9, 0.999],
            },
        ),
        ([f"{ACTOR}optim.warmup_style=cosine"], {"update.policy.decay": "cosine"}),
        ([f"{ACTOR}grad_clip=0.5"], {"update.policy.max_grad_norm": 0.5}),
        ([GAE], {"update.critic.lr": 1e-5, "algorithm.clip_value": 0.5}),
        ([GAE, "critic.optim.lr=2e-5", "trainer.critic_warmup=3"], {"update.critic.lr": 2e-5}),
        # Sampling.
        ([f"{ROLLOUT}top_k=-1"], {"rollout.top_k": 0}),
        ([f"{ROLLOUT}top_k=50", f"{ROLLOUT}top_p=0.9"], {"rollout.top_k": 50, "rollout.top_p": 0.9}),
        ([], {"eval.temperature": 0.0}),
        ([f"{ROLLOUT}val_kwargs.temperature=0.7"], {"eval.temperature": 0.7}),
        (
            [f"{ROLLOUT}val_kwargs.temperature=0.7", f"{ROLLOUT}val_kwargs.do_sample=False"],
            {"eval.temperature": 0.0},
        ),
        (
            [f"{ROLLOUT}val_kwargs.temperature=0.7", f"{ROLLOUT}val_kwargs.do_sample=True"],
            {"eval.temperature": 0.7, "eval.sampling.top_p": 1.0, "eval.sampling.top_k": 0},
        ),
        (["trainer.val_before_train=False", "trainer.test_freq=5"], {"eval.at_start": False}),
        (
            ["data.max_prompt_length=100", "data.max_response_length=50"],
            {"task.max_prompt_tokens": 100, "rollout.max_tokens": 50, "model.context": 150},
        ),
        ([f"{ROLLOUT}name=hf"], {"engine.name": "native"}),
        # Trackers.
        ([], {"trackers": {}}),
        (
            [
                "trainer.logger=[console,wandb,tensorboard]",
                "trainer.project_name=p",
                "trainer.experiment_name=e",
            ],
            {"trackers": {"wandb": {"project": "p", "name": "e"}, "tensorboard": {}}},
        ),
        # Data.
        ([], {"task.long_prompts": "error", "task.order": "shuffled"}),
        (["data.truncation=left"], {"task.long_prompts": "left", "task.max_prompt_tokens": 512}),
        (["data.shuffle=False"], {"task.order": "as_listed"}),
        (["data.filter_overlong_prompts=True", "data.truncation=left"], {"task.long_prompts": "skip"}),
        (["data.train_max_samples=8"], {"task.train_size": 8}),
        (["+data.apply_chat_template_kwargs.thinking=False"], {"rollout.template.thinking": False}),
        # Micro-batches as a budget of tokens.
        ([f"{ACTOR}ppo_micro_batch_size_per_gpu=4"], {"update.micro_tokens": 4 * 1024}),
        ([f"{ACTOR}use_dynamic_bsz=True"], {"update.micro_tokens": 16384}),
        # DAPO.
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=10"],
            {"algorithm.selection.dynamic_sampling": True, "algorithm.selection.max_rounds": 10},
        ),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward"],
            {"algorithm.selection.dynamic_sampling": "reward"},
        ),
        (
            [
                "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
                "+reward_model.reward_kwargs.overlong_buffer_cfg.len=128",
                "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
                "reward_model.reward_manager=dapo",
            ],
            {"reward.overlong_buffer": 0.25, "reward.overlong_penalty": 1.0},
        ),
        # Correction.
        (
            ["algorithm.rollout_correction.rollout_is=sequence"],
            {"algorithm.correction.mode": "truncate", "algorithm.correction.level": "sequence"},
        ),
        ([f"+{ACTOR}tis_imp_ratio_cap=3"], {"algorithm.correction.high": 3}),
        (
            [f"{CORRECTION}bypass_mode=true", f"+{CORRECTION}use_policy_gradient=true"],
            {"algorithm.loss": "reinforce"},
        ),
        ([f"+{CORRECTION}use_policy_gradient=true"], {"algorithm.loss": "ppo"}),
        # Turns: as many as are allowed, or as the response has room for.
        ([f"{ROLLOUT}multi_turn.enable=True"], {"rollout.max_turns": 512}),
        (
            [f"{ROLLOUT}multi_turn.enable=True", f"{ROLLOUT}multi_turn.max_user_turns=4"],
            {"rollout.max_turns": 5},
        ),
        # Rewards.
        (
            [f"+{ROLLOUT}n_val=4", f"+{ROLLOUT}val_temperature=0.6"],
            {"eval.samples": 4, "eval.temperature": 0.6},
        ),
        ([], {"reward.function": "data_source", "reward.params.math.strict": True}),
        (["max_turns=2"], {"reward.function": "em"}),
        (["env.env_name=Sokoban"], {"reward.function": None}),
        (
            ["max_turns=2", "reward_model.structure_format_score=0.2"],
            {"reward.function": "search_r1", "reward.params.search_r1.structure": 0.2},
        ),
        (["custom_reward_function.path=r.py"], {"reward.function": "r.py:compute_score"}),
        (
            ["reward.custom_reward_function.path=r.py", "reward.custom_reward_function.name=f"],
            {"reward.function": "r.py:f"},
        ),
        (
            ["reward_model.enable=True", "reward_model.model.path=/rm", "+reward_model.max_length=256"],
            {
                "reward.function": "reward_model",
                "reward.params.reward_model.path": "/rm",
                "reward.params.reward_model.max_tokens": 256,
                "reward.params.reward_model.cut": "right",
            },
        ),
        (
            [
                "reward.reward_model.enable=True",
                "reward.reward_model.model_path=/rm",
                "reward.reward_model.rollout.prompt_length=1024",
                "reward.reward_model.rollout.response_length=512",
            ],
            {"reward.params.reward_model.path": "/rm", "reward.params.reward_model.max_tokens": 1536},
        ),
        # The run.
        ([], {"run.dir": "checkpoints/verl_examples", "run.name": "gsm8k", "run.resume": False}),
        (
            ["trainer.project_name=p", "trainer.experiment_name=e"],
            {"run.dir": "checkpoints/p", "run.name": "e"},
        ),
        (["trainer.default_local_dir=/data/runs/mine"], {"run.dir": "/data/runs", "run.name": "mine"}),
        (
            ["trainer.save_freq=5", "trainer.total_training_steps=20"],
            {"checkpoint.every": 5, "checkpoint.keep": 6},
        ),
        (["trainer.test_freq=-1"], {"eval.every": 0}),
        (
            [
                "rollout.total_rollout_steps=64",
                "rollout.test_freq=2",
                "async_training.trigger_parameter_sync_step=4",
            ],
            {"eval.every": 8},
        ),
        (["data.seed=7"], {"run.seed": 7}),
    ],
)
def test_each_override_becomes_ours(line: Line, words: list[str], becomes: dict[str, Any]) -> None:
    translation = line(*words)
    found = {setting.ours: setting.value for setting in translation.settings}
    assert {key: found[key] for key in becomes} == becomes


def test_batch_sizes_count_prompts(line: Line) -> None:
    translation = line("data.train_batch_size=8", f"{ACTOR}ppo_mini_batch_size=4", f"{ROLLOUT}n=3", fit=False)
    assert translation.problems == []
    found = {"rollout.prompts": 8, "rollout.samples": 3, "update.minibatches": 2, "update.epochs": 1}
    assert {key: translation.value(key) for key in found} == found


def test_epochs_become_steps(line: Line) -> None:
    translation = line("data.train_batch_size=5", "trainer.total_epochs=4", fit=False)
    assert translation.value("train.steps") == 3 * 4  # 16 rows are three whole batches
    assert line("trainer.total_training_steps=7").value("train.steps") == 7


def test_warm_up_counts_updates(line: Line) -> None:
    words = ["data.train_batch_size=8", f"{ACTOR}ppo_mini_batch_size=4", "trainer.total_training_steps=10"]
    by_steps = line(*words, f"{ACTOR}optim.lr_warmup_steps=3", fit=False)
    assert by_steps.value("update.policy.warmup_steps") == 3 * 2
    by_ratio = line(*words, f"{ACTOR}optim.lr_warmup_steps_ratio=0.5", fit=False)
    assert by_ratio.value("update.policy.warmup_steps") == 5 * 2


def test_several_files_are_one_set_of_tasks(tmp_path: Path, line: Line) -> None:
    more = tasks(tmp_path / "more.parquet", 9)
    both = f"data.train_files=['{tmp_path / 'train.parquet'}','{more}']"
    translation = line(both, "data.train_batch_size=25", "trainer.total_epochs=2", fit=False)
    assert translation.problems == []
    assert translation.value("task.train") == [str(tmp_path / "train.parquet"), str(more)]
    assert translation.value("train.steps") == 2


def test_held_out_tasks_are_all_of_the_file(tmp_path: Path, line: Line) -> None:
    translation = line(f"data.val_files={tasks(tmp_path / 'test.parquet', 5)}")
    assert translation.value("task.held_out_size") == 5
    assert line().value("task.held_out") == []


def test_without_a_critic_its_settings_are_left_out(line: Line) -> None:
    translation = line("algorithm.adv_estimator=grpo", "critic.optim.lr=1e-5")
    assert not [setting for setting in translation.settings if setting.ours.startswith("update.critic.")]
    assert any("critic.optim.lr=1e-05: without effect here" in note for note in translation.notes)


@pytest.mark.parametrize(
    ("words", "agent"),
    [
        ([], "single_turn"),
        ([f"{ROLLOUT}tool_config.enabled=true"], "tool_use"),
        ([f"{ROLLOUT}multi_turn.enable=True"], "tool_use"),
        ([f"{ROLLOUT}enable_search=true"], "search"),
        ([f"{ROLLOUT}enable_search=true", f"{ROLLOUT}tool_config.enabled=true"], "search"),
    ],
)
def test_search_goes_before_tools_before_a_single_turn(line: Line, words: list[str], agent: str) -> None:
    assert line(*words).value("rollout.agent") == agent


def test_an_adapter_is_learned_where_verl_learns_one(line: Line) -> None:
    model = "actor_rollout_ref.model"
    translation = line(f"{model}.lora_rank=8", f"{model}.target_modules=[q_proj,v_proj]")
    assert translation.problems == []
    assert (translation.value("model.lora.rank"), translation.value("model.lora.alpha")) == (8, 16.0)
    assert translation.value("model.lora.targets") == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("words", "learn", "sample"),
    [
        (["trainer.n_gpus_per_node=4"], 2, 2),
        (["trainer.n_gpus_per_node=8"], 2, 2),
        (["trainer.n_gpus_per_node=3", "rollout.nnodes=1", "rollout.n_gpus_per_node=1"], 3, 1),
        (["trainer.n_gpus_per_node=4", "actor_rollout_ref.model.lora_rank=8"], 1, 3),
    ],
)
def test_several_gpus_become_ranks_and_workers(line: Line, words: list[str], learn: int, sample: int) -> None:
    four = Machine(devices=4, engines=frozenset({"native"}))
    translation = line(*words, machine=four)
    assert translation.problems == []
    assert translation.value("runtime.name") == "ray"
    assert translation.value("runtime.placement.policy.ranks") == learn
    assert translation.value("runtime.placement.rollout.workers") == sample


def test_a_gpu_keeps_verls_precision(line: Line) -> None:
    one = Machine(devices=1, engines=frozenset({"native"}))
    assert line("trainer.n_gpus_per_node=1", machine=one).value("model.dtype") == "bfloat16"
    assert line().value("model.dtype") == "float32"


def test_settings_of_vllm_are_passed_on(line: Line) -> None:
    with_vllm = Machine(devices=2, engines=frozenset({"native", "vllm"}))
    words = [f"{ROLLOUT}tensor_model_parallel_size=4", f"{ROLLOUT}gpu_memory_utilization=0.6"]
    translation = line(f"{ROLLOUT}name=vllm", *words, machine=with_vllm)
    assert translation.value("engine.tensor_parallel_size") == 2, "no more than there are"
    assert translation.value("engine.params.gpu_memory_utilization") == 0.6
    assert any("has one device" in note for note in line(*words).notes)


def test_vllm_is_used_if_it_is_installed(line: Line) -> None:
    with_vllm = Machine(devices=1, engines=frozenset({"native", "vllm"}))
    assert line(f"{ROLLOUT}name=vllm", machine=with_vllm).value("engine.name") == "vllm"
    translation = line(f"{ROLLOUT}name=vllm")
    assert translation.value("engine.name") == "native"
    assert any("vllm → native" in text for text in translation.changes)
    refused = line(f"{ROLLOUT}name=vllm", fit=False)
    assert any("rollout.name=vllm" in text and "--fit" in text for text in refused.problems)


def test_resume_mode_auto_resumes_and_disable_never_overwrites(tmp_path: Path, line: Line) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    where = f"trainer.default_local_dir={run}"
    assert line(where).value("run.resume") is True
    anew = line(where, "trainer.resume_mode=disable")
    assert (anew.value("run.name"), anew.value("run.resume")) == ("mine-2", False)


def test_a_command_line_without_a_model_is_an_error(train: Path) -> None:
    translation = translate([f"data.train_files={train}"], machine=BARE, fit=True)
    assert translation.problems == ["actor_rollout_ref.model.path is not set: name a Hugging Face folder"]


def test_search_r1_has_the_defaults_of_its_own_verl(line: Line) -> None:
    translation = line("retriever.url=http://127.0.0.1:8000/retrieve", f"{ACTOR}state_masking=true")
    assert translation.problems == []
    found = {"rollout.top_p": 0.95, "algorithm.clip_c": None, "algorithm.entropy_coef": 0.001}
    assert {key: translation.value(key) for key in found} == found
    assert translation.value("algorithm.kl.where") == "reward"


def test_an_attempt_of_search_r1_ends_with_its_answer(line: Line) -> None:
    translation = line("max_turns=2", f"{ACTOR}state_masking=true")
    assert translation.value("rollout.stop") == ["</answer>"]
    assert any("lets the policy try again" in text for text in translation.changes)


def test_search_r1_counts_attempts_in_a_minibatch(line: Line) -> None:
    words = [
        "data.train_batch_size=8",
        f"{ACTOR}ppo_mini_batch_size=4",
        "max_turns=2",
        "trainer.n_gpus_per_node=1",
    ]
    assert line(*words, f"+{ROLLOUT}n_agent=5").value("update.minibatches") == 8 * 5 // 4
    assert line(*words, f"{ROLLOUT}n=5").value("update.minibatches") == 2


def test_search_r1_without_its_mask_would_learn_what_the_engine_said(line: Line) -> None:
    refused = line("do_search=true", f"{ACTOR}state_masking=false", fit=False)
    assert any("never learned from" in text and "--fit accepts that" in text for text in refused.problems)


def test_a_clip_ratio_that_verl_would_ignore_is_near(line: Line) -> None:
    assert any("clip_ratio_low=0.2" in text for text in line(f"{ACTOR}clip_ratio=0.3").changes)
    assert not any("clip_ratio" in text for text in line(f"{ACTOR}clip_ratio=0.2").changes)


def test_a_threshold_of_weights_is_not_said_to_be_without_effect(line: Line) -> None:
    words = [f"{CORRECTION}rollout_is=token", f"{CORRECTION}rollout_is_threshold=1.5"]
    translation = line(*words)
    assert translation.value("algorithm.correction.high") == 1.5
    assert not any("rollout_is_threshold" in note for note in translation.notes)
    both = line(f"{CORRECTION}rollout_is=sequence", words[1], f"{CORRECTION}rollout_rs=token_k1")
    assert any("rollout_is=sequence" in text and "by their ratio" in text for text in both.changes)


def test_a_reward_of_a_fork_is_not_dropped(line: Line) -> None:
    (problem,) = line("+reward_model.anything_else=0.2").problems
    assert problem.startswith("reward_model.anything_else=0.2: ")
    assert line("reward_model.structure_format_score=0").value("reward.function") == "data_source"


def test_bypass_is_near_if_an_engine_has_other_log_probabilities(line: Line) -> None:
    words = [f"{ROLLOUT}name=vllm", f"{CORRECTION}bypass_mode=true"]
    with_vllm = Machine(devices=1, engines=frozenset({"native", "vllm"}))
    assert any("learner's own" in text for text in line(*words, machine=with_vllm).changes)
    assert any("so this holds already" in note for note in line(*words).notes)


def test_a_rate_that_falls_for_so_many_steps_is_near(line: Line) -> None:
    until, falls = f"+{ACTOR}optim.lr_decay_steps=9", f"{ACTOR}optim.lr_scheduler_type=cosine"
    assert any("lr_decay_steps=9" in text for text in line(until, falls).changes)
    assert line(until).changes == line().changes


def test_with_tools_the_response_length_is_that_of_all_turns(line: Line, tmp_path: Path) -> None:
    words = [f"{ROLLOUT}multi_turn.enable=True", "data.max_response_length=64"]
    translation = line(*words, f"{ROLLOUT}multi_turn.max_tool_response_length=100")
    assert translation.value("rollout.call_params.response_tokens") == 64
    assert translation.value("rollout.call_params.result_characters") == 100
    alone = {setting.ours for setting in line("data.max_response_length=64").settings}
    assert "rollout.call_params.response_tokens" not in alone


def test_an_evaluation_takes_no_steps(line: Line) -> None:
    translation = line("trainer.val_only=True", "trainer.total_training_steps=0")
    assert (translation.command, translation.problems) == ("eval", [])


def test_verls_newest_trainer_learns_from_a_train_batch_however_prompts_are_fetched(line: Line) -> None:
    sizes = ["data.train_batch_size=4", "data.gen_batch_size=1", f"{ACTOR}ppo_mini_batch_size=1"]
    newest = line(*sizes, "trainer.v1.trainer_mode=separate_async", "trainer.n_gpus_per_node=1")
    assert (newest.value("rollout.prompts"), newest.value("update.minibatches")) == (4, 4)
    assert any(note.startswith("data.gen_batch_size=1: ") for note in newest.notes)
    assert line(*sizes, "trainer.n_gpus_per_node=1").value("rollout.prompts") == 1


@pytest.mark.parametrize("key", [f"{ACTOR}fsdp_config.model_dtype", "critic.model.fsdp_config.model_dtype"])
def test_weights_kept_in_half_precision_are_near(line: Line, key: str) -> None:
    assert any(text.startswith(f"{key}=bfloat16: ") for text in line(GAE, f"+{key}=bfloat16").changes)
    assert not any("model_dtype" in text for text in line(GAE, f"+{key}=fp32").changes)


def test_verls_default_is_not_said_to_be_what_happens_here(line: Line) -> None:
    qat = f"{ACTOR}fsdp_config.qat."
    notes = line(f"{qat}enable=True", f"{qat}mode=w4a16").notes
    assert any(note == f"{qat}mode=w4a16: verl's default" for note in notes)
    assert any(note == f"{qat}enable=false: as it is here" for note in line(f"{qat}enable=False").notes)


def test_a_key_without_effect_says_where_it_counts(line: Line) -> None:
    note = f"{ACTOR}kl_loss_coef=0.5: without effect here: it counts if `use_kl_loss`"
    assert note in line(f"{ACTOR}kl_loss_coef=0.5").notes


def test_only_decoupled_weight_decay_is_taken(line: Line) -> None:
    key = f"+{ACTOR}optim.override_optimizer_config.decoupled_weight_decay"
    assert line(f"{key}=True").problems == []
    assert any("decoupled_weight_decay=false" in text for text in line(f"{key}=False").problems)


def test_fit_keeps_the_number_of_updates(line: Line) -> None:
    words = ["data.train_batch_size=128", f"{ACTOR}ppo_mini_batch_size=8", f"{ROLLOUT}n=8"]
    translation = line(*words, "trainer.n_gpus_per_node=32")
    assert (translation.value("rollout.prompts"), translation.value("update.minibatches")) == (4, 16)
    few = line(*words[:2], f"{ROLLOUT}n=2", "trainer.n_gpus_per_node=32")
    assert few.value("update.minibatches") == 8
    assert any("16 updates a step → 8" in text for text in few.changes)


def test_the_reference_beside_gspo_is_averaged_as_gspo(line: Line) -> None:
    gspo = f"{ACTOR}policy_loss.loss_mode=gspo"
    near = "loss_agg_mode=token-mean"
    assert any(near in text for text in line(gspo, f"{ACTOR}use_kl_loss=True").changes)
    assert not any(near in text for text in line(gspo).changes)


def test_only_whole_success_is_paid_in_verl_agents_webshop(line: Line) -> None:
    assert any("whole success alone" in text for text in line("env.env_name=Webshop").changes)


def test_an_invalid_action_costs_the_whole_attempt(line: Line) -> None:
    key = f"{ACTOR}invalid_action_penalty_coef=0.1"
    changes = line("env.env_name=Sokoban", key).changes
    assert any(key in text and "that turn alone" in text for text in changes)


@pytest.mark.parametrize(
    ("estimator", "mode"), [("grpo", "mean_std_norm"), ("reinforce_plus_plus_baseline", None)]
)
def test_verl_agent_compares_an_attempt_with_the_turns_of_its_group(
    line: Line, estimator: str, mode: str | None
) -> None:
    translation = line("env.env_name=Sokoban", f"algorithm.adv_estimator={estimator}")
    found = {setting.ours: setting.value for setting in translation.settings}
    if mode is None:
        assert any("counts an attempt once for each of its turns" in text for text in translation.changes)
        return
    assert found["algorithm.adv_estimator"] == "gigpo"
    assert found["algorithm.params.gigpo.step_weight"] == 0.0
    assert found["algorithm.params.gigpo.mode"] == mode
    alone = line(
        "env.env_name=Sokoban", "algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=False"
    )
    assert alone.value("algorithm.params.gigpo.mode") == "mean_norm"


def test_the_reference_weighs_as_much_as_it_does_beside_verl_agents_rewards(line: Line) -> None:
    words = ["env.env_name=Sokoban", "algorithm.adv_estimator=gigpo", f"{ACTOR}use_kl_loss=True"]
    words += [f"{ACTOR}kl_loss_coef=0.01", f"{ACTOR}entropy_coeff=0.02"]
    tenth = line(*words, "algorithm.gigpo.mode=mean_norm")
    assert tenth.value("algorithm.kl.coef") == pytest.approx(0.001)
    assert tenth.value("algorithm.entropy_coef") == pytest.approx(0.002)
    assert any("a tenth" in text and "kl_loss_coef=0.01" in text for text in tenth.changes)
    whole = line(*words, "algorithm.gigpo.mode=mean_std_norm")
    assert whole.value("algorithm.kl.coef") == 0.01


def test_an_empty_folder_is_as_if_it_were_not_set(line: Line) -> None:
    found = line("trainer.default_local_dir=", "trainer.project_name=p", "trainer.experiment_name=e")
    assert (found.value("run.dir"), found.value("run.name")) == ("checkpoints/p", "e")


def test_weights_that_lie_apart_from_the_model_folder_are_near(line: Line) -> None:
    key = "actor_rollout_ref.actor.megatron.dist_checkpointing_path"
    assert any(text.startswith(f"{key}=/w: the first weights") for text in line(f"{key}=/w").changes)
    assert line(f"{key}=null").changes == line().changes
