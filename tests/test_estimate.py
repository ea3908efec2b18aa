"""Methods and estimates: values, errors, effective sample sizes, statuses."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.methods import Method, Run
from estimand.runtime import Runtime
from estimand.settings import LIMITS
from estimand.trust import Evidence, OutputEstimate, combine, evidence_from_weights
from problems import IMPROPER, PROBLEMS
from tests.stats import assert_coverage


def bound(name: str) -> ep.Expectation:
    problem = PROBLEMS[name]
    return ep.expectation(problem.model)(*problem.args)


def evidence(log_weights: Any) -> Evidence:
    log_weights = jnp.asarray(log_weights, float)
    zeros = jnp.zeros(log_weights.shape, jnp.int32)
    return evidence_from_weights(log_weights, zeros[:, None], zeros + 1, zeros, zeros)


def test_combination_by_hand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plus, minus, z2 = (np.log(rng.gamma(5.0, scale, 400)) for scale in (3.0, 1.0, 2.0))
    output = combine(evidence(plus), evidence(minus), evidence(z2))
    a, b, c = (np.exp(weights) for weights in (plus, minus, z2))
    value = (a.mean() - b.mean()) / c.mean()
    relative = [x.var(ddof=1) / x.size / x.mean() ** 2 for x in (a, b, c)]
    variance = (a.mean() ** 2 * relative[0] + b.mean() ** 2 * relative[1]) / c.mean() ** 2
    variance += value**2 * relative[2]
    assert output.value == pytest.approx(value, rel=1e-12)
    assert output.standard_error == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert output.status is ep.Status.ok
    assert not output.is_log_scale


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("figure1", ep.AnIS(num_samples=1000, num_temperatures=20, redraw=True)),
        pytest.param(
            "half_line",
            ep.AnIS(num_samples=500, num_temperatures=15),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "posterior_predictive_2d",
            ep.AnIS(num_samples=500, num_temperatures=30),
            marks=pytest.mark.slow,
        ),
        ("cancellation", ep.ImportanceSampling(num_samples=4000)),
    ],
)
def test_intervals_of_tabi_cover(name: str, estimator: Any, rng_key: jax.Array) -> None:
    """500 runs, vmapped; each is combined as `TABI` does it."""
    problem, runs = PROBLEMS[name], 500
    density = Density.of(bound(name))

    @jax.jit
    @jax.vmap
    def parts(sign: jax.Array, keys: jax.Array) -> Evidence:
        part = dataclasses.replace(density, sign=sign)
        return jax.vmap(estimator.estimate, in_axes=(0, None))(keys, part)

    evidences = parts(jnp.array([1, -1, 0]), jax.random.split(rng_key, (3, runs)))
    evidences = jax.tree.map(np.asarray, evidences)
    lows, highs = [], []
    expectation = bound(name)
    assert isinstance(problem.value, float)
    assert expectation.output is not None
    for run in range(runs):
        plus, minus, z2 = (jax.tree.map(lambda x, p=p: x[p, run], evidences) for p in range(3))  # noqa: B023
        estimate = make_estimate(expectation, combine(plus, minus, z2))
        low, high = estimate.interval(0.95)
        lows.append(low)
        highs.append(high)
    assert_coverage(lows, highs, problem.value, 0.95)


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_part_without_an_error_is_never_ok(numbers: tuple[int, ...]) -> None:
    parts = [evidence(np.random.default_rng(0).normal(size=500)) for _ in range(3)]
    for number in numbers:
        parts[number] = parts[number]._replace(relative_variance=jnp.asarray(jnp.inf))
    output = combine(parts[0], parts[1], parts[2])
    assert math.isinf(output.standard_error)
    assert output.status is ep.Status.low_ess


def test_errors_between_few_replicates_have_students_t() -> None:
    rng = np.random.default_rng(0)
    islands = [evidence(rng.normal(size=100))._replace(degrees=7.0) for _ in range(2)]
    steady = evidence(rng.normal(size=100))
    assert math.isinf(combine(steady, None, steady).degrees)
    variances = [float(item.relative_variance) for item in (*islands, steady)]
    # One sign: the value is the ratio, and relative variances add up.
    np.testing.assert_allclose(
        combine(islands[0], None, islands[1]).degrees,
        7 * sum(variances[:2]) ** 2 / sum(v**2 for v in variances[:2]),
    )
    alone = combine(islands[0], None, steady)
    np.testing.assert_allclose(
        alone.degrees, 7 * (variances[0] + variances[2]) ** 2 / variances[0] ** 2
    )
    result = ep.estimate_expectation(
        bound("figure1"), ep.TABI(ep.SMC(num_particles=100, num_islands=4)), throw=False
    )
    assert 3 <= result.outputs[0].degrees <= 9


def make_estimate(expectation: ep.Expectation, output: OutputEstimate) -> ep.Estimate:
    assert expectation.output is not None
    return ep.Estimate(
        program=expectation.name,
        method="by hand",
        output=expectation.output,
        run=Run((output,), 0, 0),
        compile_seconds=0.0,
        run_seconds=0.0,
    )


def test_result_has_everything_and_unpacks() -> None:
    method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=100))
    result = ep.estimate_expectation(bound("figure1"), method)
    value, diagnostics = result
    assert value == result.value
    assert diagnostics["standard_error"] == result.standard_error > 0
    assert abs(value - 2.5) < 5 * result.standard_error
    low, high = result.interval(0.95)
    assert low < value < high
    wide = result.interval(0.99)
    assert wide[0] < low
    assert wide[1] > high
    log_z = result.log_z
    rebuilt = math.exp(log_z["Z1_plus"] - log_z["Z2"]) - math.exp(log_z["Z1_minus"] - log_z["Z2"])
    assert rebuilt == pytest.approx(value, rel=1e-12)
    assert result.num_evaluations == 3 * 1000 * 100
    assert result.num_gradients == 0
    assert result.compile_seconds >= 0
    assert result.run_seconds > 0
    assert result.status is ep.Status.ok
    assert {name for name, _ in result.evidence} == {"gamma1_plus", "gamma1_minus", "gamma2"}
    text = str(result)
    assert f"{value:.6g}" in text
    assert "95 % interval" in text
    assert "300,000 evaluations" in text
    with pytest.raises(ValueError, match="level"):
        result.interval(1.5)


def test_effective_sample_sizes_are_the_papers() -> None:
    expectation, sampler = bound("figure1"), ep.AnIS(num_samples=500, num_temperatures=10)
    tabi = ep.estimate_expectation(expectation, ep.TABI(sampler))
    by_name = dict(tabi.evidence)

    def ess(weights: np.ndarray) -> float:
        return weights.sum() ** 2 / (weights**2).sum()

    weights = {name: np.exp(np.asarray(e.log_weights)) for name, e in by_name.items()}
    assert tabi.ess["Z1_plus"] == pytest.approx(ess(weights["gamma1_plus"]))
    assert tabi.ess["Z2"] == pytest.approx(ess(weights["gamma2"]))
    assert tabi.ess["Z1"] == min(tabi.ess["Z1_plus"], tabi.ess["Z1_minus"])
    assert tabi.ess["min"] == min(tabi.ess["Z1"], tabi.ess["Z2"])

    plain = ep.estimate_expectation(expectation, ep.SelfNormalised(sampler))
    weighted = dict(plain.evidence)["gamma2"]
    w = np.exp(np.asarray(weighted.log_weights))
    f = np.asarray(weighted.positions)[:, 0] ** 3
    assert plain.value == pytest.approx((w * f).sum() / w.sum())
    assert plain.ess["Z2"] == pytest.approx(ess(w))
    assert plain.ess["Z1"] == pytest.approx((w * f).sum() ** 2 / ((w * f) ** 2).sum())
    assert plain.log_z["Z1_plus"] == pytest.approx(math.log(np.mean(w * np.maximum(f, 0))))

    mcmc = ep.estimate_expectation(
        expectation, ep.PosteriorMCMC(num_samples=500, kernel=ep.RandomWalk(scale=1.0))
    )
    assert mcmc.ess["Z2"] == 4 * 500
    assert 1 < mcmc.ess["Z1"] < 4 * 500
    assert math.isnan(mcmc.log_z["Z2"])


@pytest.mark.parametrize("kernel", [None, ep.RandomWalk(scale=1.0), ep.HMC(step_size=0.3)])
def test_posterior_mcmc_is_right_where_it_should_be(kernel: Any, rng_key: jax.Array) -> None:
    method = ep.PosteriorMCMC(num_samples=4000, num_warmup=500, num_chains=4, kernel=kernel)
    result = ep.estimate_expectation(bound("half_line"), method, rng_key=rng_key)
    truth = PROBLEMS["half_line"].value
    assert isinstance(truth, float)
    assert abs(result.value - truth) < 5 * result.standard_error
    assert result.standard_error < 0.1 * abs(truth)
    if kernel is None:
        assert result.num_evaluations == 4 * 4000
        assert result.num_gradients > 4 * 4500
    elif isinstance(kernel, ep.RandomWalk):
        assert result.num_evaluations == 4 * (1 + 4500 + 4000)


@pytest.mark.slow
def test_tabi_beats_the_baselines_at_equal_evaluations(rng_key: jax.Array) -> None:
    """The paper's figure 3 (left), with its settings: 100 temperatures, 5 MH steps each."""
    problem, expectation = PROBLEMS["posterior_predictive"], bound("posterior_predictive")
    annealed = ep.AnIS(
        num_samples=500,
        num_temperatures=100,
        num_steps=5,
        kernel=ep.RandomWalk(scale=0.5**0.5),
    )
    methods: dict[str, Method] = {
        "TABI": ep.TABI(normaliser=annealed, positive=annealed, negative=ep.SKIP),
        "AnIS": ep.SelfNormalised(dataclasses.replace(annealed, num_samples=1000)),
        "MCMC": ep.PosteriorMCMC(
            num_samples=400, num_warmup=100, num_chains=1000, kernel=ep.RandomWalk(scale=1.0)
        ),
    }
    errors: dict[str, list[float]] = {name: [] for name in methods}
    costs: dict[str, int] = {}
    assert isinstance(problem.value, float)
    for run in range(7):
        for name, method in methods.items():
            key = jax.random.fold_in(rng_key, run)
            result = ep.estimate_expectation(expectation, method, rng_key=key, throw=False)
            errors[name].append((result.value / problem.value - 1) ** 2)
            costs[name] = result.num_evaluations
    medians = {name: float(np.median(values)) for name, values in errors.items()}
    assert costs["TABI"] < 1.01 * costs["AnIS"]
    assert costs["TABI"] < 1.2 * costs["MCMC"]
    assert medians["TABI"] < 0.1
    assert medians["TABI"] < medians["AnIS"] / 10
    assert medians["TABI"] < medians["MCMC"] / 10


