"""The typed configuration of `workflow search`. Imports without torch."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from toolwright.config.schema import Block


class Aflow(Block):
    """AFlow's selection as published (arXiv 2410.10762): mixed uniform and softmax over the best."""

    top: PositiveInt = Field(default=4, description="how many are chosen from, the start among them")
    alpha: NonNegativeFloat = Field(default=0.2, description="of the softmax over scores in percent")
    mix: float = Field(default=0.3, ge=0, le=1, description="λ: the uniform's part")
    repeats: PositiveInt = Field(default=5, description="times that a candidate runs on every task")


class Guided(Block):
    """Tree search with a prior and a value; runs are given by racing."""

    exploration: NonNegativeFloat = Field(default=0.01, description="c of PUCT, in points of score")
    widening: PositiveFloat = Field(
        default=1.5, description="children of a node of N visits: widening × N^widening_power"
    )
    widening_power: float = Field(default=0.5, ge=0, le=1)
    optimism: NonNegativeFloat = Field(
        default=0.5, description="standard deviations of an untried workflow's value that count for it"
    )
    first: PositiveInt = Field(default=8, description="tasks that a new candidate runs on")
    growth: float = Field(default=2.0, gt=1, description="by how much a survivor's runs grow")
    repeats: PositiveInt = Field(default=3, description="times that a candidate runs on every task at most")
    width: PositiveInt = Field(default=4, description="candidates decided together and run side by side")
    z: NonNegativeFloat = Field(
        default=1.0, description="standard deviations within which a candidate stays in the race"
    )
    finals: float = Field(
        default=0.3, ge=0, lt=1, description="part of the budget kept for the race of the best"
    )
    tolerance: NonNegativeFloat = Field(default=0.005, description="a difference in score that is none")
    patience: PositiveInt = Field(
        default=24, description="candidates without a new best before the search may have converged"
    )
    prior: bool = Field(default=True, description="whether the proposer's probabilities count")
    value: bool = Field(default=True, description="whether a value is learned over features of the graph")
    racing: bool = Field(default=True, description="false: every candidate runs on every task at once")
    experience: bool = Field(default=True, description="whether the value begins with other searches' pool")
