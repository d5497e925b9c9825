"""The numbers in metrics.jsonl: what each is called and what it says.

A name in capitals stands for many: `time/STAGE_s` is `time/sample_s`, `time/update_s` and so on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    name: str
    meaning: str
    look: str = ""  # what a reader should make of it

    def matches(self, key: str) -> bool:
        return re.fullmatch(re.sub(r"[A-Z]+", r"[\\w./-]+", self.name), key) is not None


METRICS: tuple[Metric, ...] = (
    Metric("step", "the number of the step; 0 is the evaluation before the first"),
    Metric("weights_version", "how often new weights were published to the engines"),
    Metric("reward/mean", "mean reward of the step's attempts", "the curve to watch between evaluations"),
    Metric("reward/std", "its standard deviation", "near 0: all attempts earn the same and teach nothing"),
    Metric("reward/min", "the lowest reward"),
    Metric("reward/max", "the highest reward"),
    Metric("reward/acc", "the part of attempts that were right, where the scorer tells"),
    Metric("reward/overlong", "mean penalty for attempts that ran out of tokens"),
    Metric(
        "reward/PART",
        "mean of a part of the reward (`reward.parts`), or of what your function returns beside it",
    ),
    Metric("response/tokens_mean", "sampled tokens of an attempt, all turns together"),
    Metric("response/tokens_max", "of the longest attempt"),
    Metric(
        "response/truncated",
        "the part of attempts that a limit cut off",
        "above 0.3: raise rollout.max_tokens",
    ),
    Metric("turns/mean", "turns of an attempt"),
    Metric("attempts/failed", "attempts lost to infrastructure or to a failing reward; they are not scored"),
    Metric(
        "attempts/COUNT",
        "mean of a count: `tool_calls`, `tool_errors`, `tool_timeouts`, `format_faults`, `success`, …",
    ),
    Metric(
        "attempts/branches",
        "sequences of an attempt beyond its first, where a program of yours attempts it",
        "above 0: it edits what was said, or asks in several conversations",
    ),
    Metric("attempts/rewritten", "turns that such a program sent back in other words of the same meaning"),
    Metric("attempts/calls_refused", "calls that were refused: of tools over a limit, or of the policy"),
    Metric("source/NAME/reward", "mean reward by data source, where a step has several"),
    Metric("source/NAME/accuracy", "how right its attempts are: the scorer's `acc`, or else its score"),
    Metric("source/NAME/attempts", "how many there are"),
    Metric("groups/kept", "groups that were learned from"),
    Metric("groups/dropped", "groups dropped because an attempt failed"),
    Metric("groups/flat", "groups whose attempts all earned the same, where those are left out"),
    Metric("groups/replayed", "groups that came from the store of rare successes"),
    Metric("groups/rounds", "rounds of sampling in this step", "above 1: dynamic sampling had to ask again"),
    Metric(
        "policy/loss",
        "the policy's loss, the mean over the step's updates",
        "its size says little; compare steps of one run",
    ),
    Metric(
        "policy/entropy",
        "mean entropy of a sampled token, in nats",
        "falls as the policy decides; near 0 early is collapse",
    ),
    Metric("policy/entropy_coef", "the bonus for entropy, where it adapts"),
    Metric("policy/grad_norm", "norm of the gradient before it is clipped", "spikes: lower update.policy.lr"),
    Metric("policy/lr", "the learning rate of the last update"),
    Metric("policy/skipped", "updates left out because their gradient was not finite", "0 is usual"),
    Metric(
        "policy/ppo_kl", "mean of log π_old − log π over sampled tokens, how far the updates of a step went"
    ),
    Metric("policy/abs_kl", "`kl_cov`: mean distance of the tokens that are held"),
    Metric("policy/held_fraction", "`kl_cov`: tokens that are held near the old policy"),
    Metric("policy/dropped_fraction", "`clip_cov`: tokens that are left out"),
    Metric(
        "policy/clip_fraction",
        "tokens, or sequences, whose gradient the clip silenced",
        "above 0.3: fewer updates a step, or a lower rate",
    ),
    Metric("policy/clip_fraction_low", "of these, at the lower bound"),
    Metric("policy/clip_fraction_high", "of these, at the upper bound"),
    Metric("policy/dual_clip_fraction", "tokens that the dual clip bounds"),
    Metric("policy/gate_slope", "`sapo`: mean slope of the gate"),
    Metric("policy/kernel", "`vespo`: mean weight of a sequence"),
    Metric("policy/target_gap", "`sppo`: mean distance of log-ratios from their targets"),
    Metric(
        "policy/preference_accuracy", "pairs in which the policy prefers the answer that the data prefers"
    ),
    Metric("policy/preference_margin", "by how much, in the units of the loss"),
    Metric("policy/preference_MEASURE", "other measures of `dpo`, `kto` and `orpo`"),
    Metric("critic/loss", "the critic's loss"),
    Metric("critic/clip_fraction", "values that its clip held back"),
    Metric("critic/grad_norm", "norm of the critic's gradient"),
    Metric("critic/lr", "the critic's learning rate"),
    Metric("critic/skipped", "its updates that were not finite"),
    Metric("reference/kl", "divergence of the policy from the reference", "grows slowly in a healthy run"),
    Metric("reference/kl_coef", "what it is weighed by"),
    Metric("process_reward/loss", "`prime`: cross-entropy of the reward model and the outcomes"),
    Metric("process_reward/accuracy", "attempts whose outcome it foresaw, before its update"),
    Metric("process_reward/grad_norm", "norm of its gradient"),
    Metric("process_reward/lr", "its learning rate"),
    Metric("process_reward/skipped", "the reward model's updates that were not finite"),
    Metric("teacher/kl", "`distill`: reverse divergence from the teacher, which falls"),
    Metric(
        "gap/abs_mean",
        "mean difference of the engine's and the learner's log-probabilities",
        "0 in float32 on a CPU; 0.01 to 0.03 in bfloat16",
    ),
    Metric("gap/abs_max", "the largest difference"),
    Metric("gap/kl", "the same as a divergence"),
    Metric("gap/alarm", "1 if the step was warned of"),
    Metric(
        "policy/expert_entropy",
        "mixture of experts: how evenly tokens are spread over them, 1 if all have as many",
        "a steady fall: a few do all the work",
    ),
    Metric("policy/expert_max_share", "the part of a layer's routes that lead to its busiest expert"),
    Metric(
        "correction/effective_sample_size",
        "how much of the batch counts after weighing",
        "below 0.5: repair the gap first",
    ),
    Metric("correction/kl_k1", "divergence of engine and learner, estimated by k1"),
    Metric("correction/kl_k3", "the same by k3"),
    Metric("correction/weight_mean", "mean weight of a token"),
    Metric("correction/MODE_fraction", "tokens, or sequences, that `truncate`, `mask` or `reject` touched"),
    Metric("held_out/accuracy", "the part of held-out tasks that was solved", "what to compare runs by"),
    Metric("held_out/reward", "mean reward on held-out tasks"),
    Metric("held_out/attempts", "how many held-out attempts were scored"),
    Metric("held_out/failed", "held-out attempts that failed and are not counted"),
    Metric("held_out/tokens_mean", "sampled tokens of a held-out attempt"),
    Metric("held_out/truncated", "the part of them that a limit cut off"),
    Metric("held_out/skipped_prompts", "held-out prompts that are too long"),
    Metric(
        "held_out/MEASURE_low",
        "the lower end of the 95 % interval of a measure: Wilson's, or from the bootstrap over tasks",
        "overlapping intervals say little: `toolwright runs compare` pairs the tasks",
    ),
    Metric("held_out/MEASURE_high", "the upper end"),
    Metric("held_out/calling", "the part of held-out attempts that called a tool", "near 0: it is not used"),
    Metric("held_out/tool_calls", "calls of a held-out attempt"),
    Metric("held_out/pass_at_K", "the chance that one of K attempts is right, without bias (`eval.samples`)"),
    Metric("held_out/maj_at_K", "the chance that what most of K attempts answer is right"),
    Metric("held_out/OUTCOME", "what an environment says beside success: `security` under an attack"),
    Metric("held_out/SOURCE/accuracy", "the same by data source, where there are several"),
    Metric("held_out/SOURCE/reward", "mean reward by data source"),
    Metric("held_out/MEASURE", "`dpo`, `kto`, `orpo`: the loss and its measures on held-out pairs"),
    Metric("throughput/tokens_per_s", "sampled tokens a second, over the whole step"),
    Metric("time/total_s", "seconds of the step"),
    Metric("time/STAGE_s", "seconds of a stage: sample, score, update, evaluate, record, checkpoint"),
    Metric("use/STAGE_cores", "cores that a role's stage kept busy", "far below what it was given: it waits"),
    Metric("use/STAGE_gpu", "part of a GPU that it kept busy"),
    Metric(
        "use/tool_calls",
        "tool calls under way at once, the mean while the step sampled: the load on sandbox and servers",
        "above the sandbox's workers: calls wait in its queue",
    ),
    Metric("use/sandbox_runs", "runs at work in the sandbox at once, the mean while the step sampled"),
    Metric(
        "use/sandbox_queue",
        "runs that waited in the sandbox's queue at once, the mean while the step sampled",
        "above 0 for long: more workers (`toolwright sandbox serve --workers`) or more servers",
    ),
    Metric("use/sandbox_waited_s", "seconds that the step's runs waited there, all together"),
    Metric("use/sandbox_kills", "runs that the sandbox ended: too slow, too large, or killed"),
    Metric(
        "use/cache",
        "the part of the native engine's cache that was in use at most, where it is in pages",
        "near 1: sequences wait for others to end, or are suspended",
    ),
    Metric("use/cache_tokens", "tokens that its pages had room for then"),
    Metric("use/cache_shared_tokens", "tokens that it would have needed in addition if none were shared"),
    Metric(
        "use/cache_suspended",
        "turns that gave their pages to older ones, and were computed again",
        "above a tenth of the turns: lower engine.slots",
    ),
    Metric("runtime/deaths", "processes that died and were replaced"),
    Metric("runtime/resampled", "attempts sampled again for that reason"),
)


def metric(key: str) -> Metric | None:
    """Look up a key of metrics.jsonl. An exact name wins over a pattern."""
    known = [entry for entry in METRICS if entry.matches(key)]
    return min(known, key=lambda entry: entry.name != key, default=None)
