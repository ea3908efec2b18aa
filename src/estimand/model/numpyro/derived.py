"""Programs that are made of other ones: a model at several settings, or with its parts in sight."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from estimand.model.layout import ProgramError
from estimand.model.numpyro.program import CONCRETE, ExpectationProgram
from estimand.model.numpyro.sites import TRACING, drawing_from_prior, observed_log_prob
from estimand.runtime import in_precision

# Prior draws at which the density of a program is compared for several settings.
NUM_COMPARED = 8


def at_settings(
    program: ExpectationProgram,
    argument: str | None,
    settings: Sequence[Any],
    combine: Callable[[list[Any]], Any],
) -> ExpectationProgram:
    """A program that returns something of its return values at several settings of an argument.

    The sites are drawn once: they, and the data, must have the same density at every setting.

    Args:
        program: has the argument.
        argument: its name; the first one by default.
        settings: what the argument is set to.
        combine: makes one return value of those at all settings.
    """
    call = _Call(program, argument)

    def model(*args: Any, **kwargs: Any) -> Any:
        with handlers.trace() as sites:
            first = call(settings[0], args, kwargs)
        drawn = _drawn(sites)
        others = []
        for setting in settings[1:]:
            with handlers.block(), handlers.substitute(data=drawn):
                others.append(call(setting, args, kwargs))
        return combine([first, *others])

    model.__signature__ = call.reduced  # type: ignore[attr-defined]
    functools.update_wrapper(model, program.model, assigned=("__name__", "__doc__"), updated=())
    del model.__wrapped__  # type: ignore[attr-defined]
    derived = ExpectationProgram(model, enumerate=program.enumerate)
    derived.name = program.name
    return derived


def require_same_density(
    program: ExpectationProgram,
    argument: str | None,
    settings: Sequence[Any],
    args: tuple,
    kwargs: dict[str, Any],
) -> None:
    """Refuses a program whose sites have another density at another setting of an argument."""
    call = _Call(program, argument)
    names: list[str] = []

    def densities(rng_key: jax.Array) -> jax.Array:
        names.clear()
        with TRACING, handlers.trace() as first, drawing_from_prior(rng_key):
            call(settings[0], args, kwargs)
        rows = []
        for setting in settings:
            with (
                TRACING,
                handlers.trace() as sites,
                handlers.substitute(data=_drawn(first)),
                drawing_from_prior(rng_key),
            ):
                call(setting, args, kwargs)
            found = {name: site for name, site in sites.items() if site["type"] == "sample"}
            if not names:
                names.extend(found)
            if list(found) != names:
                raise ProgramError(
                    f"program {program.name!r} has other sites at {setting!r} than at "
                    f"{settings[0]!r}: every action must have the same sites, and only the return "
                    "value may depend on it."
                )
            scales = [1.0 if site["scale"] is None else site["scale"] for site in found.values()]
            logs = [
                jnp.sum(scale * observed_log_prob(site))
                for scale, site in zip(scales, found.values(), strict=True)
            ]
            rows.append(jnp.stack([*logs, jnp.zeros(())]))
        return jnp.stack(rows)

    def check(found: np.ndarray) -> None:
        slack = 1e-9 * (1 + np.abs(found[:, :1]))
        is_other = np.abs(found - found[:, :1]) > np.where(np.isfinite(slack), slack, 0.0)
        is_other |= np.isfinite(found) != np.isfinite(found[:, :1])
        if is_other.any():
            _, setting, site = np.argwhere(is_other)[0]
            raise ProgramError(
                f"the density of site {names[site]!r} of program {program.name!r} depends on the "
                f"action (at {settings[setting]!r} it is not that at {settings[0]!r}): draw what "
                "is random independently of the action, and let the return value alone depend on "
                "it."
            )

    with in_precision("double"):
        keys = jax.random.split(jax.random.key(0), NUM_COMPARED)
        try:
            check(np.asarray(jax.jit(jax.vmap(densities))(keys)))
        except CONCRETE:  # Python control flow, which each draw takes in its own way
            for key in keys:
                check(np.asarray(densities(key))[None])


class _Call:
    """A program's quantity of interest as a function of one of its arguments and the others."""

    def __init__(self, program: ExpectationProgram, argument: str | None):
        self.program = program
        self.signature = program.signature
        parameters = dict(self.signature.parameters)
        if not parameters:
            raise ProgramError(
                f"program {program.name!r} has no argument for the action: give it one, or a "
                "utility= of the sites and the action."
            )
        self.argument = next(iter(parameters)) if argument is None else argument
        if self.argument not in parameters:
            raise ProgramError(
                f"program {program.name!r} has no argument {argument!r}; it has {list(parameters)}."
            )
        others = [item for name, item in parameters.items() if name != self.argument]
        self.reduced = self.signature.replace(parameters=others)

    def __call__(self, setting: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = dict(self.reduced.bind(*args, **kwargs).arguments)
        given[self.argument] = setting
        ordered = {name: given[name] for name in self.signature.parameters if name in given}
        bound = inspect.BoundArguments(self.signature, ordered)
        return self.program.called(
            self.program.model, self.program.target, bound.args, bound.kwargs
        )


def _drawn(sites: dict[str, dict]) -> dict[str, jax.Array]:
    """The values of latent sites in a trace, with those of the branch that it is in."""
    return {
        name: site["value"]
        for name, site in sites.items()
        if site["type"] == "sample" and (not site["is_observed"] or site["infer"].get("branching"))
    }
