"""The data of a bound program, one row at a time: what the posterior without a row asks for."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from estimand.model.layout import ProgramError
from estimand.model.numpyro.program import Expectation, ExpectationProgram, bind
from estimand.model.numpyro.sites import TRACING, drawing_from_prior, observed_log_prob
from estimand.runtime import in_precision


def observed_shapes(expectation: Expectation) -> dict[str, tuple[int, ...]]:
    """The shape of the log density of each observed site: one number for every row of data."""
    shapes: dict[str, tuple[int, ...]] = {}

    def look(rng_key: jax.Array) -> None:
        with TRACING, handlers.trace() as sites, drawing_from_prior(rng_key):
            expectation.run()
        for name, site in sites.items():
            if site["type"] == "sample" and site["is_observed"]:
                shapes[name] = jnp.shape(observed_log_prob(site))

    with in_precision("double"):
        jax.eval_shape(look, jax.random.key(0))
    return shapes


def without_rows(
    expectation: Expectation, site: str, rows: np.ndarray, log_scales: np.ndarray
) -> Expectation:
    """The same program with other outputs: e^log_scale / p(row | sites), for each of some rows.

    Its expectation is e^log_scale / p(row | other rows), and γ times it the density of the
    posterior without that row.
    """
    program, data = expectation.program, expectation.data
    model = program.model

    def inverse(chosen: Any, scales: Any, *args: Any, **kwargs: Any) -> jax.Array:
        with handlers.trace() as sites:
            model(*args, **kwargs)
        log_prob = observed_log_prob(sites[site])
        if sites[site]["scale"] is not None:
            log_prob = sites[site]["scale"] * log_prob
        return jnp.exp(scales - jnp.ravel(log_prob)[chosen])

    made = ExpectationProgram(inverse, enumerate=program.enumerate)
    made.name = f"1/p({site}[i])"
    args, kwargs = jax.tree.unflatten(data.treedef, data.leaves[: data.num_data])
    return bind(made, (np.asarray(rows), np.asarray(log_scales, float), *args), kwargs)


def predicted_row(
    expectation: Expectation, site: str, row: int, count: int, log_scale: float
) -> Expectation:
    """The same program without a row of its data, with the output p(row | sites) / e^log_scale.

    Its γ has mass where p(row | sites) is 0, which that of `without_rows` has not.
    """
    program, data = expectation.program, expectation.data
    model = program.model

    def predicted(is_kept: Any, scale: Any, *args: Any, **kwargs: Any) -> jax.Array:
        leaving_out = _LeavingOut(site, is_kept)
        with leaving_out:
            model(*args, **kwargs)
        log_prob = jnp.ravel(leaving_out.log_prob)
        return jnp.exp(jnp.sum(jnp.where(is_kept, 0.0, log_prob)) - scale)

    made = ExpectationProgram(predicted, enumerate=program.enumerate)
    made.name = f"p({site}[i])"
    args, kwargs = jax.tree.unflatten(data.treedef, data.leaves[: data.num_data])
    return bind(made, (np.arange(count) != row, np.asarray(log_scale, float), *args), kwargs)


class _LeavingOut(Messenger):
    """Masks a row of data, and keeps the log densities of all rows."""

    def __init__(self, site: str, is_kept: Any):
        super().__init__()
        self.site, self.is_kept = site, is_kept
        self.log_prob: Any = None

    def process_message(self, msg: dict) -> None:
        if msg["type"] != "sample" or msg["name"] != self.site or not msg["is_observed"]:
            return
        log_prob = observed_log_prob(msg)
        if msg["scale"] is not None:
            log_prob = msg["scale"] * log_prob
        self.log_prob = log_prob
        msg["fn"] = msg["fn"].mask(jnp.reshape(self.is_kept, jnp.shape(log_prob)))


def the_posterior(expectation: Expectation) -> Expectation:
    """The same program with the output 1, which asks for nothing but the posterior."""
    program, data = expectation.program, expectation.data
    model = program.model

    def one(*args: Any, **kwargs: Any) -> float:
        model(*args, **kwargs)
        return 1.0

    made = ExpectationProgram(one, enumerate=program.enumerate)
    made.name = program.name
    args, kwargs = jax.tree.unflatten(data.treedef, data.leaves[: data.num_data])
    return bind(made, args, kwargs)


def rows_of(expectation: Expectation, site: str | None) -> tuple[str, int]:
    """The observed site that is meant, and how many rows it has."""
    shapes = {name: shape for name, shape in observed_shapes(expectation).items() if shape}
    if site is None:
        if len(shapes) != 1:
            raise ProgramError(
                f"program {expectation.name!r} has the observed sites {list(shapes)} with rows: "
                "say which one is meant, as in site='y'."
            )
        site = next(iter(shapes))
    if site not in shapes:
        raise ProgramError(
            f"program {expectation.name!r} has no observed site {site!r} with rows; those with "
            f"rows are {list(shapes)}."
        )
    return site, math.prod(shapes[site])
