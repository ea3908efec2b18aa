"""NumPyro's enumerated examples on small data, each beside the same model summed out by hand.

The sites, their marks and the use of plates, masks and `scan` are those of the examples. The return
value is a question about the continuous sites. By hand a chain is the forward algorithm, and a
label in a plate a log-sum-exp; continuous sites have the same names in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit, logit, logsumexp
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.ops.indexing import Vindex


class Example(NamedTuple):
    """A model with discrete sites, the same summed out by hand, and their data."""

    model: Callable[..., Any]
    by_hand: Callable[..., Any]
    args: tuple[Any, ...]


# Capture and recapture ----------------------------------------------------------------------------

CAPTURES = np.array(
    [
        [1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1],
        [1, 1, 1, 0, 0], [0, 0, 1, 0, 1], [0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1],
    ]
)  # fmt: skip
IS_MALE = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1, 0])


def _follow(captures: Any, survival: Callable[[], Any], recapture: Any) -> None:
    """Animals that are alive or not; before its first capture nothing is known of one."""
    count = captures.shape[0]

    def step(carry: Any, seen: Any) -> Any:
        was_seen, alive = carry
        phi = survival()
        with numpyro.plate("animals", count, dim=-1), handlers.mask(mask=was_seen):
            chance = was_seen * phi * alive + (1 - was_seen)
            law = dist.Bernoulli(dist.util.clamp_probs(chance))
            alive = numpyro.sample("z", law, infer={"enumerate": "parallel"})
            law = dist.Bernoulli(dist.util.clamp_probs(recapture * alive))
            numpyro.sample("y", law, obs=seen)
        return (was_seen | seen.astype(bool), alive), None

    start = captures[:, 0].astype(bool), jnp.ones(count, dtype=jnp.int32)
    scan(step, start, jnp.swapaxes(captures[:, 1:], 0, 1))


def _follow_by_hand(captures: Any, survival: Any, recapture: Any) -> None:
    """The forward algorithm; `survival` has a row for every year."""

    def log_chance(probability: Any, outcome: Any) -> Any:
        return dist.Bernoulli(dist.util.clamp_probs(probability)).log_prob(outcome)

    def step(carry: Any, data: Any) -> Any:
        was_seen, log_alpha = carry
        seen, phi = data
        moves = []
        for now in (0, 1):
            known = [
                log_alpha[before]
                + log_chance(phi * before, now)
                + log_chance(recapture * now, seen)
                for before in (0, 1)
            ]
            total = jnp.logaddexp(*known)
            moves.append(jnp.where(was_seen, total, jnp.logaddexp(*log_alpha)))
        return (was_seen | seen.astype(bool), jnp.stack(moves)), None

    count = captures.shape[0]
    start = jnp.stack([jnp.full(count, -jnp.inf), jnp.zeros(count)])
    years = captures.shape[1] - 1
    phis = jnp.broadcast_to(survival, (years, count))
    rows = jnp.swapaxes(captures[:, 1:], 0, 1), phis
    (_, log_alpha), _ = jax.lax.scan(step, (captures[:, 0].astype(bool), start), rows)
    numpyro.factor("captures", jnp.sum(jnp.logaddexp(*log_alpha)))


def constant_survival(captures: Any) -> Any:
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    _follow(captures, lambda: phi, rho)
    return phi > 0.9


def constant_survival_by_hand(captures: Any) -> Any:
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    _follow_by_hand(captures, phi, rho)
    return phi > 0.9


def yearly_survival(captures: Any) -> Any:
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    _follow(captures, lambda: numpyro.sample("phi", dist.Uniform(0.0, 1.0)), rho)
    return rho > 0.9


def yearly_survival_by_hand(captures: Any) -> Any:
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    years = captures.shape[1] - 1
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0).expand([years]))
    _follow_by_hand(captures, phi[:, None], rho)
    return rho > 0.9


def random_survival(captures: Any) -> Any:
    mean = logit(numpyro.sample("phi_mean", dist.Uniform(0.0, 1.0)))
    sigma = numpyro.sample("phi_sigma", dist.Uniform(0.0, 10.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))

    def survival() -> Any:
        with handlers.reparam(config={"phi_logit": LocScaleReparam(0)}):
            return expit(numpyro.sample("phi_logit", dist.Normal(mean, sigma)))

    _follow(captures, survival, rho)
    return rho


def random_survival_by_hand(captures: Any) -> Any:
    mean = logit(numpyro.sample("phi_mean", dist.Uniform(0.0, 1.0)))
    sigma = numpyro.sample("phi_sigma", dist.Uniform(0.0, 10.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    years = captures.shape[1] - 1
    raw = numpyro.sample("phi_logit_decentered", dist.Normal(0.0, 1.0).expand([years]))
    _follow_by_hand(captures, expit(mean + sigma * raw)[:, None], rho)
    return rho


def survival_by_sex(captures: Any, is_male: Any) -> Any:
    male = numpyro.sample("phi_male", dist.Uniform(0.0, 1.0))
    female = numpyro.sample("phi_female", dist.Uniform(0.0, 1.0))
    phi = is_male * male + (1.0 - is_male) * female
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    _follow(captures, lambda: phi, rho)
    return female < male


def survival_by_sex_by_hand(captures: Any, is_male: Any) -> Any:
    male = numpyro.sample("phi_male", dist.Uniform(0.0, 1.0))
    female = numpyro.sample("phi_female", dist.Uniform(0.0, 1.0))
    phi = is_male * male + (1.0 - is_male) * female
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    _follow_by_hand(captures, phi, rho)
    return female < male


def survival_by_sex_and_year(captures: Any, is_male: Any) -> Any:
    beta = is_male * numpyro.sample("phi_beta", dist.Normal(0.0, 10.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))

    def survival() -> Any:
        return expit(beta + numpyro.sample("phi_gamma", dist.Normal(0.0, 10.0)))

    _follow(captures, survival, rho)
    return beta[0] < 0


def survival_by_sex_and_year_by_hand(captures: Any, is_male: Any) -> Any:
    beta = is_male * numpyro.sample("phi_beta", dist.Normal(0.0, 10.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))
    years = captures.shape[1] - 1
    gamma = numpyro.sample("phi_gamma", dist.Normal(0.0, 10.0).expand([years]))
    _follow_by_hand(captures, expit(beta + gamma[:, None]), rho)
    return beta[0] < 0


# Annotation ---------------------------------------------------------------------------------------

ANNOTATORS = np.array([0, 0, 1, 2])
ANNOTATIONS = np.array(
    [
        [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0], [1, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0],
        [1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0],
    ]
)  # fmt: skip


def _annotator_sites(num_annotators: int, num_classes: int) -> tuple[Any, Any]:
    with numpyro.plate("annotator", num_annotators, dim=-2), numpyro.plate("class", num_classes):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(num_classes)))
    return beta, numpyro.sample("pi", dist.Dirichlet(jnp.ones(num_classes)))


def dawid_skene(annotators: Any, annotations: Any) -> Any:
    """Annotators with errors of their own; the share of the second class."""
    num_items, num_positions = annotations.shape
    beta, pi = _annotator_sites(3, 2)
    with numpyro.plate("item", num_items, dim=-2):
        label = numpyro.sample("label", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", num_positions):
            law = dist.Categorical(Vindex(beta)[annotators, label, :])
            numpyro.sample("annotation", law, obs=annotations)
    return pi[1] > 0.8


def dawid_skene_by_hand(annotators: Any, annotations: Any) -> Any:
    beta, pi = _annotator_sites(3, 2)
    chosen = jnp.log(beta)[annotators]
    log_rows = jnp.stack(
        [
            jnp.log(pi[label])
            + sum(chosen[p, label][annotations[:, p]] for p in range(annotations.shape[1]))
            for label in (0, 1)
        ]
    )
    numpyro.factor("annotation", jnp.sum(logsumexp(log_rows, axis=0)))
    return pi[1] > 0.8


# Mixtures -----------------------------------------------------------------------------------------

SEEN = {
    "A": np.array([1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0]),
    "C": np.array([1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0]),
}


def toy_mixture(seen: Any) -> Any:
    """A → B → C, of which B is hidden; whether B says more about C than chance does."""
    p_a = numpyro.sample("p_A", dist.Beta(1, 1))
    p_b = numpyro.sample("p_B", dist.Beta(jnp.ones(2), jnp.ones(2)).to_event(1))
    p_c = numpyro.sample("p_C", dist.Beta(jnp.ones(2), jnp.ones(2)).to_event(1))
    with numpyro.plate("data", len(seen["A"])):
        a = numpyro.sample("A", dist.Bernoulli(p_a), obs=seen["A"])
        b = numpyro.sample("B", dist.Bernoulli(Vindex(p_b)[a]), infer={"enumerate": "parallel"})
        numpyro.sample("C", dist.Bernoulli(Vindex(p_c)[b]), obs=seen["C"])
    return (p_c[1] - p_c[0]) * (p_b[1] - p_b[0])


def toy_mixture_by_hand(seen: Any) -> Any:
    p_a = numpyro.sample("p_A", dist.Beta(1, 1))
    p_b = numpyro.sample("p_B", dist.Beta(jnp.ones(2), jnp.ones(2)).to_event(1))
    p_c = numpyro.sample("p_C", dist.Beta(jnp.ones(2), jnp.ones(2)).to_event(1))
    numpyro.sample("A", dist.Bernoulli(p_a).expand([len(seen["A"])]), obs=seen["A"])
    chance = p_b[seen["A"]] * p_c[1] + (1 - p_b[seen["A"]]) * p_c[0]
    numpyro.sample("C", dist.Bernoulli(chance), obs=seen["C"])
    return (p_c[1] - p_c[0]) * (p_b[1] - p_b[0])


POINTS = np.array([0.0, 1.0, 10.0, 11.0, 12.0])


def _mixture_sites(num_components: int) -> tuple[Any, Any, Any]:
    weights = numpyro.sample("weights", dist.Dirichlet(0.5 * jnp.ones(num_components)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with numpyro.plate("components", num_components):
        locs = numpyro.sample("locs", dist.Normal(0.0, 10.0))
    return weights, scale, locs


def gaussian_mixture(points: Any) -> Any:
    """Five points and two components; the distance between these."""
    weights, scale, locs = _mixture_sites(2)
    with numpyro.plate("data", len(points)):
        assignment = numpyro.sample(
            "assignment", dist.Categorical(weights), infer={"enumerate": "parallel"}
        )
        numpyro.sample("obs", dist.Normal(locs[assignment], scale), obs=points)
    return jnp.abs(locs[0] - locs[1])


def gaussian_mixture_by_hand(points: Any) -> Any:
    weights, scale, locs = _mixture_sites(2)
    law = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, scale))
    with numpyro.plate("data", len(points)):
        numpyro.sample("obs", law, obs=points)
    return jnp.abs(locs[0] - locs[1])


# A hidden Markov model ----------------------------------------------------------------------------

TUNES = np.array(
    [
        [[1, 0], [1, 0], [0, 1], [0, 1], [1, 1], [0, 1]],
        [[0, 1], [1, 1], [1, 0], [1, 0], [0, 0], [0, 0]],
    ]
)
LENGTHS = np.array([6, 4])


def _tune_sites(hidden_dim: int, data_dim: int) -> tuple[Any, Any]:
    law = dist.Dirichlet(0.9 * jnp.eye(hidden_dim) + 0.1).to_event(1)
    probs_x = numpyro.sample("probs_x", law)
    law = dist.Beta(0.5, 0.9).expand([hidden_dim, data_dim]).to_event(2)
    return probs_x, numpyro.sample("probs_y", law)


def tunes(sequences: Any, lengths: Any) -> Any:
    """Sequences of unequal length; how likely the first state is to last."""
    count, _, data_dim = sequences.shape
    probs_x, probs_y = _tune_sites(2, data_dim)

    def step(carry: Any, y: Any) -> Any:
        x, t = carry
        with (
            numpyro.plate("sequences", count, dim=-2),
            handlers.mask(mask=(t < lengths)[..., None]),
        ):
            x = numpyro.sample("x", dist.Categorical(probs_x[x]), infer={"enumerate": "parallel"})
            with numpyro.plate("tones", data_dim, dim=-1):
                numpyro.sample("y", dist.Bernoulli(probs_y[x.squeeze(-1)]), obs=y)
        return (x, t + 1), None

    start = jnp.zeros((count, 1), dtype=jnp.int32), 0
    scan(step, start, jnp.swapaxes(sequences, 0, 1))
    return probs_x[0, 0] > 0.8


def tunes_by_hand(sequences: Any, lengths: Any) -> Any:
    probs_x, probs_y = _tune_sites(2, sequences.shape[2])
    total = jnp.zeros(())
    for sequence, length in zip(sequences, np.asarray(lengths), strict=True):
        log_alpha = jnp.array([0.0, -jnp.inf])
        for t in range(int(length)):
            log_alpha = logsumexp(log_alpha[:, None] + jnp.log(probs_x), axis=0)
            log_alpha += jnp.sum(dist.Bernoulli(probs_y).log_prob(sequence[t]), axis=-1)
        total += logsumexp(log_alpha)
    numpyro.factor("y", total)
    return probs_x[0, 0] > 0.8


# Discrete imputation ------------------------------------------------------------------------------

# −1 where it is missing.
IS_ILL = np.array([1, 0, -1, 1, -1, 0, 0, -1, 1, 1, 0, -1, 1, 0, -1])
IS_OLD = np.array([1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0])
VISITS = np.array(
    [0.45, 0.1, 0.62, 0.71, 0.05, -0.34, 0.16, 0.8, 0.41, 0.37, 0.2, 0.33, 0.6, -0.1, 0.3]
)


def _imputation_sites() -> tuple[Any, ...]:
    names = "mu_A", "b_B_A", "b_A", "b_B"
    found = [numpyro.sample(name, dist.Normal(0.0, 2.5)) for name in names]
    return *found, numpyro.sample("s_Y", dist.HalfCauchy(2.5))


def imputation(is_ill: Any, is_old: Any, visits: Any) -> Any:
    """Flags of which some are missing, and none is marked; the effect of a flag."""
    mu, slope, by_illness, by_age, scale = _imputation_sites()
    with numpyro.plate("obs", len(is_ill)):
        logits = mu + is_old * slope
        guess = numpyro.sample("A", dist.Bernoulli(logits=logits).mask(False))
        log_prob = dist.Bernoulli(logits=logits).log_prob(guess)
        log_prob = jnp.where((is_ill >= 0) & (guess != is_ill), -jnp.inf, log_prob)
        numpyro.factor("obs_A", log_prob)
        mean = by_illness * guess + by_age * is_old
        numpyro.sample("obs_Y", dist.Normal(mean, scale), obs=visits)
    return by_illness


def imputation_by_hand(is_ill: Any, is_old: Any, visits: Any) -> Any:
    mu, slope, by_illness, by_age, scale = _imputation_sites()
    rows = jnp.stack(
        [
            dist.Bernoulli(logits=mu + is_old * slope).log_prob(flag)
            + dist.Normal(by_illness * flag + by_age * is_old, scale).log_prob(visits)
            for flag in (0, 1)
        ]
    )
    known = jnp.where(jnp.asarray(is_ill) == 1, rows[1], rows[0])
    numpyro.factor("rows", jnp.sum(jnp.where(is_ill < 0, logsumexp(rows, axis=0), known)))
    return by_illness


EXAMPLES = {
    "capture_recapture_1": Example(constant_survival, constant_survival_by_hand, (CAPTURES,)),
    "capture_recapture_2": Example(yearly_survival, yearly_survival_by_hand, (CAPTURES,)),
    "capture_recapture_3": Example(random_survival, random_survival_by_hand, (CAPTURES,)),
    "capture_recapture_4": Example(survival_by_sex, survival_by_sex_by_hand, (CAPTURES, IS_MALE)),
    "capture_recapture_5": Example(
        survival_by_sex_and_year, survival_by_sex_and_year_by_hand, (CAPTURES, IS_MALE)
    ),
    "annotation": Example(dawid_skene, dawid_skene_by_hand, (ANNOTATORS, ANNOTATIONS)),
    "toy_mixture": Example(toy_mixture, toy_mixture_by_hand, (SEEN,)),
    "hmm_enum": Example(tunes, tunes_by_hand, (TUNES, LENGTHS)),
    "discrete_imputation": Example(imputation, imputation_by_hand, (IS_ILL, IS_OLD, VISITS)),
    "gaussian_mixture": Example(gaussian_mixture, gaussian_mixture_by_hand, (POINTS,)),
}