# --- several outputs, skipped parts, statuses ---


def test_several_outputs_share_one_normaliser() -> None:
    result = ep.estimate_expectation(bound("three_outputs"), ep.TABI(ep.AnIS(redraw=True)))
    assert [name for name, _ in result.evidence].count("gamma2") == 1
    # The second output is a square: its expression rules γ1⁻ out.
    assert len(result.evidence) == 1 + 2 * 3 - 1
    truths = PROBLEMS["three_outputs"].value
    assert isinstance(truths, tuple)
    for value, error, truth in zip(result.value, result.standard_error, truths, strict=True):
        assert abs(value - truth) < 5 * error


def test_structured_outputs_keep_their_structure() -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
        return {"pair": (x, x > 1.0), "powers": jnp.stack([x, x**2])}

    method = ep.TABI(ep.ImportanceSampling(num_samples=20_000))
    result = ep.estimate_expectation(program(), method)
    assert set(result.value) == {"pair", "powers"}
    assert result.value["pair"][1] == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(result.value["powers"], [1.0, 2.0], rtol=0.1)
    assert result.standard_error["powers"].shape == (2,)
    low, high = result.interval()
    assert (low["powers"] < result.value["powers"]).all()
    assert (high["powers"] > result.value["powers"]).all()
    assert "powers[1]" in str(result)


