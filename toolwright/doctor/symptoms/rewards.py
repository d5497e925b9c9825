"""Symptoms in rewards: no signal, a collapse, held-out tasks that fall behind."""

from __future__ import annotations

from toolwright.doctor.diagnosis import SYMPTOMS, Diagnosis
from toolwright.doctor.run_history import ENOUGH_STEPS, RunHistory, error_of, first, last, mean
from toolwright.observe.metrics import series
from toolwright.observe.numbers import compact, percent

FLAT = 0.9  # of groups
NEAR = 0.9  # of the best reward that any attempt had
SURE = 3.0  # standard errors


def near_best(history: RunHistory) -> bool:
    """Return True if attempts earn about as much as any of them ever did: little is left to go wrong."""
    reward, (worst, best) = history.end("reward/mean"), history.reward_range
    return reward is not None and best > worst and reward - worst >= NEAR * (best - worst)


def has_risen(history: RunHistory) -> bool:
    """Return True if the reward is clearly above that of the first steps."""
    rewards = history.values("reward/mean")
    early, late = first(rewards), last(rewards)
    if not early or not late:
        return False
    noise = (error_of(early) ** 2 + error_of(late) ** 2) ** 0.5
    return (mean(late) or 0.0) - (mean(early) or 0.0) > max(SURE * noise, 1e-6)


@SYMPTOMS.register("no signal")
def no_signal(history: RunHistory) -> Diagnosis | None:
    """Attempts of a group earn the same, so that nothing tells a good one from a bad one."""
    flat, groups = history.flat_groups()
    least, most = history.reward_range
    if not history.judged or not groups or flat < FLAT * groups or near_best(history):
        return None
    rare = most > least and len(history.steps) < 2 * ENOUGH_STEPS  # a run from random weights begins so
    if rare or _compares_more_than_rewards(history) or entropy_collapse(history):
        return None
    now = compact(history.end("reward/mean") or 0.0)
    always = f"all of them {now} since the first step" if most == least else f"mean {now}"
    evidence = f"{flat:,} of the last {groups:,} groups have attempts that all earn the same ({always})"
    remedy = _more_signal(history)
    return Diagnosis("warning" if has_risen(history) else "problem", "no signal", evidence, remedy, cause=0.5)


def _more_signal(history: RunHistory) -> str:
    """Overrides that make attempts at one task differ."""
    if has_risen(history):
        return "rollout.temperature=1 and algorithm.entropy_target=0.1 keep attempts apart; or harder tasks"
    least, most = history.reward_range
    if least == most != 0:
        return (
            f"look at the reward, which gives {compact(most)} to every attempt: toolwright view shows them "
            "all; toolwright replay --step 1 reward.function=… tries another"
        )
    if history.setting("model.path") is None:
        return (
            "a warm start: toolwright sft, then model.path=runs/NAME/model; from random weights a right "
            "answer is luck. Or an easier task (task.params), or a reward that gives part marks "
            "(reward.parts)"
        )
    samples = 2 * (history.number("rollout.samples") or 8)
    return (
        f"an easier task (task.params) or task.order=difficulty; rollout.samples={samples}; a reward with "
        "part marks (reward.parts); algorithm.selection.dynamic_sampling=true leaves such groups out"
    )


def _compares_more_than_rewards(history: RunHistory) -> bool:
    """Return True if the estimator also learns from a critic, a teacher or rewards of single steps."""
    estimator = str(history.setting("algorithm.adv_estimator", ""))
    return estimator in ("gae", "decoupled_gae", "distill", "gigpo", "reinforce_plus_plus")


