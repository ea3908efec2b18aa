"""Binding: structure of programs, treatment of data, and every error that binding can give."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, Predictive
from scipy import integrate
from scipy import stats as laws

import estimand as ep

RTOL = 1e-12


def returning(f: Callable[[Any], Any]) -> ep.ExpectationProgram:
    """A program with one latent x, whose return value is f of it."""

    @ep.expectation
    def moments(y: Any = 2.0) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return f(x)

    return moments


def outputs_at(expectation: ep.Expectation, **values: Any) -> list[float]:
    """Every output of a bound program for given values of its latents."""
    density = ep.Density.of(expectation)
    arrays = {name: jnp.asarray(value) for name, value in values.items()}
    return density.model.assess(arrays, density.arrays).outputs.tolist()


def log_likelihood(expectation: ep.Expectation, position: list[float]) -> float:
    return float(ep.Density.of(expectation).terms(jnp.asarray(position)).log_likelihood)


def assert_says(error: pytest.ExceptionInfo, *words: str) -> None:
    for word in words:
        assert word in str(error.value)


# Structure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "expected", "labels", "is_indicator"),
    [
        (lambda x: x**3, [-8.0], ("",), (False,)),
        (lambda x: x < 0, [1.0], ("",), (True,)),
        (lambda x: 3, [3.0], ("",), (False,)),
        (lambda x: jnp.floor(x).astype(int), [-2.0], ("",), (False,)),
        (lambda x: (x, x > 0), [-2.0, 0.0], ("[0]", "[1]"), (False, True)),
        (lambda x: [x, x**2], [-2.0, 4.0], ("[0]", "[1]"), (False, False)),
        (lambda x: (x,), [-2.0], ("[0]",), (False,)),
        (lambda x: {"mean": x, "event": x < 0}, [-2.0, 1.0], ("mean", "event"), None),
        (lambda x: jnp.stack([x, 2 * x]), [-2.0, -4.0], ("[0]", "[1]"), (False,)),
        (
            lambda x: x * jnp.arange(4.0).reshape(2, 2),
            [0.0, -2.0, -4.0, -6.0],
            ("[0, 0]", "[0, 1]", "[1, 0]", "[1, 1]"),
            (False,),
        ),
        (
            lambda x: {"a": (x, jnp.stack([x, x**2])), "b": [x**3]},
            [-2.0, -2.0, 4.0, -8.0],
            ("a[0]", "a[1][0]", "a[1][1]", "b[0]"),
            (False, False, False),
        ),
    ],
    ids=[
        *("scalar", "bool", "int", "integer array", "tuple", "list", "tuple of one", "dict"),
        *("vector", "matrix", "nested"),
    ],
)
def test_return_values(
    f: Callable, expected: list[float], labels: tuple[str, ...], is_indicator: Any
) -> None:
    expectation = returning(f)()
    assert expectation.output is not None
    assert expectation.output.size == len(expected)
    assert expectation.output.labels == labels
    if is_indicator is not None:
        assert expectation.output.is_indicator == is_indicator
    assert outputs_at(expectation, x=-2.0) == expected
    restored = expectation.output.unflatten(np.asarray(expected))
    returned = f(jnp.asarray(-2.0))
    same = jax.tree.map(lambda a, b: np.shape(a) == np.shape(b), restored, returned)
    assert all(jax.tree.leaves(same))


def test_several_return_statements() -> None:
    @ep.expectation
    def program(y: float, cube: bool) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        if cube:
            return x**3
        return x**2

    assert outputs_at(program(2.0, True), x=-2.0) == [-8.0]
    assert outputs_at(program(2.0, False), x=-2.0) == [4.0]


def test_keywords_and_defaults() -> None:
    @ep.expectation
    def program(y: float, scale: float = 1.0, *, shift: float = 0.0) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x + shift, scale), obs=y)
        return x

    for expectation, mean, scale in [
        (program(2.0), 0.5, 1.0),
        (program(2.0, 3.0), 0.5, 3.0),
        (program(y=2.0, shift=1.0), 1.5, 1.0),
        (program(2.0, shift=-1.0, scale=2.0), -0.5, 2.0),
    ]:
        expected = laws.norm.logpdf(2.0, mean, scale)
        assert log_likelihood(expectation, [0.5]) == pytest.approx(expected, rel=RTOL)


def test_unpacking_a_tuple() -> None:
    expectation = returning(lambda x: (x, x**2, x**3))()
    assert len(expectation) == 3
    first, second, third = expectation
    assert [outputs_at(e, x=-2.0) for e in (first, second, third)] == [[-2.0], [4.0], [-8.0]]
    assert outputs_at(expectation[-1], x=-2.0) == [-8.0]
    assert outputs_at(expectation[1], x=-2.0) == [4.0]
    assert third.name == expectation[-1].name == "moments[2]"


def test_unpacking_a_dict() -> None:
    expectation = returning(lambda x: {"mean": x, "event": x > 0})()
    assert len(expectation) == 2
    assert outputs_at(expectation["mean"], x=-2.0) == [-2.0]
    assert expectation["event"].name == "moments['event']"
    assert expectation["event"].output is not None
    assert expectation["event"].output.is_indicator == (True,)
    assert {e.name for e in expectation} == {"moments['mean']", "moments['event']"}


def test_unpacking_arrays_and_nests() -> None:
    nested = returning(lambda x: {"a": (x, jnp.stack([x, x**2])), "m": x * jnp.eye(2)})()
    assert outputs_at(nested["a"], x=-2.0) == [-2.0, -2.0, 4.0]
    assert outputs_at(nested["a"][1], x=-2.0) == [-2.0, 4.0]
    assert outputs_at(nested["a"][-1][-1], x=-2.0) == [4.0]
    assert nested["a"][-1][-1].name == "moments['a'][1][1]"
    assert len(nested["m"]) == 2
    assert [outputs_at(row, x=-2.0) for row in nested["m"]] == [[-2.0, 0.0], [0.0, -2.0]]
    assert outputs_at(nested["m"][1][0], x=-2.0) == [0.0]


@pytest.mark.parametrize("key", [3, -4, "x", 0.5])
def test_an_output_that_does_not_exist(key: Any) -> None:
    expectation = returning(lambda x: (x, x**2, x**3))()
    with pytest.raises(KeyError) as error:
        expectation[key]
    assert_says(error, "moments has no output", repr(key), "it has [0, 1, 2]")


def test_a_key_of_a_dict_that_does_not_exist() -> None:
    with pytest.raises(KeyError) as error:
        returning(lambda x: {"mean": x, "event": x > 0})()["median"]
    assert_says(error, "has no output 'median'", "'mean'", "'event'")


def test_one_output_cannot_be_unpacked() -> None:
    expectation = returning(lambda x: x)()
    for use in (len, list, lambda e: e[0]):
        with pytest.raises(TypeError, match="moments has one output"):
            use(expectation)


@pytest.mark.parametrize("part", ["gamma1_plus", "gamma1_minus"])
def test_signed_models_are_of_one_output(part: str) -> None:
    expectation = returning(lambda x: (x, x**2))()
    with pytest.raises(ep.ProgramError) as error:
        getattr(expectation, part)
    assert_says(error, "moments", "several outputs", f"expectation[0].{part}")
    assert getattr(expectation[1], part).__name__ == part


def test_representations() -> None:
    program = returning(lambda x: (x, x**2))
    assert repr(program) == "<expectation program 'moments'; call it with data>"
    assert repr(program()) == "<expectation of moments: 2 outputs, 1 latent site (x)>"
    assert repr(program()[0]) == "<expectation of moments[0]: 1 output, 1 latent site (x)>"


def test_a_program_is_made_from_a_function() -> None:
    with pytest.raises(TypeError, match="made from a function, not from 3"):
        ep.expectation(3)  # type: ignore[call-overload]


# expect ------------------------------------------------------------------------------------------


def plain_model(y: Any) -> Any:
    """A model that cannot be edited."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    double = numpyro.deterministic("double", 2 * x)
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return double + 1