def test_skipped_part() -> None:
    sampler = ep.AnIS(num_samples=400, num_temperatures=20)
    method = ep.TABI(normaliser=sampler, positive=sampler, negative=ep.SKIP)
    result = ep.estimate_expectation(bound("posterior_predictive_2d"), method)
    assert {name for name, _ in result.evidence} == {"gamma1_plus", "gamma2"}
    assert result.log_z["Z1_minus"] == -math.inf
    assert math.isnan(result.ess["Z1_minus"])
    assert result.num_evaluations == 2 * 400 * 20
    full = ep.estimate_expectation(bound("posterior_predictive_2d"), ep.TABI(sampler))
    assert full.value == result.value
    assert full.interval() == result.interval()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ep.TABI(), ["normaliser"]),
        (lambda: ep.TABI(normaliser=ep.AnIS(), positive=ep.AnIS()), ["negative"]),
        (
            lambda: ep.TABI(
                normaliser=ep.SKIP,  # type: ignore[arg-type]
                positive=ep.AnIS(),
                negative=ep.SKIP,
            ),
            ["Z2"],
        ),
        (
            lambda: ep.TABI(normaliser=ep.AnIS(), positive=ep.SKIP, negative=ep.SKIP),
            ["both parts skipped"],
        ),
        (
            lambda: ep.TABI(ep.RandomWalk()),  # type: ignore[arg-type]
            ["estimator or SKIP", "RandomWalk"],
        ),
        (lambda: ep.SelfNormalised(3), ["estimator such as AnIS()"]),  # type: ignore[arg-type]
        (lambda: ep.PosteriorMCMC(num_samples=0), ["PosteriorMCMC", "num_samples"]),
        (
            lambda: ep.Auto(max_evals=9),  # type: ignore[call-arg]
            ["Auto has no setting 'max_evals'. Did you mean 'max_evaluations'?", "max_seconds"],
        ),
        (
            lambda: ep.TABI(ep.AnIS(), positve=ep.SKIP),  # type: ignore[call-arg]
            ["TABI has no setting 'positve'. Did you mean 'positive'?"],
        ),
        (lambda: ep.HMC(length=3), ["Known: step_size, num_leapfrog"]),  # type: ignore[call-arg]
        (lambda: ep.PosteriorMCMC(kernel="NUTS"), ["kernel"]),  # type: ignore[arg-type]
    ],
)
def test_bad_methods_are_refused(make: Any, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        make()
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "function",
    [
        *(one for name in ep.__all__ if inspect.isfunction(one := getattr(ep, name))),
        *(getattr(ep.Estimate, name) for name in ("refine", "samples", "sensitivity", "to_html")),
    ],
)
def test_misspelt_arguments_are_answered_by_those_that_are_meant(function: Any) -> None:
    *_, meant = inspect.signature(function).parameters
    with pytest.raises(TypeError, match=rf"no argument '{meant}s'. Did you mean '{meant}'\?"):
        function(**{f"{meant}s": 1})


