"""A small policy trained from random weights: first the edit language, then by GiGPO in simulated worlds."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from toolwright.failures import UserError
from toolwright.models.tokenizer import CHARACTER_TEMPLATE, END, PAD, ROLES, UNKNOWN, Tokenizer
from toolwright.workflow.environment import expected, legal, started
from toolwright.workflow.executors import SimulatedExecutor
from toolwright.workflow.operators import OPERATORS, operator
from toolwright.workflow.pool import Experience, ExperiencePool
from toolwright.workflow.proposers import Editor, WorkflowState
from toolwright.workflow.simulate import PROMPTS

# A word with the blank before it, a digit, a mark. Names fall apart at `_` and digits, so any can be said.
PIECE = r" ?[A-Za-z]+| ?[0-9]| ?[^A-Za-z0-9\s]|\s"
GRAMMAR = (
    "add after into with remove replace rewire set prompt repeat accept output task problem entry_point x if "
    "else math code question data solve choose review true false -> = ( ) [ ] + . , ; : ? _ ' \" "
)


def words(texts: Iterable[str]) -> list[str]:
    """Every piece of the texts, with and without a blank before it, in one order."""
    found = {piece.strip() for text in texts for piece in re.findall(PIECE, text)} - {""}
    return [" ", "\n", *sorted({form for piece in found for form in (piece, f" {piece}")})]


def vocabulary(prompts: Iterable[str] = ()) -> list[str]:
    """What states and edits over the registered operators are written with; `prompts` are names."""
    said = [GRAMMAR, "0 1 2 3 4 5 6 7 8 9", *prompts]
    for name in OPERATORS.names():
        kind = operator(name)
        stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        said += [name, stem, *kind.ports, *kind.fields, *kind.settings]
    return words(said)


def tokenizer(vocabulary: Iterable[str]) -> Tokenizer:
    """One token a piece. What it has no piece for is unknown, and never an error."""
    specials = [PAD, END, UNKNOWN, *ROLES]
    known = {token: index for index, token in enumerate([*specials, *vocabulary])}
    backend = Backend(models.WordLevel(known, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(specials)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "additional_special_tokens": list(ROLES),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHARACTER_TEMPLATE,
    }
    return Tokenizer(backend, config)


def fresh(
    folder: Path,
    *,
    seed: int,
    prompts: Iterable[str] = (),
    layers: int = 2,
    width: int = 64,
    context: int = 768,
) -> Path:
    """A model folder with random weights, to be taught by `sft` and `train` or by a search itself."""
    from toolwright.agents.rollout import seed_of
    from toolwright.models import huggingface
    from toolwright.models.decoder import Decoder, Shape

    own = tokenizer(vocabulary(prompts))
    shape = Shape(
        vocab=own.size,
        layers=layers,
        width=width,
        heads=4,
        kv_heads=4,
        ffn=2 * width,
        context=context,
        head_dim=width // 4,
        qk_norm=True,
        family="qwen3",
        extra={"eos_token_id": own.end, "pad_token_id": 0, "bos_token_id": None},
    )
    huggingface.save(Decoder(shape).initialise(seed_of(seed, "weights")), folder)
    own.save(folder)
    return folder


WARM, WARM_STEPS = ("batch=32", "optimizer.lr=3e-3", "task.held_out_size=8"), 150
LESSON = (
    "update.epochs=4",
    "update.minibatches=4",
    "update.policy.lr=1e-3",
    "algorithm.params.gigpo.mode=mean_std_norm",
)
FIRST_WORLD = 20_000  # of those that are learned from
WORLDS, LESSONS, TASKS, DEPTH = 12, 5, 32, 3  # worlds a lesson, lessons, tasks behind a score, edits away


def train_policy(
    folder: Path,
    words: Sequence[str] = (),
    *,
    seed: int = 0,
    warm: int = WARM_STEPS,
    lessons: int = LESSONS,
    worlds: int = WORLDS,
) -> Path:
    """`folder/warm/model` speaks the language: `sft task=workflow`, random legal edits. `folder/model` has
    then seen, in simulated worlds, what every edit of a state gains, and learned it by GiGPO: groups by
    state, step rewards from gains. The words are the trainer's: update.policy.lr=3e-4, …"""
    from toolwright.workflow.policy import EditPolicy, configured

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is there already; name another folder")
    began = fresh(folder / "fresh", seed=seed, prompts=PROMPTS)
    spoken = train_language(began, folder, seed=seed, steps=warm)
    said = {word.partition("=")[0] for word in words}
    own = [word for word in LESSON if word.partition("=")[0] not in said]
    executor = SimulatedExecutor(seed=FIRST_WORLD, count=TASKS)
    editor = Editor(executor.operators, executor.prompts, executor.limits)
    policy = EditPolicy(configured(spoken, [*own, *words], seed=seed), editor, every=0)
    pool = ExperiencePool(folder / "pool.db")
    for lesson in range(lessons):
        first = FIRST_WORLD + (seed * lessons + lesson) * worlds
        tried = asyncio.run(explored(range(first, first + worlds)))
        pool.learn(tried)
        told = policy.lesson(tried)
        print(
            f"lesson {lesson + 1}/{lessons}: {len(tried)} edits, loss {told['policy/loss']:.4f}", flush=True
        )
    policy.save(folder / "model")
    return folder / "model"


def train_language(model: Path, folder: Path, *, seed: int, steps: int) -> Path:
    """The model, taught the language of edits: `sft task=workflow`, a run in `folder` called `warm`."""
    from toolwright.cli import main

    run = [f"run.seed={seed}", f"run.dir={folder}", "run.name=warm", f"model.path={model}"]
    if main(["sft", "task=workflow", f"steps={steps}", *WARM, *run]):
        raise UserError("the policy could not be taught its language; the message above says why")
    return folder / "warm/model"


async def explored(worlds: Sequence[int]) -> list[Experience]:
    """Every edit of some states of each world, on a walk from a single call: to the best edit, or to any."""
    found: list[Experience] = []
    for world in worlds:
        rng = random.Random(f"explored {world}")
        executor = SimulatedExecutor(seed=world, count=TASKS)
        workflow, base = started(), await expected(executor, started())
        for _ in range(1 + rng.randint(0, DEPTH)):
            before = await expected(executor, workflow)
            state = WorkflowState(executor.setting, executor.kind, workflow, before, base)
            edits = legal(executor, workflow)
            after = {edit: await expected(executor, made) for edit, made in edits.items()}
            found += [
                Experience(
                    search=f"explored {world}",
                    number=len(found) + place,
                    setting=executor.setting,
                    anchor=state.anchor,
                    state=state.text,
                    edit=edit,
                    parent=workflow.fingerprint,
                    child=edits[edit].fingerprint,
                    before=before,
                    after=score,
                    tasks=TASKS,
                )
                for place, (edit, score) in enumerate(after.items())
            ]
            chosen = max(after, key=lambda e: after[e]) if rng.random() < 0.6 else rng.choice(list(after))
            workflow = edits[chosen]
    return found
