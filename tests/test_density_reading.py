"""The return expression as densities read it: logarithms, known signs and ladders of events."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special
from scipy import stats as laws

import estimand as ep
from estimand.density import SOFTNESS, PathPoint, Terms
from estimand.record.parts import used_evidence
from estimand.runtime import LocalRuntime
from estimand.sampling import comparison_scales
from estimand.sampling.tempering import from_prior, log_increments, next_temperature
from problems import PROBLEMS
from problems.problem import quad
from tests.parameters import product
from tests.stats import assert_estimate, assert_mean, assert_unbiased


def normal(target: Callable, *, dimension: int | None = None) -> ep.Density:
    @ep.expectation
    def program() -> Any:
        law: Any = dist.Normal(0.0, 1.0)
        if dimension is not None:
            law = law.expand([dimension]).to_event(1)
        return target(numpyro.sample("x", law))

    return ep.Density.of(program())


def tail(edge: float) -> ep.Density:
    return normal(lambda x: x > edge)


# Sign and logarithm ------------------------------------------------------------------------------


@pytest.mark.slow
def test_product_of_many_logistics_in_single_precision(seed: int) -> None:
    """400 factors of about e⁻⁵: the product is 0 in floating point, its logarithm is not."""
    slopes = np.linspace(-1.0, 1.0, 400)

    def product(x: jax.Array) -> jax.Array:
        return jnp.prod(jax.nn.sigmoid(jnp.linspace(-1.0, 1.0, 400) * x - 5.0))

    with jax.enable_x64(False):
        density = normal(product).part("gamma1_plus")
        point = PathPoint(jnp.ones(()), jnp.ones(()))
        for x in np.random.default_rng(seed).normal(size=3):
            position = jnp.asarray([x], jnp.float32)
            terms, _, gradient = density.value_and_gradient(position, point)
            assert density.outputs(position) == 0.0
            assert terms.log_target.dtype == jnp.float32
            expected = special.log_expit(slopes * x - 5.0).sum()
            assert float(terms.log_target) == pytest.approx(expected, rel=1e-5)
            slope = (slopes * special.expit(5.0 - slopes * x)).sum() - x
            assert float(gradient[0]) == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_outputs_agree_with_their_logarithms(rng_key: jax.Array) -> None:
    density = normal(lambda x: (x**3, -jnp.exp(x), x > 0.3, 0.0 * x))
    for position in jax.random.normal(rng_key, (4, 1)):
        _, outputs = density.evaluate(position)
        signed = outputs.sign * jnp.exp(outputs.log_abs)
        np.testing.assert_allclose(signed, density.outputs(position), rtol=1e-12)


def test_a_reading_made_inside_jit_serves_later_compilations() -> None:
    """The expression is read while a first function is traced; others are compiled from it."""
    density = normal(lambda x: 3.0 * jnp.exp(-jnp.sum((x - 0.5) ** 2)), dimension=2)
    density = density.part("gamma1_plus")
    positions = jnp.ones((3, 2))
    for _ in range(3):
        run = jax.jit(lambda x: jax.vmap(density.terms)(x).log_target)
        for _ in range(3):
            np.testing.assert_allclose(run(positions), np.full(3, math.log(3) - 0.5), rtol=1e-12)


# Known signs -------------------------------------------------------------------------------------


def test_signs_of_outputs() -> None:
    density = normal(lambda x: (jnp.exp(x), -(x**2), x, x > 1.0, jnp.maximum(x - 3.0, 0.0)))
    assert density.known_signs.tolist() == [1, -1, 0, 1, 1]
    assert density.standardised().known_signs.tolist() == [1, -1, 0, 1, 1]


@pytest.mark.parametrize(
    ("target", "parts", "truth"),
    [
        (lambda x: jnp.exp(x), ["gamma2", "gamma1_plus"], math.exp(0.5)),
        (lambda x: -(x**2), ["gamma2", "gamma1_minus"], -1.0),
        (lambda x: x + 1.0, ["gamma2", "gamma1_plus", "gamma1_minus"], 1.0),
    ],
)
def test_parts_that_are_known_to_be_zero_are_skipped(
    target: Callable, parts: list[str], truth: float, rng_key: jax.Array
) -> None:
    method = ep.AdaptiveIS(max_evaluations=50_000)
    run = method.run(rng_key, normal(target), LocalRuntime())
    assert [used.name for used in used_evidence(run)] == parts
    output = run.outputs[0]
    assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)
    absent = output.parts.log_z("plus" if truth < 0 else "minus")
    assert (absent == -math.inf) is (len(parts) == 2)


# Ladders -----------------------------------------------------------------------------------------


def softened(density: ep.Density) -> ep.Density:
    return density.softened(comparison_scales(density, (1, 2), 1000))


def test_ladder_leads_from_soft_to_exact() -> None:
    """log logistic((x − 2)/τ) with τ a fraction of the margin's own spread, and the event last."""
    soft = softened(tail(2.0)).part("gamma1_plus")
    assert soft.num_rungs == len(SOFTNESS) + 1
    assert float(soft.scales[0]) == pytest.approx(1.0, rel=0.1)
    widths = np.array(SOFTNESS) * float(soft.scales[0])
    for x in (-3.0, 1.9, 2.1, 4.0):
        ladder = np.asarray(soft.terms(jnp.array([x])).log_target)
        np.testing.assert_allclose(ladder[:-1], special.log_expit((x - 2.0) / widths), rtol=1e-9)
        assert ladder[-1] == (0.0 if x > 2 else -math.inf)