def test_expect_sees_every_site_and_the_return_value() -> None:
    seen: list[set[str]] = []

    def f(sites: dict[str, Any]) -> Any:
        seen.append(set(sites))
        return sites["x"], sites["double"], sites["y"], sites["return"]

    program = ep.expect(plain_model, f)
    expectation = program(2.0)
    assert outputs_at(expectation, x=-2.0) == [-2.0, -4.0, 2.0, -3.0]
    assert all(names == {"x", "double", "y", "return"} for names in seen)
    assert program.model is plain_model
    assert program.name == "plain_model"


def test_expect_takes_a_program_too() -> None:
    program = ep.expect(ep.expectation(plain_model), lambda sites: sites["return"] ** 2)
    assert program.model is plain_model
    assert outputs_at(program(2.0), x=-2.0) == [9.0]


def test_expect_of_a_model_without_return_value() -> None:
    def silent(y: Any) -> None:
        numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0, 1)), 1), obs=y)

    assert outputs_at(ep.expect(silent, lambda sites: sites["x"] > 0)(1.0), x=2.0) == [1.0]
    with pytest.raises(ep.ProgramError, match="'silent' is None"):
        ep.expect(silent, lambda sites: sites["return"])(1.0)


def test_expect_and_expectation_are_one_density() -> None:
    written = ep.Density.of(returning(lambda x: x**3)(2.0)).part("gamma1_plus")
    outside = ep.Density.of(ep.expect(plain_model, lambda sites: sites["x"] ** 3)(2.0))
    for x in (-0.7, 1.3):
        position = jnp.asarray([x])
        one, other = written.terms(position), outside.part("gamma1_plus").terms(position)
        assert [float(term) for term in one] == [float(term) for term in other]


