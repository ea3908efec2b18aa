"""What data would be worth that are not there yet: the expected value of sample information.

A study draws data D given the sites θ. With the gains g_a = u_a − u_best of the actions its value
is E[max_a E[g_a | D]], where the best action of today has the gain 0. Weighted draws stand for the
posterior. Each of them simulates data, and says of all data how likely they are: E[g_a | D] is then
a mean of gains over the draws, weighted by p(D | θ).

The value is bracketed. Both ends are unbiased in the sizes of the samples, but for the ratios of
sums that they are divided by:

- *From above*: the same draws simulate the data and weigh them. The mean over data is then an
  integral of max_a n_a(D), where n_a(D), the sum of weights × p(D | θ) × gain over draws, has the
  right mean for every D. The expectation of a maximum is not below the maximum of expectations.
- *From below*: the draws of one replicate simulate the data and weigh them, while the action is
  chosen by the draws of all others. This is the value of some rule that chooses by the data, and no
  rule is worth more than the best one.

How well the draws stand for the posterior given D decides how far the ends are apart, and not
whether they are right. Both ends are compared with what perfect information is worth at the same
data, which is known better: E[gain | D] is a control variate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.answers.quantity import Quantity, columns
from estimand.estimate import Estimate
from estimand.model import ExpectationProgram, ProgramError, Study, SummingModel
from estimand.record import quantile, values_at
from estimand.runtime import in_precision
from estimand.trust import (
    Evidence,
    Finding,
    Status,
    check_size,
    most_severe,
    replicates_of,
    thresholds,
)

# Draws of the posterior that stand for it: the second where the first do not suffice. On the trial
# of `docs/guides/decisions.md` the first say its value to 1 %, in about a second on two cores.
NUM_DRAWS = (2048, 8192)
# Numbers of likelihoods that are in memory at a time.
_AT_A_TIME = 1 << 20
# Draws that must make up the variance of either end; of a normal variable it is a third of all. Of
# the 95 % intervals of a precise measurement by 128 to 1,024 draws 85 % had the truth in them with
# fewer than 5, 94 % with 5 to 10, and 98 % with more (100 seeds each).
MIN_SPREAD = 10.0
# Share of the upper end by which a bracket may be wide. Not measured.
MAX_GAP = 0.1


class StudyValue(NamedTuple):
    """The expected value of sample information: what the data of a study are worth.

    `lower` and `upper` are ends that it is between, each with its own error. `value` is halfway,
    half of the distance is part of `standard_error`, and `interval` goes from the lower end of the
    95 % interval of the one to the upper end of that of the other.

    Examples:
        >>> @ep.expectation
        ... def benefit(action):
        ...     x = numpyro.sample("x", dist.Normal(1, 2))
        ...     return x if action == "adopt" else 0.0
        >>> def measure(sites):
        ...     numpyro.sample("measured", dist.Normal(sites["x"], 4.0))
        >>> decision = ep.decide(benefit, ["adopt", "reject"], study=measure)()
        >>> worth = decision.studies["measure"]
        >>> worth.status.name, worth.interval[0] < 0.0592 < worth.interval[1]
        ('ok', True)
    """

    name: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    lower: Quantity
    upper: Quantity
    findings: tuple[Finding, ...] = ()

    @property
    def status(self) -> Status:
        return most_severe(self.findings)

    @property
    def text(self) -> str:
        """The number with its error, or what there is in its place."""
        return Quantity(self.value, self.standard_error, self.interval, self.findings).text

    @property
    def row(self) -> dict[str, Any]:
        """The value and both ends as plain numbers."""
        own = Quantity(self.value, self.standard_error, self.interval, self.findings)
        named = {"value": own, "lower": self.lower, "upper": self.upper}
        found: dict[str, Any] = {"name": self.name}
        for what, quantity in named.items():
            found |= columns(what, quantity)
        return found


def studies_of(study: Callable | Mapping[str, Callable] | None) -> tuple[Study, ...]:
    """The studies by name."""
    if study is None:
        return ()
    named = study if isinstance(study, Mapping) else {_name(study): study}
    for name, function in named.items():
        if not callable(function) or isinstance(function, ExpectationProgram):
            raise TypeError(
                "decide: study= must be a function of the dict of sites that draws data with "
                f"numpyro.sample, or a dict of such functions; {name!r} is {function!r}."
            )
    return tuple(Study(str(name), function) for name, function in named.items())


def _name(study: Any) -> str:
    return str(getattr(study, "__name__", type(study).__name__))


def value_of_study(
    study: Study, contrasts: Estimate, evpi: Quantity, rng_key: jax.Array
) -> StudyValue:
    """What the data of a study are worth.

    Args:
        study: draws its data given the sites.
        contrasts: has the gain of the best action in hindsight, and what the best action of today
            leads each other one by; its draws stand for the posterior.
        evpi: the expected value of perfect information.
        rng_key: of the simulated data.
    """
    if evpi.is_exact or evpi.status is Status.no_mass_found:
        # No draw is known at which another action is better: no data are worth more.
        ends = (0.0, evpi.interval[1])
        end = Quantity(evpi.value, evpi.standard_error, ends, evpi.findings)
        return StudyValue(study.name, *end[:2], ends, end, end, evpi.findings)
    found = None
    for count in NUM_DRAWS:
        draws = _Draws.of(contrasts, count, rng_key)
        if draws is None:
            detail = (
                "branches have no draws in common, which would stand for the posterior"
                if contrasts.branches
                else f"{contrasts.method} keeps no independent draws of the posterior"
            )
            return _unknown(study, evpi, Finding(Status.low_ess, None, detail, "size"))
        with in_precision(contrasts.precision):
            sums = _weighed(study, draws, rng_key)
        if sums is None:
            detail = f"the likelihood of {study.name} is not a number for some of its own data"
            return _unknown(study, evpi, Finding(Status.nan_density, None, detail, "numbers"))
        found = _bracket(study, draws, sums, evpi)
        if found.status or draws.is_all:
            break
    assert found is not None
    return found


def _unknown(study: Study, evpi: Quantity, finding: Finding) -> StudyValue:
    end = Quantity(math.nan, math.inf, (0.0, evpi.interval[1]), (finding,))
    return StudyValue(study.name, *end[:3], end, end, (finding,))


class _Draws(NamedTuple):
    """As many draws from each replicate, which come one after the other.

    The columns of `gains` are that of the best action in hindsight, and those of every action over
    the best one of today, which comes first with 0. `is_all` says that there are no more draws.
    """

    weights: np.ndarray
    gains: np.ndarray
    sites: dict[str, np.ndarray]
    num_replicates: int
    is_all: bool

    @classmethod
    def of(cls, contrasts: Estimate, count: int, rng_key: jax.Array) -> _Draws | None:
        """Some of the draws by which an estimate knows the posterior; None if it has none."""
        density = contrasts.density
        evidence = contrasts.outputs[0].parts.normaliser
        replicate = replicates_of(evidence) if isinstance(evidence, Evidence) else None
        if density is None or replicate is None or not math.isfinite(evidence.log_z):
            return None
        if isinstance(density.model, SummingModel):
            raise ProgramError(
                f"decide: program {contrasts.program!r} has discrete sites that are summed out, "
                "and a study must see their values: give the program enumerate=False."
            )
        rows = _some_of_each(replicate, count, rng_key)
        log_weights = np.asarray(evidence.log_weights, float)
        weights = np.exp(log_weights - log_weights.max())[rows]
        # A draw without weight may be where the program, or the study, is not defined.
        rows = np.where(weights > 0, rows, rows[np.argmax(weights)])
        with in_precision(contrasts.precision):
            sites, outputs = values_at(density, np.asarray(evidence.positions)[rows])
        today = np.zeros((rows.size, 1))
        gains = np.concatenate([outputs[:, :1], today, -outputs[:, 1:]], axis=1)
        is_all = rows.size + np.unique(replicate).size > replicate.size
        return cls(weights, gains, sites, np.unique(replicate).size, is_all)


def _some_of_each(replicate: np.ndarray, count: int, rng_key: jax.Array) -> np.ndarray:
    """Indices of as many random draws from each replicate, about so many in all."""
    numbers, sizes = np.unique(replicate, return_counts=True)
    each = min(max(count // numbers.size, 1), int(sizes.min()))
    shuffled = np.asarray(jax.random.permutation(rng_key, replicate.size))
    own = [shuffled[replicate[shuffled] == number][:each] for number in numbers]
    return np.concatenate([np.sort(some) for some in own])


def _weighed(study: Study, draws: _Draws, rng_key: jax.Array) -> np.ndarray | None:
    """How likely the data that each draw simulates are by the draws of each replicate.

    Sums of weight × likelihood, and of these times the gains: the axes are the data, by the draws
    that they come from; replicates; and 1 with the gains. None if a likelihood is not a number.
    """
    sites = {name: jnp.asarray(values) for name, values in draws.sites.items()}
    count = draws.weights.size
    keys = jax.random.split(jax.random.fold_in(rng_key, 1), count)
    compiled = _compiled(study)
    data = compiled.simulate(keys, sites)
    columns = np.concatenate([np.ones((count, 1)), draws.gains], axis=1)
    columns = (draws.weights[:, None] * columns).reshape(draws.num_replicates, -1, columns.shape[1])
    found = _in_pieces(functools.partial(compiled.weigh, sites, jnp.asarray(columns)), data, count)
    is_used = draws.weights > 0
    if not np.isfinite(found[is_used]).all():
        return None
    return np.where(is_used[:, None, None], found, 0.0)


class _Compiled(NamedTuple):
    """Data for each of some draws, and the sums of what these draws say of some data."""

    simulate: Callable
    weigh: Callable


@functools.lru_cache(maxsize=8)
def _compiled(study: Study) -> _Compiled:
    def weigh(sites: Any, columns: jax.Array, some: Any) -> jax.Array:
        def likelihoods(one: Any) -> jax.Array:
            return jax.vmap(functools.partial(study.log_likelihood, one))(sites)

        log_p = jax.vmap(likelihoods)(some)
        # A common factor of all draws drops out of every ratio.
        log_p = log_p - jnp.max(log_p, axis=1, keepdims=True)
        by_replicate = jnp.exp(log_p).reshape(len(log_p), len(columns), -1)
        return jnp.einsum("jrn,rna->jra", by_replicate, columns)

    return _Compiled(jax.jit(jax.vmap(study.simulate)), jax.jit(weigh))


def _in_pieces(weigh: Callable, data: dict[str, jax.Array], count: int) -> np.ndarray:
    """What a function says of many data sets, given some of them at a time."""
    size = sum(values[0].size for values in data.values())
    at_a_time = max(_AT_A_TIME // (count * max(size, 1)), 1)
    found = []
    for start in range(0, count, at_a_time):
        # The last piece is filled up, so that one program is compiled.
        rows = np.minimum(np.arange(start, start + at_a_time), count - 1)
        piece = weigh({name: values[rows] for name, values in data.items()})
        found.append(np.asarray(piece)[: count - start])
    return np.concatenate(found)


# --- the bracket ---


def _bracket(study: Study, draws: _Draws, sums: np.ndarray, evpi: Quantity) -> StudyValue:
    count = draws.num_replicates
    weights = draws.weights.reshape(count, -1)
    replicate = np.repeat(np.arange(count), weights.shape[1])
    whole, own = sums.sum(axis=1), sums[np.arange(replicate.size), replicate]
    chosen = (whole - own)[:, 2:].argmax(axis=1)
    of_all, of_own = _means(whole), _means(own)
    above = of_all[:, 1:].max(axis=1)
    below = np.take_along_axis(of_own[:, 1:], chosen[:, None], axis=1)[:, 0]
    slope = _slope(draws.weights, of_all[:, 0], above)

    def compared(values: np.ndarray, in_hindsight: np.ndarray) -> np.ndarray:
        """With the control, for the data of each draw; a row for each replicate."""
        return (values - slope * (in_hindsight - evpi.value)).reshape(weights.shape)

    totals = weights.sum(axis=1)
    each = compared(below, of_own[:, 0]), compared(above, of_all[:, 0])
    lows, highs = ((weights * values).sum(axis=1) for values in each)

    def without(number: int) -> tuple[float, float]:
        """Both ends, without the draws of one replicate."""
        is_in = np.arange(count) != number
        rest = _means(whole - sums[:, number])
        high = weights * compared(rest[:, 1:].max(axis=1), rest[:, 0])
        total = totals[is_in].sum()
        return lows[is_in].sum() / total, high[is_in].sum() / total

    ends = [part.sum() / totals.sum() for part in (lows, highs)]
    left = np.asarray([without(number) for number in range(count)])
    spread = (count - 1) / math.sqrt(count) * left.std(axis=0, ddof=1)
    errors = np.hypot(spread, slope * evpi.standard_error)
    reach = quantile(0.975, count - 1.0)
    lower, upper = (
        Quantity(float(end), float(error), (float(end - reach * error), float(end + reach * error)))
        for end, error in zip(ends, errors, strict=True)
    )
    if not (weights.ravel() * above).any():
        detail = f"at none of {above.size:,} simulated data sets another action is better"
        unmet = Finding(Status.no_mass_found, None, detail, "mass")
        return _unknown(study, evpi, unmet)._replace(value=0.0)
    gap = max(upper.value - lower.value, 0.0)
    findings = [*_against_data(draws, above), *_against_gap(lower, upper)]
    if spread.max() > thresholds.MATTERS * abs(slope) * evpi.standard_error:
        for values, end in zip(each, ends, strict=True):
            findings += _against_spread(weights * (values - end))
    return StudyValue(
        name=study.name,
        value=max((lower.value + upper.value) / 2, 0.0),
        standard_error=float(errors.max() + gap / 2),
        interval=(max(lower.interval[0], 0.0), max(upper.interval[1], 0.0)),
        lower=lower,
        upper=upper,
        findings=(*evpi.findings, *findings),
    )


def _means(sums: np.ndarray) -> np.ndarray:
    """The mean gains given some data, from sums; 0 where no draw could give the data."""
    total = sums[:, :1]
    return np.divide(sums[:, 1:], total, out=np.zeros_like(sums[:, 1:]), where=total > 0)


def _slope(weights: np.ndarray, control: np.ndarray, values: np.ndarray) -> float:
    """That of values by a control, which leaves the least variance of a weighted sum."""
    squares = weights**2
    control, values = (item - weights @ item / weights.sum() for item in (control, values))
    size = squares @ control**2
    return float(squares @ (control * values) / size) if size > 0 else 0.0


def _against_data(draws: _Draws, worth: np.ndarray) -> list[Finding]:
    """Whether enough draws simulate data that change the choice."""
    own = draws.weights * worth
    return check_size(own.sum() ** 2 / (own**2).sum(), None, thresholds.MIN_ESS)


def _against_spread(errors: np.ndarray) -> list[Finding]:
    """Whether enough draws make up the variance of a sum, so that replicates can tell it."""
    total = (errors**2).sum()
    if not total > 0:
        return []
    return check_size(total**2 / (errors**4).sum(), None, MIN_SPREAD)


def _against_gap(lower: Quantity, upper: Quantity) -> list[Finding]:
    """Whether the ends are close to each other."""
    gap = upper.value - lower.value
    if gap <= MAX_GAP * upper.value + 2 * max(lower.standard_error, upper.standard_error):
        return []
    detail = (
        f"it is between {lower.value:.3g} and {upper.value:.3g}: too few draws agree with the same "
        "data to say what to do given these"
    )
    return [Finding(Status.not_converged, None, detail, "gap")]