def test_without_comparisons_nothing_is_softened(rng_key: jax.Array) -> None:
    density = normal(lambda x: jnp.exp(x))
    assert not density.has_comparisons
    plan = ep.AdaptiveIS()._plan(rng_key, density, (), LocalRuntime())
    assert not plan.has_ladder
    assert plan.softened.num_rungs == 1


def test_path_climbs_the_ladder() -> None:
    """Powers of two neighbouring rungs that add up to one; the likelihood is whole at the first."""
    density = softened(tail(2.0))
    rungs = density.num_rungs
    ladder = -jnp.exp(jnp.linspace(0.0, 2.0, rungs))
    terms = Terms(jnp.asarray(-1.0), jnp.asarray(-2.0), ladder)
    path = from_prior(density)
    for beta in np.linspace(0.0, 1.0, 28):
        place = beta * rungs
        k = min(int(place), rungs - 1)
        low = ladder[k - 1] * (k + 1 - place) if k else 0.0
        expected = -1.0 - 2.0 * min(place, 1.0) + low + ladder[k] * (place - k)
        found = path(jnp.asarray(beta)).log_density(terms)
        assert float(found) == pytest.approx(float(expected), abs=1e-9)


def test_a_lost_particle_stays_lost() -> None:
    """−inf before and after: its increment is −inf, not NaN."""
    terms = Terms(jnp.zeros(2), jnp.zeros(2), jnp.array([-jnp.inf, -1.0]))
    increments = log_increments(
        lambda beta: PathPoint(beta, beta), jnp.asarray(0.5), jnp.asarray(0.75), terms
    )
    assert increments.tolist() == [-math.inf, -0.25]


def test_temperatures_stop_at_rungs() -> None:
    """Nine of ten particles are lost beyond the second of three rungs, and one stays."""
    lost = jnp.where(jnp.arange(100) % 10 == 0, 0.0, -jnp.inf)
    ladder = jnp.stack([jnp.zeros(100), jnp.zeros(100), lost], axis=1)
    terms = Terms(jnp.zeros(100), jnp.zeros(100), ladder)

    def path(beta: jax.Array) -> PathPoint:
        return PathPoint(jnp.minimum(3 * beta, 1.0), beta)

    def after(beta: float) -> float:
        return float(next_temperature(path, jnp.asarray(beta), terms, 0.5, 3))

    assert after(0.0) == after(0.4) == pytest.approx(2 / 3, abs=1e-12)
    # At the rung only those count that any further step leaves alive.
    assert after(2 / 3) == 1.0