# NumPyro's own inference -------------------------------------------------------------------------


def test_the_undecorated_model() -> None:
    program = ep.expectation(plain_model)
    assert program.model is plain_model
    assert program.__doc__ == plain_model.__doc__
    draws = Predictive(program.model, num_samples=5)(jax.random.key(0), 2.0)
    assert set(draws) == {"x", "double", "y"}
    assert (draws["double"] == 2 * draws["x"]).all()


@pytest.mark.parametrize("part", ["gamma1_plus", "gamma1_minus", "gamma2"])
def test_predictive_of_the_three_models(part: str) -> None:
    model = getattr(returning(lambda x: x**3)(2.0), part)
    draws = Predictive(model, num_samples=5)(jax.random.key(0))
    assert draws["x"].shape == (5,)
    assert (draws["y"] == 2.0).all()


@pytest.mark.slow
def test_mcmc_on_gamma1_plus(rng_key: jax.Array) -> None:
    """NUTS samples the density γ·max(f, 0), whose mean is known by quadrature."""
    model = returning(lambda x: x**3)(2.0).gamma1_plus
    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=2000, progress_bar=False)
    mcmc.run(rng_key)
    x = np.asarray(mcmc.get_samples()["x"])
    assert (x > 0).all()

    def moment(k: int) -> float:
        density = laws.norm(1.0, math.sqrt(0.5)).pdf
        return integrate.quad(lambda u: u ** (3 + k) * density(u), 0.0, 10.0)[0]

    error = x.std(ddof=1) / math.sqrt(effective_sample_size(x[None]))
    assert error <= 0.05
    assert abs(x.mean() - moment(1) / moment(0)) <= 5 * error


# Data --------------------------------------------------------------------------------------------


@ep.expectation
def regression(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    y = jnp.asarray(y)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@ep.expectation
def direct(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


ROWS = [0.3, -1.2, 2.0]
ROWS_AT_HALF = laws.norm.logpdf(ROWS, 0.5).sum()


@pytest.mark.parametrize(
    "y", [ROWS, tuple(ROWS), np.array(ROWS), pd.Series(ROWS), pd.Series(ROWS, index=[7, 8, 9])]
)
def test_kinds_of_data(y: Any) -> None:
    assert log_likelihood(regression(y), [0.5]) == pytest.approx(ROWS_AT_HALF, rel=RTOL)


@pytest.mark.parametrize("y", [np.array(ROWS), pd.Series(ROWS), pd.DataFrame({"y": ROWS})["y"]])
def test_columns_are_observed_as_they_are(y: Any) -> None:
    assert log_likelihood(direct(y), [0.5]) == pytest.approx(ROWS_AT_HALF, rel=RTOL)


def test_data_in_a_dict() -> None:
    @ep.expectation
    def program(data: dict[str, Any]) -> Any:
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * data["t"], 1.0).to_event(1), obs=data["y"])
        return slope

    t = np.array([1.0, 2.0, 3.0])
    expectation = program({"t": t, "y": pd.Series(ROWS)})
    expected = laws.norm.logpdf(ROWS, 0.5 * t).sum()
    assert log_likelihood(expectation, [0.5]) == pytest.approx(expected, rel=RTOL)
    assert expectation.data.is_array == (True, True)


