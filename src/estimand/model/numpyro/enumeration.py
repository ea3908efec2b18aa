"""Which discrete sites of a program are summed out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints

from estimand.model.enumerated import (
    MAX_JOINT,
    EnumeratedModel,
    Labels,
    MixedError,
    Plan,
    TooManyError,
)
from estimand.model.layout import ProgramError, shape_of_key
from estimand.model.numpyro.sites import TRACING, drawing_from_prior

if TYPE_CHECKING:
    from estimand.model.numpyro.model import NumpyroModel
    from estimand.model.numpyro.program import Expectation

# Sites that nobody marked are summed out if one evaluation needs no more runs of the program; if no
# other site is left, so that one evaluation is all there is, as many as a table may have.
MAX_UNMARKED_RUNS, MAX_ONLY_RUNS = 256, MAX_JOINT


class Candidate(NamedTuple):
    """A discrete site, its values if there are finitely many, and whether it is marked."""

    name: str
    labels: Labels | None
    is_marked: bool
    kind: str


def summed_out(model: NumpyroModel, expectation: Expectation) -> NumpyroModel | EnumeratedModel:
    """The model without the discrete sites that are to be summed out, or itself.

    Raises:
        ProgramError: if a site that must be summed out cannot be.
    """
    wish = expectation.program.enumerate
    if wish is False or not any(latent.is_discrete for latent in expectation.latents):
        return model
    candidates = _candidates(expectation)
    required = [one for one in candidates if one.is_marked or wish is True]
    for one in required:
        if one.labels is None:
            raise ProgramError(
                f"site {one.name!r} of program {expectation.name!r} is to be summed out, and its "
                f"{one.kind} has infinitely many values, more than {MAX_JOINT:,}, or a range that "
                "depends on other sites. Use a distribution with few values, such as Categorical "
                "over the counts that matter, or make the program with enumerate=False."
            )
    finite = [one for one in candidates if one.labels is not None]
    if len(finite) > len(required):
        try:
            made = _without(model, expectation, finite)
        except (TooManyError, MixedError):
            made = None
        is_all = len(finite) == len(expectation.latents)
        if made is not None and _is_worth_it(made.plan(expectation.arrays), is_all):
            return made
    if not required:
        return model
    try:
        return _without(model, expectation, required)
    except (TooManyError, MixedError) as error:
        names = ", ".join(repr(one.name) for one in required)
        raise ProgramError(
            f"the sites {names} of program {expectation.name!r} cannot be summed out: {error}. "
            "Leave the mark off the sites that are the cause, or make the program with "
            "enumerate=False: they are then drawn."
        ) from error


def _is_worth_it(plan: Plan, is_all: bool) -> bool:
    """Whether sites that nobody marked are summed out rather than drawn; `is_all` if none is left.

    Where the prior of a site that is kept depends on them, they are branches: a rare one with most
    of an expectation is found by drawing its label, and not among the draws of all branches.
    """
    most = MAX_ONLY_RUNS if is_all else MAX_UNMARKED_RUNS
    return plan.num_runs <= most and not plan.mixed


def _without(
    model: NumpyroModel, expectation: Expectation, chosen: list[Candidate]
) -> EnumeratedModel:
    labels = tuple(one.labels for one in chosen if one.labels is not None)
    inner = model.with_last(tuple(site.name for site in labels))
    order = [place.name for place in inner.places]
    labels = tuple(sorted(labels, key=lambda site: order.index(site.name)))
    return EnumeratedModel.of(inner, labels, expectation.arrays)


def _candidates(expectation: Expectation) -> list[Candidate]:
    found: list[Candidate] = []

    def draw(rng_key: jax.Array) -> None:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for latent in expectation.latents:
            if latent.is_discrete:
                site = sites[latent.name]
                mark = site["infer"].get("enumerate")
                supports = _supports(site["fn"], latent.shape)
                labels = None if supports is None else Labels(latent.name, latent.shape, supports)
                kind = type(_base(site["fn"])).__name__
                found.append(Candidate(latent.name, labels, bool(mark), kind))

    jax.eval_shape(draw, shape_of_key())
    return found


def _base(fn: Any) -> Any:
    wrappers = (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)
    while isinstance(fn, wrappers):
        fn = fn.base_dist
    return fn


def _supports(fn: Any, shape: tuple[int, ...]) -> tuple[tuple[float, ...], ...] | None:
    """The values of each element, if there are finitely many and they do not depend on latents."""
    base = _base(fn)
    if base.event_dim > 0:
        return None
    if base.support is constraints.boolean:
        return ((0.0, 1.0),) * math.prod(shape)
    ends = [getattr(base.support, name, None) for name in ("lower_bound", "upper_bound")]
    if any(end is None or isinstance(end, jax.core.Tracer) for end in ends):
        return None
    low, high = (np.broadcast_to(np.asarray(end), shape).ravel() for end in ends)
    if (high - low >= MAX_JOINT).any() or (high < low).any():
        return None
    return tuple(tuple(np.arange(a, b + 1.0).tolist()) for a, b in zip(low, high, strict=True))