def test_limits_as_arguments_are_answered_by_the_method() -> None:
    assert set(LIMITS) <= set(inspect.signature(ep.Auto).parameters)
    with pytest.raises(TypeError, match=r"method=ep.Auto\(max_seconds=…\)"):
        ep.estimate_expectation(bound("normal_tail"), max_second=3)  # type: ignore[call-arg]


def test_the_signature_of_settings_is_shown() -> None:
    assert list(inspect.signature(ep.Auto).parameters)[:2] == ["relative_error", "absolute_error"]
    assert "estimator" in inspect.signature(ep.TABI).parameters


def test_nothing_found_is_never_zero_plus_minus_zero() -> None:
    expectation = bound("normal_tail")
    for method in (
        ep.TABI(ep.AnIS(num_samples=100, num_temperatures=5)),
        ep.SelfNormalised(ep.ImportanceSampling(num_samples=1000)),
        ep.PosteriorMCMC(num_samples=500, kernel=ep.RandomWalk(scale=1.0)),
    ):
        with pytest.raises(ep.EstimationError, match="no_mass_found") as error:
            ep.estimate_expectation(expectation, method)
        result = error.value.estimate
        assert result.status is ep.Status.no_mass_found
        assert not result.status
        assert result.standard_error == math.inf
        assert "no mass found" in str(result)
        low, high = result.interval()
        assert (low, high) == (0.0, high)
        assert high >= 3.4e-6
        assert high < 0.01 or isinstance(method, ep.TABI)