def test_control_flow_over_a_number() -> None:
    @ep.expectation
    def program(y: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        scale = 3.0 if y > 0 else 0.5
        numpyro.sample("y", dist.Normal(x, scale), obs=y)
        return x

    for y, scale in [(1.0, 3.0), (-1.0, 0.5), (2.0, 3.0)]:
        expectation = program(y)
        assert expectation.data.arrays == ()
        expected = laws.norm.logpdf(y, 0.5, scale)
        assert log_likelihood(expectation, [0.5]) == pytest.approx(expected, rel=RTOL)


def test_control_flow_over_an_array() -> None:
    @ep.expectation
    def program(y: np.ndarray) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        scale = 3.0 if y.max() > 1 else 0.5
        numpyro.sample("y", dist.Normal(x, scale).expand([3]).to_event(1), obs=y)
        return x

    for y, scale in [(np.array(ROWS), 3.0), (np.array(ROWS) - 5.0, 0.5)]:
        expectation = program(y)
        assert expectation.data.arrays == ()
        expected = laws.norm.logpdf(y, 0.5, scale).sum()
        assert log_likelihood(expectation, [0.5]) == pytest.approx(expected, rel=RTOL)


def test_integers_as_sizes() -> None:
    @ep.expectation
    def program(count: int, y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([count]).to_event(1))
        numpyro.sample("y", dist.Normal(x.sum(), 1.0).expand([3]).to_event(1), obs=y)
        return x.sum()

    for count in (2, 5):
        expectation = program(count, np.array(ROWS))
        assert [latent.shape for latent in expectation.latents] == [(count,)]
        # The size is compiled in; the data are not.
        assert expectation.data.is_array == (False, True)
        expected = laws.norm.logpdf(ROWS, 0.5 * count).sum()
        assert log_likelihood(expectation, [0.5] * count) == pytest.approx(expected, rel=RTOL)


def test_arguments_that_are_not_numbers() -> None:
    @ep.expectation
    def program(y: float, family: str, transform: Callable | None = None) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        mean = x if transform is None else transform(x)
        law = dist.Normal(mean, 1.0) if family == "normal" else dist.Laplace(mean, 1.0)
        numpyro.sample("y", law, obs=y)
        return x

    normal, laplace = laws.norm.logpdf(2.0, 0.5), laws.laplace.logpdf(2.0, math.exp(0.5))
    assert log_likelihood(program(2.0, "normal"), [0.5]) == pytest.approx(normal, rel=RTOL)
    other = program(2.0, "laplace", transform=jnp.exp)
    assert log_likelihood(other, [0.5]) == pytest.approx(laplace, rel=RTOL)


@ep.expectation
def pairs(count: int) -> Any:
    return numpyro.sample("x", dist.Normal(0.0, 1.0)) + count * (count - 1) / 2


@pytest.mark.parametrize("count", [1_000, 100_000, 10**12])
@pytest.mark.parametrize("is_double", [True, False])
def test_integers_do_not_overflow(count: int, is_double: bool) -> None:
    """A Python integer keeps Python's arithmetic inside the program, in single precision too."""
    with jax.enable_x64(is_double):
        (value,) = outputs_at(pairs(count), x=0.0)
    assert value == pytest.approx(count * (count - 1) / 2, rel=RTOL if is_double else 1e-6)


def test_programs_may_ask_for_the_type_of_a_number() -> None:
    @ep.expectation
    def program(degree: float) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return x**degree if isinstance(degree, int) else jnp.abs(x) ** degree

    assert outputs_at(program(3), x=-2.0) == [-8.0]
    assert outputs_at(program(3.0), x=-2.0) == [8.0]


# Errors at bind time -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: None, ("is None", "`return`")),
        (lambda x: (x, None), ("at [1] is None", "`return`")),
        (lambda x: {"a": x, "b": (x, None)}, ("at ['b'][1] is None", "`return`")),
        (lambda x: x * 1j, ("is complex", "real and imaginary parts as a tuple")),
        (lambda x: (x, x * 1j), ("at [1] is complex", "real and imaginary parts")),
        (lambda x: "high", ("of type str", "return real numbers")),
        (lambda x: {"a": "high"}, ("at ['a'] is of type str", "return real numbers")),
        (lambda x: [x, "high"], ("at [1] is of type str", "return real numbers")),
        (lambda x: np.array(["a"]), ("return real numbers",)),
        (lambda x: [x, jnp.zeros(2)], ("ragged list", "(2,)", "a tuple or a dict")),
        (lambda x: [[x], [x, x]], ("ragged list", "a tuple or a dict")),
        (lambda x: (x, [[x], [x, x]]), ("ragged list", "a tuple or a dict")),
        (lambda x: jnp.zeros(0), ("is an empty array", "at least one number")),
        (lambda x: (x, jnp.zeros((2, 0))), ("at [1] is an empty array", "at least one number")),
        (lambda x: (), ("is empty", "return the quantity of interest")),
        (lambda x: {}, ("is empty", "return the quantity of interest")),
    ],
    ids=[
        *("none", "none in a tuple", "none in a nest", "complex", "complex in a tuple"),
        *("string", "string in a dict", "string in a list", "array of strings"),
        *("ragged", "ragged lists", "ragged in a tuple", "empty array", "empty in a tuple"),
        *("empty tuple", "empty dict"),
    ],
)
def test_return_values_that_cannot_be_used(f: Callable, words: tuple[str, ...]) -> None:
    with pytest.raises(ep.ProgramError) as error:
        returning(f)()
    assert_says(error, "return value of program 'moments'", *words)