@pytest.mark.slow
def test_softened_smc_with_a_fixed_schedule_is_unbiased(rng_key: jax.Array) -> None:
    """Any ladder ends at the exact target: how it is softened changes the variance only."""
    log_truths = laws.norm.logsf(3.0), math.log(laws.norm.pdf(2.0) - 2.0 * laws.norm.sf(2.0))
    density = softened(normal(lambda x: (x > 3.0, jnp.maximum(x - 2.0, 0.0))))
    sampler = ep.SMC(
        num_particles=400,
        num_steps=8,
        schedule=ep.linear(2 * density.num_rungs),
        adapt=False,
        kernel=ep.RandomWalk(scale=0.7),
    )

    @jax.jit
    def run(part: ep.Density, keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: sampler.estimate(key, part).log_z)(keys)

    for output, log_truth in enumerate(log_truths):
        keys = jax.random.split(jax.random.fold_in(rng_key, output), 500)
        assert_unbiased(np.asarray(run(density.part("gamma1_plus", output), keys)), log_truth)


def test_adaptive_softened_smc_finds_an_event_that_no_draw_meets(rng_key: jax.Array) -> None:
    density = softened(tail(4.5)).part("gamma1_plus")
    sampler = ep.SMC(num_particles=1000, num_steps=20, num_islands=32)
    evidence = sampler.estimate(rng_key, density)
    islands = np.asarray(evidence.log_weights).reshape(32, -1)[:, 0]
    assert_mean(np.exp(islands - laws.norm.logsf(4.5)), 1.0)
    assert evidence.standard_error < 0.1
    assert (np.asarray(evidence.positions) > 4.5).all()


# The default method ------------------------------------------------------------------------------