def test_low_effective_sample_size_is_reported() -> None:
    expectation = bound("posterior_predictive")
    method = ep.SelfNormalised(ep.ImportanceSampling(num_samples=1000))
    result = ep.estimate_expectation(expectation, method, throw=False)
    assert result.ess["Z1"] < 50
    assert result.status in (ep.Status.low_ess, ep.Status.heavy_tailed)
    with pytest.raises(ep.EstimationError):
        ep.estimate_expectation(expectation, method)


def test_a_negligible_part_does_not_spoil_the_status(seed: int) -> None:
    rng = np.random.default_rng(seed)
    healthy = evidence(np.log(rng.gamma(5.0, 1.0, 400)))
    poor = rng.normal(0.0, 6.0, 400)
    assert not evidence(poor).status
    tiny = evidence(poor - np.max(poor) - 9.0)
    assert combine(healthy, tiny, healthy).status is ep.Status.ok
    large = evidence(poor - np.max(poor) + 9.0)
    assert combine(healthy, large, healthy).status is not ep.Status.ok


@pytest.mark.parametrize("name", IMPROPER)
def test_expectations_that_do_not_exist_are_not_ok(name: str, rng_key: jax.Array) -> None:
    expectation = ep.expectation(IMPROPER[name])()
    for method in (
        ep.TABI(ep.ImportanceSampling(num_samples=50_000)),
        ep.SelfNormalised(ep.ImportanceSampling(num_samples=50_000)),
    ):
        result = ep.estimate_expectation(expectation, method, rng_key=rng_key, throw=False)
        assert result.status is ep.Status.unresolved
        assert any("does not exist" in str(finding) for finding in result.findings[0])