def test_outputs_that_change_between_calls() -> None:
    calls: list[None] = []

    @ep.expectation
    def forgetful() -> Any:
        calls.append(None)
        return numpyro.sample("x", dist.Normal(0, 1)) * jnp.ones(len(calls))

    with pytest.raises(ep.ProgramError) as error:
        forgetful()
    assert_says(error, "'forgetful'", "a different structure on every call", "(1,)", "(2,)")
    assert_says(error, "remove the state")


def test_sites_that_change_between_calls() -> None:
    calls: list[None] = []

    @ep.expectation
    def restless() -> Any:
        calls.append(None)
        return numpyro.sample(f"x{len(calls)}", dist.Normal(0, 1))

    with pytest.raises(ep.ProgramError) as error:
        restless()
    assert_says(error, "'restless'", "sites x1[]", "sites x2[]", "remove the state")


def test_missing_values() -> None:
    y = np.array([0.3, np.nan, 2.0])
    with pytest.raises(ep.ProgramError) as error:
        direct(y)
    assert_says(error, "site 'y' of program 'direct'", "NaN", "numpyro.handlers.mask")


def test_a_missing_number() -> None:
    with pytest.raises(ep.ProgramError, match="site 'y' of program 'moments' contain NaN"):
        returning(lambda x: x)(math.nan)


WITH_NAN = np.array([[0.3, np.nan, 2.0], [0.7, np.nan, -0.4]])
SEEN = np.array([True, False, True])


@ep.expectation
def masked_by_handler(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("columns", 3), handlers.mask(mask=SEEN):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y[0])
    return x


@ep.expectation
def masked_distribution(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).expand([3]).mask(SEEN), obs=y[0])
    return x


