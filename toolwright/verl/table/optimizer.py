"""`optim.*` of the actor and of the critic, which have the same keys."""

from __future__ import annotations

from toolwright.verl.config import VerlConfig
from toolwright.verl.table import data
from toolwright.verl.table.algorithm import has_critic
from toolwright.verl.translation import Translation

DECAYS = ("constant", "linear", "cosine")


class Schedule:
    """The rules of one role: `role` is verl's block, `ours` the block of ours."""

    def __init__(self, role: str, ours: str) -> None:
        self.role, self.ours, self.optim = role, ours, f"{role}optim."

    def runs(self, verl: VerlConfig) -> bool:
        """Return True if the run has this role."""
        return self.role != "critic." or has_critic(verl)

    def clip(self, verl: VerlConfig, to: Translation) -> None:
        if self.runs(verl):
            key = verl.first(f"{self.role}grad_clip", f"{self.optim}clip_grad")
            to.set(f"{self.ours}.max_grad_norm", verl[key], key)

    def decay(self, verl: VerlConfig, to: Translation) -> None:
        if not self.runs(verl):
            return
        names = ("lr_scheduler_type", "warmup_style", "lr_decay_style")
        key = verl.first(*(f"{self.optim}{name}" for name in names))
        name = verl[key]
        if name not in DECAYS:
            to.refuse(f"a learning rate is {', '.join(DECAYS)}", key)
            return
        cycles = f"{self.optim}num_cycles"
        if name == "cosine" and verl[cycles] != 0.5:
            to.refuse("a cosine falls once, which is 0.5", cycles)
        to.set(f"{self.ours}.decay", name, key)
        until = f"{self.optim}lr_decay_steps"
        if verl.is_set(until) and verl[until] is not None and name != "constant":
            to.near("the rate falls over the whole run", until)

    def end(self, verl: VerlConfig, to: Translation) -> None:
        """Megatron says where a schedule ends as a rate, FSDP as a part of the first one."""
        if not self.runs(verl):
            return
        key = f"{self.optim}min_lr"
        if verl[key] is not None:
            part_of = min(1.0, float(verl[key]) / float(verl[f"{self.optim}lr"]))
        else:
            key = verl.first(f"{self.optim}min_lr_ratio", f"{self.optim}min_lr_factor")
            part_of = verl[key] or 0.0
        to.set(f"{self.ours}.min_lr_ratio", part_of, key)

    def first(self, verl: VerlConfig, to: Translation) -> None:
        if self.runs(verl) and verl[f"{self.optim}lr_warmup_init"]:
            to.near("the rate rises from 0", f"{self.optim}lr_warmup_init")

    def warmup(self, verl: VerlConfig, to: Translation) -> None:
        """verl counts steps, we count updates."""
        if not self.runs(verl):
            return
        steps, ratio = f"{self.optim}lr_warmup_steps", f"{self.optim}lr_warmup_steps_ratio"
        by_steps = verl[steps] is not None and verl[steps] > 0
        key, whole = (steps if by_steps else ratio), data.steps(verl)
        if not by_steps and whole is None and verl[ratio]:
            to.note(f"{self.ours}.warmup_steps, by the rows of {data.TRAIN}", ratio)
            return
        count = verl[steps] if by_steps else int((verl[ratio] or 0) * (whole or 0))
        to.set(f"{self.ours}.warmup_steps", count * data.updates(verl), key)


policy = Schedule("actor_rollout_ref.actor.", "update.policy")
critic = Schedule("critic.", "update.critic")