def _guarded(place: str) -> Any:
    """log(x), without a guard in one place."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    log_x = {place: jnp.log(x)}
    numpyro.sample("y", dist.Normal(log_x.get("y", x), 1.0), obs=1.0)
    numpyro.factor("penalty", log_x.get("penalty", x))
    return log_x.get("return", x)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("y", "the log density of observation 'y' is"),
        ("penalty", "factor 'penalty' is"),
        ("return", "the return value is"),
    ],
)
def test_what_is_not_a_number_is_named(place: str, words: str) -> None:
    method = ep.TABI(ep.ImportanceSampling(num_samples=200))
    result = ep.estimate_expectation(ep.expectation(_guarded)(place), method, throw=False)
    details = [finding.detail for finding in result.findings[0]]
    share = re.search(f"{words} NaN or \\+inf at (\\d+) % of prior draws", details[0])
    assert share
    assert 45 < float(share[1]) < 55


def test_nan_target_is_reported() -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        return jnp.log(x)

    for method in (
        ep.TABI(ep.AnIS(num_samples=100, num_temperatures=5)),
        ep.SelfNormalised(ep.AnIS(num_samples=100, num_temperatures=5)),
        ep.PosteriorMCMC(num_samples=100, kernel=ep.RandomWalk()),
    ):
        result = ep.estimate_expectation(program(), method, throw=False)
        assert result.status is ep.Status.nan_density
        with pytest.raises(ep.EstimationError, match="Fix the program"):
            ep.estimate_expectation(program(), method)


@pytest.mark.slow
def test_chains_of_scaled_and_masked_latents() -> None:
    """NumPyro scales their Jacobian too, or leaves them flat; all chains here run on our density.

    Its prior is what prior draws have: a mask on a latent that nothing depends on changes nothing.
    """

    @ep.expectation
    def scaled() -> Any:
        with numpyro.handlers.scale(scale=0.3):
            return numpyro.sample("x", dist.Gamma(2.0, 1.0))

    @ep.expectation
    def masked() -> Any:
        with numpyro.handlers.mask(mask=False):
            return numpyro.sample("x", dist.Gamma(2.0, 1.0))

    for method in (
        ep.PosteriorMCMC(),
        ep.PosteriorMCMC(num_samples=5000, kernel=ep.RandomWalk(scale=1.5)),
    ):
        for program, truth in ((scaled, 13 / 3), (masked, 2.0)):
            result = ep.estimate_expectation(program(), method)
            assert abs(result.value - truth) < 5 * result.standard_error < 1.5


def test_keys() -> None:
    expectation = bound("figure1")
    method = ep.TABI(ep.ImportanceSampling(num_samples=500))

    def value(rng_key: Any) -> float:
        return ep.estimate_expectation(expectation, method, rng_key=rng_key, throw=False).value

    assert value(1) == value(1) == value(jax.random.key(1)) == value(jax.random.PRNGKey(1))
    assert value(np.int64(1)) == value(1)
    assert value(1) != value(2)
    assert value(0) == ep.estimate_expectation(expectation, method, throw=False).value


@pytest.mark.slow
def test_log_evidence_of_any_model() -> None:
    problem = PROBLEMS["half_line"]
    expectation = bound("half_line")
    sampler = ep.AnIS(num_samples=1000, num_temperatures=20)

    def without_return(y: Any) -> None:
        problem.model(y)

    for evidence, truth in [
        (ep.log_evidence(expectation, sampler), problem.log_z2),
        (ep.log_evidence(without_return, sampler, model_args=problem.args), problem.log_z2),
        (
            ep.log_evidence(without_return, sampler, model_kwargs={"y": problem.args[0]}),
            problem.log_z2,
        ),
        (ep.log_evidence(expectation.gamma1_plus, sampler), problem.log_z1_plus),
        (ep.log_evidence(expectation.gamma1_minus, sampler), problem.log_z1_minus),
    ]:
        assert abs(float(evidence.log_z) - truth) < 5 * evidence.standard_error < 0.5  # type: ignore[operator]
        assert "log Z" in str(evidence)
    with pytest.raises(TypeError, match="arguments already"):
        ep.log_evidence(expectation, sampler, model_args=(1,))


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_scales_near_the_ends_of_floating_point(scale: float) -> None:
    @ep.expectation
    def program() -> Any:
        x = numpyro.sample("x", dist.Normal(1.0, 1.0))
        return scale * x**2

    for method in (
        None,
        ep.TABI(ep.AnIS(num_temperatures=20)),
        ep.SelfNormalised(ep.ImportanceSampling(num_samples=2000)),
        ep.PosteriorMCMC(num_samples=2000, kernel=ep.RandomWalk(scale=1.5)),
    ):
        result = ep.estimate_expectation(program(), method)
        assert abs(result.value / scale - 2.0) < 5 * result.standard_error / scale < 0.5


@pytest.mark.parametrize(
    ("value", "error", "name"),
    [
        (math.nan, 0.1, "nan_density"),
        (math.inf, 0.1, "nan_density"),
        (1.0, math.inf, "low_ess"),
        (1.0, math.nan, "low_ess"),
    ],
)
def test_no_method_can_say_ok_without_numbers(value: float, error: float, name: str) -> None:
    class Careless:
        def check(self, density: ep.Density) -> None:
            """Takes any program."""

        def run(self, rng_key: jax.Array, density: ep.Density, runtime: Runtime) -> Run:
            return Run((OutputEstimate(value, error),), 1, 0)

    with pytest.raises(ep.EstimationError) as caught:
        ep.estimate_expectation(bound("figure1"), Careless())
    assert caught.value.estimate.status.name == name
    assert caught.value.estimate.standard_error == math.inf


def test_what_other_libraries_call_it_is_answered() -> None:
    with pytest.raises(TypeError, match=r"'seed'. Did you mean 'rng_key'"):
        ep.estimate_expectation(bound("figure1"), seed=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"max_evaluations must be .* 100000.0. Write 100_000"):
        ep.Auto(max_evaluations=1e5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"relative_error must be a number, as 0.01; it is '1%'"):
        ep.Auto(relative_error="1%")  # type: ignore[arg-type]