@SYMPTOMS.register("reward collapse")
def reward_collapse(history: RunHistory) -> Diagnosis | None:
    """The reward has lost most of what it once had."""
    points = series(history.steps, "reward/mean")
    if not history.judged or len(points) < 8:
        return None
    rewards = [value for _, value in points]
    width = len(last(rewards))
    windows = [rewards[at : at + width] for at in range(len(rewards) - width + 1)]
    best = max(windows, key=lambda window: sum(window))
    top, now = mean(best) or 0.0, mean(last(rewards)) or 0.0
    least = min(history.reward_range[0], 0.0)
    noise = max((error_of(best) ** 2 + error_of(last(rewards)) ** 2) ** 0.5, _luck(history, width))
    if top - now < max(0.4 * (top - least), SURE * noise, 1e-6):
        return None
    peak = points[windows.index(best) + width // 2][0]
    lost = f"from {compact(top)} around step {peak} to {compact(now)}"
    entropy = history.values("policy/entropy")
    also = (
        f"; entropy went from {compact(entropy[0])} to {compact(entropy[-1])} nats a token" if entropy else ""
    )
    clipped = max(history.values("policy/grad_norm"), default=0.0)
    also += f"; the largest gradient norm was {compact(clipped)}" if clipped > 10 else ""
    return Diagnosis(
        "problem", "reward collapse", f"the reward fell {lost}{also}", calmer(history), cause=0.65
    )


def _luck(history: RunHistory, width: int) -> float:
    """The standard error of a difference of two means over so many steps: a step is a few tasks drawn."""
    tasks = max(1, history.number("rollout.prompts"))
    return (mean(history.values("reward/std")) or 0.0) * (2 / (width * tasks)) ** 0.5


def calmer(history: RunHistory) -> str:
    """Overrides that make updates smaller."""
    lr, usual = history.lr, history.usual_lr
    if lr is None:
        rate = "a lower update.policy.lr"
    elif usual is not None and lr > 3 * usual:
        rate = (
            f"update.policy.lr={usual:g}: it is {lr:g}, {compact(lr / usual)} times what is usual for this "
            "model"
        )
    else:
        rate = f"update.policy.lr={lr / 5:.1g} instead of {lr:g}"
    held = history.setting("algorithm.kl.where", "none") != "none"
    pull = "a higher algorithm.kl.coef" if held else "algorithm.kl.where=loss"
    return f"{rate}; {pull} holds the policy near its start; go back to an earlier checkpoint"


@SYMPTOMS.register("entropy collapse")
def entropy_collapse(history: RunHistory) -> Diagnosis | None:
    """The policy always says the same, and is not right."""
    entropy = history.values("policy/entropy")
    if not history.judged or len(entropy) < 8 or near_best(history):
        return None
    before, now = mean(first(entropy)[:3]) or 0.0, mean(last(entropy)) or 0.0
    flat, groups = history.flat_groups()
    if now > 0.02 or now > 0.1 * before or (groups and flat < 0.5 * groups) or _mostly_right(history):
        return None
    where = next(
        (row["step"] for row in history.steps if (row.get("policy/entropy") or 1) <= max(now, 0.02)), 0
    )
    return Diagnosis(
        "problem",
        "entropy collapse",
        f"entropy fell from {compact(before)} to {compact(now)} nats a token by step {where}, and the reward "
        f"is {compact(history.end('reward/mean') or 0.0)}: attempts no longer differ",
        f"{calmer(history)}; algorithm.entropy_target={max(0.1, 0.3 * before):.1g}, algorithm.clip_high=0.28 "
        "or rollout.temperature=1 keep attempts apart",
        cause=0.6,
    )


def _mostly_right(history: RunHistory) -> bool:
    accuracy = [value for _, value in series(history.rows, "held_out/accuracy")]
    return bool(accuracy) and accuracy[-1] >= NEAR


@SYMPTOMS.register("held-out falls")
def held_out_falls(history: RunHistory) -> Diagnosis | None:
    """Training earns more while unseen tasks earn less: learned by heart, or a reward that can be cheated."""
    measure = "accuracy" if series(history.rows, "held_out/accuracy") else "reward"
    points, rewards = series(history.rows, f"held_out/{measure}"), series(history.steps, "reward/mean")
    if not history.judged or len(points) < 3 or not rewards:
        return None
    (best_step, best), (now_step, now) = max(points, key=lambda point: point[1]), points[-1]
    tried = max([value for _, value in series(history.rows, "held_out/attempts")], default=1.0)
    noise = (2 * max(best * (1 - best), 0.05) / tried) ** 0.5 if 0 <= best <= 1 else 0.05 * abs(best)
    if best - now < max(0.05, SURE * noise):
        return None
    around = [value for step, value in rewards if abs(step - best_step) <= max(2, len(rewards) // 10)]
    then, late = mean(around), mean(last([value for _, value in rewards]))
    if then is None or late is None or late < then:
        return None  # both fall: that is a collapse
    shown = percent if measure == "accuracy" else compact
    return Diagnosis(
        "warning",
        "held-out falls",
        f"held-out {measure} fell from {shown(best)} in step {best_step} to {shown(now)} in step {now_step}, "
        f"while the training reward went from {compact(then)} to {compact(late)}",
        f"stop around step {best_step}; more training tasks (task.train_size), algorithm.kl.where=loss; and "
        f"look whether attempts cheat the reward: toolwright view {history.path} --best",
        cause=0.6,
    )
