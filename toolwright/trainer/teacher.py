"""The teacher: a frozen model that grades the tokens sampled by the policy."""

from __future__ import annotations

from toolwright.config import schema
from toolwright.config.block import require_number
from toolwright.failures import UserError
from toolwright.learner.policy import Frozen
from toolwright.learner.ranks import ALONE, Ranks
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import building
from toolwright.trainer.building import needs_role

SHOWN = 3  # tokens that differ, in a message


def teacher_model(config: schema.Config) -> schema.Model:
    """Return the teacher's configuration, with the lengths, precision and device of the policy."""
    model = config.model
    dtype = "bfloat16_weights" if model.stored == "int8" else model.dtype  # only a base has eight bits
    return schema.Model(
        path=config.algorithm.teacher, context=model.context, dtype=dtype, device=model.device
    )


def build_teacher(config: schema.Config, ranks: Ranks = ALONE) -> Frozen:
    model = teacher_model(config)
    if ranks is not ALONE:  # whole in main memory; sharding takes its part of it to the device
        model = model.changed({"device": "cpu"})
    decoder, _ = building.build_model(model, "", seed=config.run.seed)
    return building.build_frozen(config, decoder, ranks)


def check_teacher(config: schema.Config, tokenizer: Tokenizer) -> None:
    """Raise a UserError if the teacher is missing, unused, or has another tokenizer."""
    algorithm, path = config.algorithm, config.algorithm.teacher
    if not needs_role(algorithm, "teacher"):
        if path is not None:
            raise UserError(
                f"algorithm.params.{algorithm.adv_estimator}.teacher={path} has no effect, because that "
                "estimator does not use a teacher; set algorithm=distill"
            )
        return
    if path is None:
        raise UserError(
            f"algorithm.adv_estimator={algorithm.adv_estimator} needs a teacher: set "
            f"algorithm.params.{algorithm.adv_estimator}.teacher to the folder of a model with the "
            "policy's tokenizer"
        )
    model = teacher_model(config)
    try:
        building.context_of(model)  # first of all it must be a model's folder
        own, theirs = (t.backend.get_vocab() for t in (tokenizer, building.build_tokenizer(model, "")))
    except UserError as error:
        raise UserError(str(error).replace("model.path=", "teacher=")) from None
    if own != theirs:
        other = sorted(token for token in {*own, *theirs} if own.get(token) != theirs.get(token))
        raise UserError(
            f"teacher={path} has another tokenizer than the policy: {len(other):,} tokens differ, "
            f"{', '.join(map(repr, other[:SHOWN]))} among them. A teacher grades the policy's own tokens: "
            "choose one with the same tokenizer"
        )


def check_length(config: schema.Config) -> None:
    """Raise a UserError if the teacher cannot read sequences as long as the policy's."""
    if not needs_role(config.algorithm, "teacher"):
        return
    reads = building.context_of(teacher_model(config).changed({"context": "auto"}))
    most = require_number(config.model.context, "model.context")
    if reads is not None and reads < most:
        raise UserError(
            f"teacher={config.algorithm.teacher} reads {reads} tokens, but a sequence may have "
            f"model.context={most}; set model.context={reads}"
        )
