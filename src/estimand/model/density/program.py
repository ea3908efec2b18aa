"""Models stated as a log likelihood in JAX and a prior.

They become NumPyro programs: a site for each parameter, the log likelihood as a factor, and the
quantity of interest as the return value. All that is done for NumPyro programs is done for them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpyro
from numpyro.distributions.constraints import Constraint

from estimand.model.density.calls import Stated, free_name, one_number
from estimand.model.density.laws import Laws
from estimand.model.density.priors import Given, Transformed
from estimand.model.layout import ProgramError
from estimand.model.numpyro import (
    Arguments,
    Expectation,
    ExpectationProgram,
    bind,
    source_text,
)
from estimand.runtime import in_precision
from estimand.settings import checked_names


@checked_names
def from_density(
    log_likelihood: Callable | None = None,
    *,
    f: Callable | None = None,
    prior: Mapping[str, Any] | None = None,
    prior_transform: Callable | None = None,
    dimension: int | None = None,
    names: Sequence[str] | None = None,
    log_prior: Callable | None = None,
    sampler: Callable | None = None,
    supports: Mapping[str, Constraint] | None = None,
    name: str | None = None,
    enumerate: bool | None = None,  # noqa: A002 - NumPyro's word for it
) -> DensityProgram:
    """An expectation program from a log likelihood in JAX, a prior and a quantity of interest.

    All functions have the parameters as their first argument; what follows are the data, with
    which the program is called. A function that takes the parameters alone is called with these.
    The prior is given in one of three ways: by `prior`, by `prior_transform`, or by `log_prior`
    and `sampler`.

    Args:
        log_likelihood: of the parameters and the data: one number. Left out where there are no
            data, as in the reliability of a structure.
        f: the quantity of interest, of the same arguments: a number or a bool, or a tuple, dict or
            array of them. Left out for `log_evidence`.
        prior: NumPyro distributions by the name of the parameter. The parameters are a dict then.
            A distribution that depends on parameters before it is given as a function of these.
        prior_transform: from the unit cube to the parameters, as nested samplers have it.
        dimension: of the unit cube.
        names: of the elements of the parameters, if `prior_transform` gives a vector.
        log_prior: the normalised log density of the parameters, any pytree of real arrays.
        sampler: from a JAX key to a draw of the parameters with that density.
        supports: for `log_prior`, NumPyro's constraints by name of those parameters that are not
            all of the real numbers.
        name: of the program; that of `log_likelihood` by default.
        enumerate: which discrete parameters are summed out, as in `expectation`.

    Examples:
        >>> def log_likelihood(v, y):
        ...     return jax.scipy.stats.norm.logpdf(y, v["x"], 1.0)
        >>> program = ep.from_density(
        ...     log_likelihood, prior={"x": dist.Normal(0, 1)}, f=lambda v: v["x"] ** 3
        ... )
        >>> program(2.0)
        <expectation of log_likelihood: 1 output, 1 latent site (x)>
        >>> nested = ep.from_density(
        ...     lambda theta, y: -0.5 * jnp.sum((y - theta) ** 2),
        ...     prior_transform=lambda u: 10.0 * u - 5.0,
        ...     names=["a", "b"],
        ...     f=lambda theta: theta[0] > theta[1],
        ...     name="nested",
        ... )
        >>> nested(jnp.array([0.3, 0.1]))
        <expectation of nested: 1 output, 1 latent site (cube)>
    """
    _check_functions(log_likelihood, f)
    given = _given_one(prior=prior, prior_transform=prior_transform, log_prior=log_prior)
    _refuse("prior_transform", given, dimension=dimension, names=names)
    _refuse("log_prior", given, sampler=sampler, supports=supports)
    label = name or _name_of(f if log_likelihood is None else log_likelihood)
    stated: Any
    if prior is not None:
        stated = Laws.of(prior)
    elif prior_transform is not None:
        stated = Transformed.of(prior_transform, dimension, names)
    else:
        stated = Given.of(log_prior, sampler, supports)
    return DensityProgram(Stated(label, log_likelihood, stated, f), enumerate)


def _check_functions(log_likelihood: Any, f: Any) -> None:
    for what, function in {"log_likelihood": log_likelihood, "f": f}.items():
        if function is not None and not callable(function):
            raise TypeError(f"from_density: {what} must be a function; it is {function!r}.")
    if log_likelihood is None and f is None:
        raise TypeError("from_density: give log_likelihood, f or both.")


def _given_one(**priors: Any) -> str:
    """The name of the one way in which the prior is given."""
    given = [name for name, value in priors.items() if value is not None]
    if len(given) != 1:
        raise TypeError(
            "from_density: give the prior in one way: prior={name: distribution}, or "
            "prior_transform= with dimension= or names=, or log_prior= with sampler=; "
            f"given are {given or 'none'}."
        )
    return given[0]


def _refuse(owner: str, given: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None and given != owner:
            raise TypeError(f"from_density: {name}= goes with {owner}=, not with {given}=.")


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "density" if name == "<lambda>" else name


class DensityProgram(ExpectationProgram):
    """A log likelihood, a prior and a quantity of interest; calling it with data binds it.

    Made by `from_density`.
    """

    def __init__(self, stated: Stated, enumerate: bool | None = None):  # noqa: A002
        model = functools.partial(_run, stated)
        self._signature = _signature_of_data(stated.with_data)
        if self._signature is not None:
            model.__signature__ = self._signature  # type: ignore[attr-defined]
        super().__init__(model, enumerate=enumerate)
        self.stated, self.name, self.shown = stated, stated.name, stated.prior.shown
        self._is_checked = False
        self.__doc__ = inspect.getdoc(stated.with_data)

    def __call__(self, *args: Any, **kwargs: Any) -> Expectation:
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                what = "f" if self.stated.log_likelihood is None else "log_likelihood"
                takes = ", ".join(self._signature.parameters) or "none"
                raise ProgramError(
                    f"the data of program {self.name!r} are what {what} takes after the "
                    f"parameters, {takes}: {error}."
                ) from None
        if not self._is_checked:
            with in_precision("double"):
                self.stated.prior.check(self.name)
            self._is_checked = True
        return bind(self, args, kwargs, needs_output=self.stated.f is not None)

    def content(self, data: Arguments) -> Any:
        model: Any = self.functions(data)[0]
        [stated] = model.args
        return stated.log_likelihood, stated.prior.content, stated.f

    @property
    def source(self) -> str:
        functions = [self.stated.log_likelihood, *self.stated.prior.functions, self.stated.f]
        texts = dict.fromkeys(source_text(one) for one in functions if one is not None)
        return "\n".join([self.stated.prior.text, *texts]).lstrip("\n")


def _signature_of_data(function: Callable) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(
            f"from_density: {_name_of(function)}{signature} has no argument for the parameters, "
            "which are the first one."
        )
    is_first = parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return signature.replace(parameters=parameters[1:] if is_first else parameters)


def _run(stated: Stated, *args: Any, **kwargs: Any) -> Any:
    """The NumPyro model."""
    data = args, kwargs
    drawn = stated.prior.draw(stated, data)
    if stated.log_likelihood is not None:
        value = stated.call("log_likelihood", stated.log_likelihood, drawn.values, data)
        value = one_number(stated.name, "log_likelihood", value)
        numpyro.factor(free_name("log_likelihood", drawn.names), value)
    return None if stated.f is None else stated.call("f", stated.f, drawn.values, data)
