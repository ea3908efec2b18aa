"""Models stated in PyMC, as NumPyro programs: a site for each free variable."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpyro

from estimand.model.density import call, free_name
from estimand.model.layout import ProgramError
from estimand.model.numpyro import (
    Arguments,
    Expectation,
    ExpectationProgram,
    bind,
    expression_of,
    source_text,
)
from estimand.model.pymc.graphs import Graphs, Variable, require_pymc
from estimand.model.pymc.laws import Law, law_of
from estimand.settings import checked_names

if TYPE_CHECKING:
    from pymc import Model as PymcModel

# Numbers of deterministics that are kept with each draw.
MAX_SHOWN = 200


@checked_names
def from_pymc(
    model: PymcModel,
    f: Any,
    *,
    name: str | None = None,
    enumerate: bool | None = None,  # noqa: A002 - NumPyro's word for it
) -> Expectation:
    """The expectation of a quantity of interest under the posterior of a PyMC model.

    Free variables become sites, with their own priors; data and potentials are the likelihood. The
    data are those that the model has now: after ``pm.set_data`` call it again, and what was
    compiled serves the new data of equal shape. Needs PyMC: ``pip install 'estimand[pymc]'``.

    Args:
        model: a PyMC model.
        f: the quantity of interest: a JAX function of a dict that has the values of free variables,
            deterministics and data by name; or the name of a variable; or an expression of the
            model's variables, such as ``model["x"] > 3``; or a tuple or dict of names and
            expressions.
        name: of the program; that of the model by default.
        enumerate: which discrete variables are summed out, as in `expectation`.

    Examples:
        >>> with pm.Model() as model:
        ...     x = pm.Normal("x", 0, 1)
        ...     y = pm.Normal("y", x, 1, observed=2.0)
        >>> ep.from_pymc(model, lambda v: v["x"] ** 3)
        <expectation of pymc_model: 1 output, 1 latent site (x)>
    """
    pymc = require_pymc()
    if not isinstance(model, pymc.Model):
        raise TypeError(f"from_pymc: model must be a PyMC model; it is {model!r}.")
    if not model.free_RVs:
        raise ProgramError("from_pymc: the model has no free variable.")
    return PymcProgram(_Given(model, f, name, enumerate))()


class _Given(NamedTuple):
    """What a program is made from, and made again from in another process."""

    model: Any
    f: Any
    name: str | None
    enumerate: bool | None


class PymcProgram(ExpectationProgram):
    """A PyMC model with a quantity of interest. Made by `from_pymc`."""

    def __init__(self, given: _Given):
        self.given = given
        self.asked = _Asked.of(given.model, given.f)
        graphs = Graphs(given.model, self.asked.expressions)
        translated = _Translated.of(graphs, self.asked)
        super().__init__(functools.partial(_run, translated), enumerate=given.enumerate)
        self.name = given.name or graphs.name
        self.data = dict(graphs.data)
        self.shown = translated.shown
        self.axes = _axes_of(given.model)

    def __call__(self, *args: Any, **kwargs: Any) -> Expectation:
        if args:
            raise ProgramError(f"the data of {self.name!r} are given by name: {list(self.data)}.")
        unknown = [name for name in kwargs if name not in self.data]
        if unknown:
            raise ProgramError(f"{self.name!r} has no data {unknown}; it has {list(self.data)}.")
        return bind(self, (), {**self.data, **kwargs})

    def content(self, data: Arguments) -> Any:
        """The expression that JAX traces: functions that PyTensor has written have no source."""
        return expression_of(self, data)

    def __reduce__(self) -> tuple:
        return PymcProgram, (self.given,)

    @property
    def source(self) -> str:
        pieces = [self.given.model.str_repr()]
        if callable(self.given.f) and not self.asked.expressions:
            pieces.append(source_text(self.given.f))
        return "\n\n".join(pieces)


class _Asked(NamedTuple):
    """The quantity of interest: a function of values by name, or expressions of the model's."""

    function: Callable | None
    expressions: list[Variable]
    structure: Any

    @classmethod
    def of(cls, model: PymcModel, f: Any) -> _Asked:
        from pytensor.graph.basic import Variable as Symbol

        if callable(f) and not isinstance(f, Symbol):
            return cls(f, [], None)
        leaves, structure = jax.tree.flatten(f)
        expressions = []
        for leaf in leaves:
            if isinstance(leaf, str):
                if leaf not in model.named_vars:
                    raise ProgramError(
                        f"from_pymc: the model has no variable {leaf!r}; it has "
                        f"{list(model.named_vars)}."
                    )
                expressions.append(model.named_vars[leaf])
            elif isinstance(leaf, Symbol):
                expressions.append(leaf)
            else:
                raise TypeError(
                    f"from_pymc: f has {leaf!r}, of type {type(leaf).__name__}: give a function of "
                    "the variables by name, the name of a variable, an expression of the model's "
                    "variables, or a tuple or dict of names and expressions."
                )
        if not expressions:
            raise TypeError(f"from_pymc: f is {f!r}: give the quantity of interest.")
        return cls(None, expressions, structure)


class _Translated(NamedTuple):
    """A model in JAX."""

    free: tuple[str, ...]
    data: tuple[str, ...]
    reported: tuple[str, ...]
    shown: tuple[str, ...]
    laws: tuple[Law, ...]
    rest: Callable[..., tuple]
    asked: _Asked

    @classmethod
    def of(cls, graphs: Graphs, asked: _Asked) -> _Translated:
        log_densities = graphs.log_densities()
        laws = [law_of(graphs, random, log_densities[random.name]) for random in graphs.free]
        log_likelihood = graphs.log_likelihood(log_densities)
        names = (*(random.name for random in graphs.observed), *graphs.deterministic_names)
        return cls(
            free=tuple(random.name for random in graphs.free),
            data=tuple(graphs.data),
            reported=names,
            shown=graphs.small_deterministics(MAX_SHOWN),
            laws=tuple(laws),
            rest=graphs.jaxified(
                "data and quantity of interest", [log_likelihood, *graphs.reported()]
            ),
            asked=asked,
        )


def _run(model: _Translated, **data: Any) -> Any:
    """The NumPyro model."""
    arrays = [data[name] for name in model.data]
    values: list[Any] = []
    for name, law in zip(model.free, model.laws, strict=True):
        values.append(numpyro.sample(name, law(tuple(values), arrays)))
    log_likelihood, *rest = model.rest(*values, *arrays)
    reported = dict(zip(model.reported, rest, strict=False))
    for name in model.shown:
        numpyro.deterministic(name, reported[name])
    known = {**data, **dict(zip(model.free, values, strict=True)), **reported}
    numpyro.factor(free_name("log_likelihood", tuple(known)), log_likelihood)
    if model.asked.function is not None:
        return call("from_pymc", "f", model.asked.function, known)
    return jax.tree.unflatten(model.asked.structure, rest[len(model.reported) :])


def _axes_of(model: PymcModel) -> dict[str, dict[str, list]]:
    """Names of dimensions by variable, and what stands along each."""
    dims = {
        name: [dim if dim is not None else f"{name}_dim_{k}" for k, dim in enumerate(names)]
        for name, names in model.named_vars_to_dims.items()
    }
    coords = {
        dim: [_plain(label) for label in labels]
        for dim, labels in model.coords.items()
        if labels is not None
    }
    return {"dims": dims, "coords": coords}


def _plain(label: Any) -> Any:
    """A label as JSON has it."""
    item = label.item() if isinstance(label, np.generic) else label
    return item if isinstance(item, str | int | float | bool) else str(item)