@ep.expectation
def masked_columns(y: Any) -> Any:
    """The mask is of one row, and the plate repeats it."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    rows, columns = numpyro.plate("rows", 2, dim=-2), numpyro.plate("columns", 3, dim=-1)
    with rows, columns, handlers.mask(mask=SEEN):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@ep.expectation
def masked_event(y: Any) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0).expand([3]).mask(SEEN).to_event(1), obs=y[0])
    return x


@pytest.mark.parametrize(
    ("program", "rows"),
    [(masked_by_handler, 1), (masked_distribution, 1), (masked_columns, 2), (masked_event, 1)],
    ids=lambda x: x.name if isinstance(x, ep.ExpectationProgram) else "",
)
def test_missing_values_that_are_masked(program: ep.ExpectationProgram, rows: int) -> None:
    expected = laws.norm.logpdf(WITH_NAN[:rows, SEEN], 0.5).sum()
    assert log_likelihood(program(WITH_NAN), [0.5]) == pytest.approx(expected, rel=RTOL)


@pytest.mark.parametrize(
    ("y", "shapes"),
    [
        (np.zeros((5, 1)), ("(5,)", "(5, 1)", "(5, 5)")),
        (np.zeros(1), ("(5,)", "(1,)")),
        (0.5, ("(5,)", "()")),
    ],
    ids=["column", "one row", "number"],
)
def test_data_that_would_be_counted_more_than_once(y: Any, shapes: tuple[str, ...]) -> None:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(jnp.zeros(5), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x[0]

    with pytest.raises(ep.ProgramError) as error:
        program(y)
    assert_says(error, "site 'y' of program 'program'", "more than once", "Reshape", *shapes)


def test_a_list_observed_as_it_is() -> None:
    """NumPyro takes no list as data: the error must say which site and what to do."""
    with pytest.raises(ep.ProgramError) as error:
        direct(ROWS)
    assert_says(error, "'y'", "'direct'")


def test_a_subsampled_plate() -> None:
    @ep.expectation
    def program(y: np.ndarray) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10, subsample_size=4) as rows:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.asarray(y)[rows])
        return x

    with pytest.raises(ep.ProgramError) as error:
        program(np.arange(10.0))
    assert_says(error, "plate 'rows' of program 'program'", "4 of 10 rows")
    assert_says(error, "remove subsample_size")


def test_a_latent_delta() -> None:
    @ep.expectation
    def program() -> Any:
        return numpyro.sample("x", dist.Normal(0, 1)) + numpyro.sample("shift", dist.Delta(2.0))

    with pytest.raises(ep.ProgramError) as error:
        program()
    assert_says(error, "site 'shift' of program 'program'", "Delta", "numpyro.deterministic")


@pytest.mark.parametrize("arguments", [(None,), ()], ids=["given", "by default"])
def test_data_that_are_none(arguments: tuple) -> None:
    @ep.expectation
    def program(y: Any = None) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x

    with pytest.raises(ep.ProgramError) as error:
        program(*arguments)
    assert_says(error, "site 'y' of program 'program'", "argument 'y' is None", "Pass its data")


def test_an_argument_that_may_be_none() -> None:
    """Only an argument that is the data of a site must be given."""

    @ep.expectation
    def program(y: float, scale: float | None = None) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0 if scale is None else scale), obs=y)
        return x

    expected = laws.norm.logpdf(2.0, 0.5)
    assert log_likelihood(program(2.0), [0.5]) == pytest.approx(expected, rel=RTOL)


# Errors of estimate_expectation, before any work -------------------------------------------------


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if any estimator or method starts."""

    def started(self: Any, *_: Any) -> None:
        pytest.fail(f"{self!r} has started to work")

    for estimator in (ep.AnIS, ep.ImportanceSampling):
        monkeypatch.setattr(estimator, "estimate", started)
    for method in (ep.TABI, ep.SelfNormalised, ep.PosteriorMCMC):
        monkeypatch.setattr(method, "run", started)


@ep.expectation
def improper(y: Any) -> Any:
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@ep.expectation
def improper_rows(y: Any) -> Any:
    with numpyro.plate("rows", 2):
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.simplex, (), (3,)))
    numpyro.sample("y", dist.Normal(x[0, 1], 1.0), obs=y)
    return x[0, 0]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("estimator", [ep.AnIS(), ep.ImportanceSampling()], ids=repr)