@ep.expectation
def far_out() -> Any:
    """An event that no prior draw meets, and a pay-off that few do."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return x > 4.5, jnp.maximum(x - 3.0, 0.0)


RARE: dict[str, tuple[Any, Any]] = {
    "far_out": (far_out(), (laws.norm.sf(4.5), laws.norm.pdf(3.0) - 3.0 * laws.norm.sf(3.0))),
    **{
        name: (ep.expectation(PROBLEMS[name].model)(), PROBLEMS[name].value)
        for name in ("four_branch", "rp22")
    },
}


@pytest.mark.parametrize("name", product(RARE, slow=lambda name: name != "four_branch"))
def test_rare_events_to_one_percent(name: str, seed: int) -> None:
    expectation, truths = RARE[name]
    result = ep.estimate_expectation(expectation, rng_key=seed, throw=False)
    assert all("checked at" in note or "did not pass" in note for note in result.run.notes)
    for output, truth in zip(result.outputs, np.atleast_1d(truths), strict=True):
        assert output.status is ep.Status.ok
        assert 0 < output.standard_error < 0.01 * truth
        assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


def test_a_bounded_function_less_a_constant(seed: int) -> None:
    """Both parts of erf(0.3 + x) − 0.9 count, although erf has the sign of its argument."""

    @ep.expectation
    def shifted() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        level = jax.lax.erf(0.3 + x) - 0.9
        return level, jnp.maximum(level, -0.5)

    def mean(f: Callable) -> float:
        kink = float(special.erfinv(0.4)) - 0.3
        return quad(lambda x: f(special.erf(0.3 + x) - 0.9) * laws.norm.pdf(x), -12, 12, kink)

    truths = mean(lambda level: level), mean(lambda level: max(level, -0.5))
    assert truths[0] == pytest.approx(special.erf(0.3 / math.sqrt(3.0)) - 0.9, abs=1e-9)
    density = ep.Density.of(shifted())
    assert density.known_signs.tolist() == [0, 0]
    result = ep.estimate_expectation(shifted(), rng_key=seed)
    for output, truth in zip(result.outputs, truths, strict=True):
        assert output.status is ep.Status.ok
        assert_estimate(output.value, output.standard_error, truth, degrees=output.degrees)


def _hidden(x: jax.Array) -> jax.Array:
    """An event so far out that no draw meets it, in a loop, where no comparison shows it."""
    return jax.lax.fori_loop(0, 1, lambda _, is_there: x > 300.0, False)


def _prior_expectation(target: Callable) -> ep.Expectation:
    @ep.expectation
    def program() -> Any:
        return target(numpyro.sample("x", dist.Normal(0.0, 1.0)))

    return program()


@pytest.mark.parametrize("target", [_hidden, lambda x: 1.0 * _hidden(x)], ids=["event", "number"])
def test_an_event_that_never_happens(target: Callable) -> None:
    """No route claims a value; for an event an upper bound of its probability is reported."""
    result = ep.estimate_expectation(_prior_expectation(target), throw=False)
    assert result.status is ep.Status.no_mass_found
    assert result.standard_error == math.inf
    assert "no mass found" in str(result)
    assert result.outputs[0].upper_bound < 1e-3
    if result.output.is_indicator[0]:
        low, high = result.interval()
        assert low == 0.0 < high < 1e-3


@pytest.mark.parametrize(
    "target",
    [
        lambda _: 0.0,
        lambda _: False,
        lambda x: x - x,
        lambda x: jnp.tanh(x) > 1.5,
        lambda x: jnp.where(jnp.sin(x) > 2.0, 1.0, 0.0),
    ],
)
def test_what_is_0_by_its_expression_is_exact(target: Callable) -> None:
    result = ep.estimate_expectation(_prior_expectation(target))
    assert (result.value, result.standard_error, result.interval()) == (0.0, 0.0, (0.0, 0.0))
    assert "0 exactly" in str(result)
    assert "0 whatever is drawn: the return value, by the expression" in result.run.notes
    assert result.diagnoses[0].verdict.startswith("The value is exact")


@pytest.mark.parametrize(
    "method",
    [
        ep.Auto(),
        ep.AdaptiveIS(),
        ep.TABI(ep.ImportanceSampling(num_samples=1000)),
        ep.SelfNormalised(ep.ImportanceSampling(num_samples=1000)),
        ep.PosteriorMCMC(num_samples=100, num_warmup=100),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_method_knows_what_is_0(method: Any) -> None:
    expectation = _prior_expectation(lambda x: {"mean": x + 1.0, "none": 0.0})
    result = ep.estimate_expectation(expectation, method, throw=False)
    none = result.outputs[1]
    assert (none.value, none.standard_error, none.status) == (0.0, 0.0, ep.Status.ok)
    assert abs(result.value["mean"] - 1.0) < 5 * result.standard_error["mean"]
    assert result.run.notes[-1] == "0 whatever is drawn: none, by the expression"


def test_what_is_0_is_no_expectation_where_there_is_no_posterior() -> None:
    @ep.expectation
    def impossible() -> Any:
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("never", -jnp.inf)
        return 0.0

    result = ep.estimate_expectation(impossible(), throw=False)
    assert result.status is ep.Status.no_mass_found


@pytest.mark.parametrize(
    "method",
    [ep.Auto(), ep.TABI(ep.ImportanceSampling(num_samples=1000))],
    ids=lambda method: type(method).__name__,
)
def test_what_is_0_or_not_a_number_is_not_0(method: Any) -> None:
    expectation = _prior_expectation(lambda x: 0.0 * jnp.sqrt(x))
    result = ep.estimate_expectation(expectation, method, throw=False)
    assert result.status is ep.Status.nan_density


def test_what_underflows_is_not_0() -> None:
    expectation = _prior_expectation(lambda x: 1e-200 * jnp.exp(-(x**2)) * 1e-200)
    assert not ep.estimate_expectation(expectation, throw=False).status


def test_bounds_know_the_support_of_integers() -> None:
    @ep.expectation
    def sales() -> Any:
        demand = numpyro.sample("demand", dist.Poisson(3.0))
        return {"none": jnp.minimum(0, demand), "some": jnp.minimum(2, demand), "all": demand}

    density = ep.Density.of(sales())
    assert density.known_zeros.tolist() == [True, False, False]
    assert density.known_signs.tolist() == [1, 1, 1]
    assert density.bounds.high.tolist()[:2] == [0.0, 2.0]