@pytest.mark.parametrize("method", [ep.TABI, ep.SelfNormalised])
@pytest.mark.parametrize("program", [improper, improper_rows], ids=["scalar", "simplexes"])
def test_an_improper_prior(program: ep.ExpectationProgram, estimator: Any, method: Any) -> None:
    with jax.numpy_rank_promotion("allow"):  # NumPyro promotes ranks in batches of simplexes
        expectation = program(1.0)
        with pytest.raises(ep.ProgramError) as error:
            ep.estimate_expectation(expectation, method(estimator))
    assert_says(error, type(estimator).__name__, f"site 'x' of program '{program.name}'")
    assert_says(error, "is improper", "a proper prior", "ImportanceSampling(proposal=...)")


def test_an_improper_prior_with_a_proposal(rng_key: jax.Array) -> None:
    """The posterior is N(1, 1) and Z2 is 1: a proposal equal to it has constant weights."""
    estimator = ep.ImportanceSampling(num_samples=100, proposal=dist.Normal(1.0, 1.0))
    evidence = ep.log_evidence(improper(1.0), estimator, rng_key=rng_key)
    np.testing.assert_allclose(evidence.log_weights, 0.0, atol=1e-12)


@ep.expectation(enumerate=False)
def mixture(y: Any) -> Any:
    component = numpyro.sample("component", dist.Bernoulli(0.5))
    x = numpyro.sample("x", dist.Normal(component, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("method", "asker"),
    [
        (ep.TABI(ep.AnIS(kernel=ep.HMC())), "HMC"),
        (ep.TABI(ep.AnIS(kernel=ep.MALA())), "MALA"),
        (ep.SelfNormalised(ep.AnIS(kernel=ep.NUTS())), "NUTS"),
        (ep.PosteriorMCMC(), "NUTS"),
        (ep.PosteriorMCMC(kernel=ep.HMC()), "HMC"),
    ],
    ids=repr,
)
def test_gradients_of_a_discrete_site(method: Any, asker: str) -> None:
    with pytest.raises(ep.ProgramError) as error:
        ep.estimate_expectation(mixture(0.2), method)
    assert_says(error, asker, "site 'component' of program 'mixture' is discrete", "RandomWalk")


@pytest.mark.usefixtures("no_work")
def test_a_program_that_is_not_bound() -> None:
    program: Any = returning(lambda x: x)
    with pytest.raises(TypeError) as error:
        ep.estimate_expectation(program)
    assert_says(error, "program 'moments' is not bound", "estimate_expectation(moments(data))")


@pytest.mark.usefixtures("no_work")
def test_what_is_not_a_program() -> None:
    model: Any = plain_model
    with pytest.raises(
        TypeError, match=r"'plain_model' is a function .* write @ep.expectation above it"
    ):
        ep.estimate_expectation(model)


@pytest.mark.usefixtures("no_work")
def test_an_estimator_instead_of_a_method() -> None:
    estimator: Any = ep.AnIS()
    with pytest.raises(TypeError) as error:
        ep.estimate_expectation(returning(lambda x: x)(), estimator)
    assert_says(error, "method must be one such as ep.Auto()", "AnIS()", "by ep.TABI(ep.AnIS(…))")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("TABI", "it is 'TABI'. Methods are objects"),
        ("nuts", "Averages of NUTS draws are ep.PosteriorMCMC()."),
        (numpyro.infer.NUTS(plain_model), "Averages of NUTS draws are ep.PosteriorMCMC()."),
        (ep.Auto, "It is a class: call it, as in ep.Auto()."),
        (ep.SMC, "An estimator of a normalising constant becomes a method by ep.TABI(ep.SMC(…))."),
        (7, "Leave it out for the default one."),
    ],
    ids=["name", "other name", "kernel", "class", "estimator", "number"],
)
def test_what_is_not_a_method(method: Any, words: str) -> None:
    with pytest.raises(TypeError) as error:
        ep.estimate_expectation(returning(lambda x: x)(), method)
    assert_says(error, "method must be one such as ep.Auto()", words)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("bad", [1.5, "7", True, None, np.zeros(2), jnp.zeros(3)], ids=repr)
def test_a_bad_key(bad: Any) -> None:
    with pytest.raises(TypeError) as error:
        ep.estimate_expectation(returning(lambda x: x)(), rng_key=bad)
    assert_says(error, "rng_key must be an int or a JAX key")


def test_keys_of_every_kind_agree() -> None:
    expectation = returning(lambda x: x**2)()
    method = ep.TABI(ep.ImportanceSampling(num_samples=100))
    keys: list[Any] = [7, np.int64(7), jax.random.key(7), jax.random.PRNGKey(7)]
    values = [
        ep.estimate_expectation(expectation, method, rng_key=key, throw=False).value for key in keys
    ]
    assert values == values[:1] * 4
    other = ep.estimate_expectation(expectation, method, rng_key=8, throw=False)
    assert other.value != values[0]


@pytest.mark.parametrize("broken", [lambda y: 1 / 0, lambda y: y["missing"]])
def test_an_error_of_the_program_itself_is_not_hidden(broken: Callable) -> None:
    @ep.expectation
    def program(y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return x + broken(y)

    with pytest.raises(ep.ProgramError, match=re.compile("zero|missing")) as error:
        program({"y": 1.0})
    assert isinstance(error.value.__cause__, ZeroDivisionError | KeyError)


# --- failures of the program's own text ---


def test_a_failure_names_the_program_the_line_and_the_shapes_there() -> None:
    @ep.expectation
    def regression(x: Any, y: Any) -> Any:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        mean = x @ b
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)
        return b[0]

    with pytest.raises(ep.ProgramError) as error:
        regression(np.zeros((5, 4)), np.zeros(5))
    assert_says(
        error,
        *("program 'regression' fails in line", "test_program.py", "`mean = x @ b`"),
        *("dot_general", "x (5, 4), y (5,), b (3,)"),
    )
    assert isinstance(error.value.__cause__, TypeError)


def test_a_negative_scale_names_the_line_of_its_site() -> None:
    @ep.expectation
    def program(scale: float) -> Any:
        return numpyro.sample("x", dist.Normal(0.0, scale))

    with pytest.raises(ep.ProgramError) as error:
        program(-1.0)
    assert_says(error, "program 'program' fails in line", 'numpyro.sample("x"', "scale")


def test_a_misspelt_site_is_answered_by_those_that_there_are() -> None:
    def model() -> None:
        numpyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(ep.ProgramError) as error:
        ep.expect(model, lambda sites: sites["X"])()
    assert_says(error, "KeyError: 'X'", "'sites' has 'x'")


def test_a_list_is_asked_for_as_an_array() -> None:
    @ep.expectation
    def program(y: Any) -> Any:
        return y * numpyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(ep.ProgramError) as error:
        program([1.0, 2.0])
    assert_says(error, "'y' is a list", "np.asarray(y)")


def test_what_a_function_outside_of_the_program_raises_is_left_alone() -> None:
    @ep.expectation
    def program(y: float) -> Any:
        return numpyro.sample("x", dist.Normal(y, 1.0))

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        program()

    class OwnError(Exception):
        pass

    @ep.expectation
    def raising() -> Any:
        raise OwnError

    with pytest.raises(OwnError):
        raising()


def _of(y: Any, *, observes: bool = True, factor: bool = False) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.size):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y if observes else None)
    if factor:
        numpyro.factor("likelihood", -x)
    return x


def test_data_that_are_not_observed_are_said_to_be_none() -> None:
    data = np.array([1.0, 2.0])
    program = ep.expectation(_of)
    assert program(data).notes == ()
    (note,) = program(data, observes=False, factor=True).notes
    assert "observes nothing" not in note
    (note,) = program(data, observes=False).notes
    assert "observes nothing" in note
    result = ep.estimate_expectation(program(data, observes=False), throw=False)
    assert note in result.run.notes
    given = ep.expect(
        functools.partial(_of, observes=False), lambda s: s["x"], given=lambda s: s["x"] > 0
    )
    assert given(data).notes == ()


def test_a_program_without_data_may_observe_nothing() -> None:
    @ep.expectation
    def prior() -> Any:
        return numpyro.sample("x", dist.Normal(0.0, 1.0))

    assert prior().notes == ()


def test_an_argument_that_is_drawn_as_a_site_is_noticed() -> None:
    @ep.expectation
    def partial(y: Any, z: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        numpyro.sample("z", dist.Normal(x, 1.0))
        return x

    (note,) = partial(1.0, 2.0).notes
    assert "obs=z forgotten" in note
