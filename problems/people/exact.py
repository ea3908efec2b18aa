"""Answers by quadrature, where a model is Gaussian given its scales, or has two dimensions.

Given its scales, such a model is a sum of squares: blocks of rows |t - G w|² / 2 s², where w holds
every coefficient and s is a scale or 1. Then w is Gaussian, the event has a normal tail, and a grid
over the logarithms of the scales does the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from scipy.special import betaincc, gammaincc, gammaln, log_ndtr, logsumexp

from problems.people import MODELS
from problems.people import hierarchies as h
from problems.people import populations as p
from problems.people import regressions as r
from problems.people import time_series as t


class Block(NamedTuple):
    """Rows of a sum of squares; `scale` is the number of a scale, or -1 for none."""

    rows: np.ndarray
    target: np.ndarray
    scale: int = -1


class Gaussian(NamedTuple):
    """A model that is Gaussian given its scales; the event is sign * (event @ w) > threshold."""

    blocks: list[Block]
    priors: list[Callable[[np.ndarray], np.ndarray]]
    ordinary: np.ndarray | Callable[[np.ndarray], np.ndarray]
    event: np.ndarray
    sign: float
    thresholds: tuple[float, float]
    box: list[tuple[float, float]]


def _half_cauchy(scale: float) -> Callable[[np.ndarray], np.ndarray]:
    return stats.halfcauchy(scale=scale).logpdf


def _half_normal(scale: float) -> Callable[[np.ndarray], np.ndarray]:
    return stats.halfnorm(scale=scale).logpdf


def _prior(rows: np.ndarray, mean: float, sd: float) -> Block:
    return Block(np.atleast_2d(rows) / sd, np.full(len(np.atleast_2d(rows)), mean / sd))


def _evaluate(model: Gaussian, axes: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Log weights, E[ordinary], log P(common), log P(rare) at each point of the grid."""
    points = np.array(list(itertools.product(*axes)))
    scales = np.exp(points)
    log_w = points.sum(1) + sum(prior(scales[:, i]) for i, prior in enumerate(model.priors))
    parts = [(b.rows.T @ b.rows, b.rows.T @ b.target, b.target @ b.target) for b in model.blocks]
    out = []
    for chunk in np.array_split(np.arange(len(points)), max(1, len(points) // 2000)):
        weights = [
            np.ones(len(chunk)) if b.scale < 0 else scales[chunk, b.scale] ** -2
            for b in model.blocks
        ]
        precision = sum(w[:, None, None] * part[0] for w, part in zip(weights, parts, strict=True))
        linear = sum(w[:, None] * part[1] for w, part in zip(weights, parts, strict=True))
        square = sum(w * part[2] for w, part in zip(weights, parts, strict=True))
        sides = np.stack([linear, np.broadcast_to(model.event, linear.shape)], axis=-1)
        solved = np.linalg.solve(precision, sides)
        mean, column = solved[..., 0], solved[..., 1]
        log_det = np.linalg.slogdet(precision)[1]
        log_scale = sum(
            len(b.target) * points[chunk, b.scale] for b in model.blocks if b.scale >= 0
        )
        fit = 0.5 * np.sum(linear * mean, axis=1) - 0.5 * square - 0.5 * log_det - log_scale
        center, sd = model.sign * mean @ model.event, np.sqrt(column @ model.event)
        tails = [log_ndtr((center - c) / sd) for c in model.thresholds]
        if callable(model.ordinary):
            ordinary = model.ordinary(scales[chunk])
        else:
            ordinary = mean @ model.ordinary
        out.append((log_w[chunk] + fit, ordinary, *tails))
    return tuple(np.concatenate(part) for part in zip(*out, strict=True))


def solve(model: Gaussian, count: int) -> tuple[float, float, float]:
    """The three answers, on a fine grid within the box where a coarse one finds any mass."""
    axes = [np.linspace(*edges, {1: 400, 2: 50, 3: 20}[len(model.box)]) for edges in model.box]
    log_w, _, _, rare = _evaluate(model, axes)
    points = np.array(list(itertools.product(*axes)))
    good = (log_w > log_w.max() - 18) | (log_w + rare > (log_w + rare).max() - 18)
    steps = [axis[1] - axis[0] for axis in axes]
    fine = [
        np.linspace(max(points[good, i].min() - s, edges[0]), points[good, i].max() + s, count)
        for i, (s, edges) in enumerate(zip(steps, model.box, strict=True))
    ]
    log_w, ordinary, common, rare = _evaluate(model, fine)
    total = logsumexp(log_w)
    share = np.exp(log_w - total)
    chances = [float(np.exp(logsumexp(log_w + e) - total)) for e in (common, rare)]
    return float(share @ ordinary), chances[0], chances[1]


def _unit(size: int, *at: int) -> np.ndarray:
    return sum(np.eye(size)[i] for i in at)


def gaussians(thresholds: Callable[[str], tuple[float, float]]) -> dict[str, Gaussian]:
    """The models, as sums of squares; `thresholds` gives those of a model, times its sign."""
    out = {}

    def add(name: str, sign: float, *parts: Any) -> None:
        blocks, priors, ordinary, event, box = parts
        out[name] = Gaussian(blocks, priors, ordinary, event, sign, thresholds(name), box)

    rows = np.column_stack([np.ones(len(r.LINEAR_X)), r.LINEAR_X])
    blocks = [Block(rows, r.LINEAR_Y, 0), _prior(np.eye(4), 0.0, 100.0)]
    ask = np.array([1.0, 1.0, 0.0, -1.0])
    add("linear_regression", 1, blocks, [_half_cauchy(5.0)], ask, _unit(4, 2), [(-3, 3)])

    rows = np.column_stack([np.ones(11), r.ANSCOMBE_X])
    flat = [Block(rows, r.ANSCOMBE_Y, 0)]
    free = [lambda s: -np.log(s)]
    add("flat_linear_regression", -1, flat, free, _unit(2, 1), _unit(2, 1), [(-4, 6)])

    def hierarchy(y: np.ndarray, error: np.ndarray, mean: Block | None) -> list[Block]:
        """w = (mean, effects)."""
        size = len(y)
        pool = np.column_stack([-np.ones(size), np.eye(size)])
        data = np.column_stack([np.zeros(size), np.eye(size)]) / error[:, None]
        return [Block(data, y / error), Block(pool, np.zeros(size), 0)] + ([mean] if mean else [])

    top = _prior(_unit(9, 0), 0.0, 5.0)
    blocks = hierarchy(h.EFFECTS, h.ERRORS, top)
    add("eight_schools", 1, blocks, [_half_cauchy(5.0)], _unit(9, 1), _unit(9, 1), [(-14, 8)])
    blocks = hierarchy(h.BCG_EFFECT, h.BCG_ERROR, None)
    add("meta_analysis", 1, blocks, [_half_cauchy(1.0)], _unit(14, 0), _unit(14, 0), [(-10, 5)])
    blocks = [Block(np.eye(9), h.FUNNEL_Y), Block(np.eye(9), np.zeros(9), 0)]
    # v = 2 log(scale) is normal with standard deviation 3; the density of the scale has 1 / scale.
    prior = [lambda s: stats.norm.logpdf(np.log(s), scale=1.5) - np.log(s)]
    add("funnel_with_data", 1, blocks, prior, lambda s: s[:, 0], _unit(9, 2), [(-12, 5)])

    pool = np.column_stack([-np.ones(6), np.eye(6)])
    data = np.repeat(np.column_stack([np.zeros(6), np.eye(6)]), 5, axis=0)
    blocks = [Block(pool, np.zeros(6), 0), Block(data, h.DYES.ravel(), 1)]
    blocks.append(_prior(_unit(7, 0), 1500.0, 1000.0))
    priors = [_half_cauchy(50.0), _half_cauchy(50.0)]
    ask = _unit(7, 6) - _unit(7, 5)
    add("dyes", 1, blocks, priors, _unit(7, 0), ask, [(-8, 8), (2, 6)])

    def lines(groups: np.ndarray, x: np.ndarray, y: np.ndarray, count: int) -> list[Block]:
        """w = (mean_a, mean_b, a, b); scales (sd_a, sd_b, sigma)."""
        size, eye = 2 + 2 * count, np.eye(count)
        zero, none = np.zeros((count, count)), np.zeros((count, 1))
        pool_a = np.hstack([-np.ones((count, 1)), none, eye, zero])
        pool_b = np.hstack([none, -np.ones((count, 1)), zero, eye])
        data = np.zeros((len(y), size))
        data[np.arange(len(y)), 2 + groups] = 1.0
        data[np.arange(len(y)), 2 + count + groups] = x
        nil = np.zeros(count)
        return [Block(pool_a, nil, 0), Block(pool_b, nil, 1), Block(data, y, 2)]

    groups, ages = np.repeat(np.arange(30), 5), np.tile(h.RAT_AGES - 22.0, 30)
    blocks = lines(groups, ages, h.RATS.ravel(), 30)
    blocks += [_prior(_unit(62, 0), 250.0, 100.0), _prior(_unit(62, 1), 0.0, 100.0)]
    priors = [_half_cauchy(25.0), _half_cauchy(5.0), _half_cauchy(25.0)]
    box = [(2.0, 3.5), (-2.5, 0.8), (1.4, 2.3)]
    add("rats", 1, blocks, priors, _unit(62, 1), _unit(62, 2 + 30 + 3), box)
    blocks = lines(h.EIGHT, h.DAY, h.EIGHT_Y, 8)
    blocks += [_prior(_unit(18, 0, 0) / 2, 0.0, 10.0), _prior(_unit(18, 1), 0.0, 10.0)]
    priors = [_half_cauchy(5.0)] * 3
    box = [(-3.5, 3.5), (-8.0, 3.5), (-1.3, 0.6)]
    add("hierarchical_linear", -1, blocks, priors, _unit(18, 1), _unit(18, 10), box)

    size = len(h.URANIUM)
    pool = np.column_stack([-np.ones(size), -h.URANIUM, np.zeros(size), np.eye(size)])
    data = np.column_stack([np.zeros((len(h.RADON), 2)), h.FLOOR, np.eye(size)[h.COUNTY]])
    blocks = [Block(pool, np.zeros(size), 0), Block(data, h.RADON, 1)]
    blocks.append(_prior(np.eye(size + 3)[:3], 0.0, 10.0))
    priors = [_half_cauchy(5.0)] * 2
    box = [(-12.0, 2.0), (-1.2, 0.6)]
    add("radon", 1, blocks, priors, _unit(size + 3, 2), _unit(size + 3, 6), box)

    path = np.column_stack([np.ones(12), np.tril(np.ones((12, 12)), -1)[:, :11]])
    blocks = [Block(np.eye(12)[1:], np.zeros(11), 0), Block(r.SPLINE_BASIS @ path, r.SPLINE_Y, 1)]
    blocks.append(_prior(_unit(12, 0), 0.0, 5.0))
    ask = r.SPLINE_NEW @ path
    priors = [_half_cauchy(1.0)] * 2
    add("spline_regression", 1, blocks, priors, ask, ask, [(-5, 4), (-2.2, 0.8)])

    path = np.tril(np.ones((40, 40)))
    blocks = [Block(np.eye(40)[1:], np.zeros(39), 0), Block(path, t.NILE, 1)]
    blocks.append(_prior(_unit(40, 0), 1000.0, 500.0))
    priors = [_half_normal(100.0), _half_normal(200.0)]
    box = [(-6.0, 6.5), (3.0, 6.5)]
    add("local_level", 1, blocks, priors, np.ones(40), np.ones(40), box)

    # w = (steps of the slope, steps of the level).
    walk, zero = np.tril(np.ones((25, 25))), np.zeros((25, 25))
    blocks = [
        Block(np.hstack([np.eye(25), zero]), np.zeros(25), 0),
        Block(np.hstack([-walk, np.eye(25)]), np.zeros(25), 1),
        Block(np.hstack([zero, walk]), t.TREND_Y, 2),
    ]
    level, slope = np.repeat([0.0, 1.0], 25), np.repeat([1.0, 0.0], 25)
    box = [(-8.0, 1.6), (-8.0, 1.6), (-8.0, 1.6)]
    priors = [_half_normal(1.0)] * 3
    add("local_linear_trend", 1, blocks, priors, level, slope, box)

    data = np.column_stack([np.ones(48), t.MONTH, np.eye(12)[t.MONTH % 12]])
    blocks = [Block(np.eye(14)[2:], np.zeros(12), 0), Block(data, t.SEASON_Y, 1)]
    blocks += [_prior(_unit(14, 0), 0.0, 10.0), _prior(_unit(14, 1), 0.0, 1.0)]
    priors = [_half_cauchy(1.0)] * 2
    add("seasonal", 1, blocks, priors, 12.0 * _unit(14, 1), _unit(14, 8), [(-3, 4), (-1.6, 0.8)])

    y = t.AR_Y
    data = np.column_stack([np.ones(58), y[1:-1], y[:-2]])
    blocks = [Block(data, y[2:], 0), _prior(_unit(3, 0), 0.0, 10.0)]
    blocks.append(_prior(np.eye(3)[1:], 0.0, 1.0))
    ask = np.array([0.0, 1.0, 1.0])
    add("autoregression", 1, blocks, [_half_cauchy(2.5)], ask, ask, [(-2, 3)])
    return out


# Two dimensions ----------------------------------------------------------------------------------

# The number of the coordinate that the event is about, and a box in unconstrained coordinates.
PLANES: dict[str, tuple[int, list[tuple[float, float]]]] = {
    "challenger": (1, [(-12.0, 8.0), (-14.0, 6.0)]),
    "bioassay": (1, [(-30.0, 40.0), (-20.0, 160.0)]),
    "capture_recapture": (1, [(-6.0, 8.0), (-4.0, 8.0)]),
    "n_mixture": (1, [(-7.0, 4.0), (0.7, 5.5)]),
    "change_point": (1, [(-6.0, 3.0), (-6.0, 3.0)]),
    "horse_kicks": (1, [(-8.0, 7.0), (-1.6, 0.8)]),
}


def _nodes(low: float, high: float, panels: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(10)
    edges = np.linspace(low, high, panels + 1)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    return ((edges[1:] + edges[:-1])[:, None] / 2 + half * x).ravel(), (half * w).ravel()


def plane(target: Any, name: str, panels: int) -> tuple[float, float, float]:
    """The three answers of a model of two dimensions, by Gauss and Legendre's rule on panels."""
    import jax

    which, box = PLANES[name]
    assert MODELS[name].dimension == 2
    ask, energy = jax.jit(jax.vmap(target.ask)), jax.jit(jax.vmap(target.energy))
    line = np.zeros((200001, 2))
    line[:, which] = np.linspace(*box[which], len(line))
    s = np.asarray(ask(line)[1])
    other_x, other_w = _nodes(*box[1 - which], panels)
    low, high = box[which]
    cuts = [float(np.interp(c, s, line[:, which])) for c in (target.common, target.rare)]
    assert np.all(np.diff(s) >= 0)

    def pieces(low: float, high: float) -> tuple[float, float]:
        x, w = _nodes(low, high, panels)
        points = np.empty((len(x), len(other_x), 2))
        points[..., which], points[..., 1 - which] = x[:, None], other_x
        flat = points.reshape(-1, 2)
        log_w = -np.asarray(energy(flat)) + np.log(np.outer(w, other_w)).ravel()
        log_w = np.where(np.isnan(log_w), -np.inf, log_w)
        total = logsumexp(log_w)
        return float(total), float(np.exp(log_w - total) @ np.asarray(ask(flat)[0]))

    parts = [pieces(low, cuts[0]), pieces(cuts[0], cuts[1]), pieces(cuts[1], high)]
    logs = np.array([part[0] for part in parts])
    share = np.exp(logs - logsumexp(logs))
    ordinary = float(share @ np.array([part[1] for part in parts]))
    return ordinary, float(share[1] + share[2]), float(share[2])


def _ab_test(target: Any) -> tuple[float, float, float]:
    """Two beta distributions; the first is integrated by Gauss and Legendre's rule."""
    a, b = h.AB_SALES + 1.0, h.AB_VISITORS - h.AB_SALES + 1.0
    x, w = _nodes(0.0, 0.2, 400)
    density = w * stats.beta(a[0], b[0]).pdf(x)
    events = [float(density @ stats.beta(a[1], b[1]).cdf(x + c)) for c in _plain(target)]
    ratio = a[1] / (a[1] + b[1]) * (a[0] + b[0] - 1) / (a[0] - 1)
    return float(ratio), events[0], events[1]


def _exponential_survival(target: Any) -> tuple[float, float, float]:
    """The ratio of two gamma variables, by the beta distribution."""
    shape = 0.01 + np.array([p.ENDED[k == p.DRUG].sum() for k in (0, 1)])
    hours = 0.01 + np.array([p.WEEKS[k == p.DRUG].sum() for k in (0, 1)])
    scale = hours[1] / hours[0]
    ratio = stats.betaprime(shape[0], shape[1], scale=scale)
    mean = scale * shape[0] / (shape[1] - 1)
    return (float(mean), float(ratio.sf(target.common)), float(ratio.sf(target.rare)))


def _average(log_w: np.ndarray, values: list[np.ndarray]) -> tuple[float, float, float]:
    share = np.exp(log_w - logsumexp(log_w)).ravel()
    ordinary, common, rare = (float(share @ value.ravel()) for value in values)
    return ordinary, common, rare


def _baseball_beta(target: Any) -> tuple[float, float, float]:
    """The players integrated out; a grid over the population's mean and log kappa."""
    x, w = _nodes(0.1, 0.5, 60)
    z, v = _nodes(0.0, 40.0, 120)
    mean, kappa = x[:, None], np.exp(z)
    a, b = mean * kappa, (1 - mean) * kappa
    # The log of a rising factorial, as a sum: a difference of log gammas would cancel.
    log_w = np.log(w)[:, None] + np.log(v) - 1.5 * z
    for k in range(45):
        log_w = log_w + np.sum(k < h.HITS) * np.log(a + k)
        log_w = log_w + np.sum(k < 45 - h.HITS) * np.log(b + k) - 18 * np.log(a + b + k)
    tails = [betaincc(a + h.HITS[0], b + 45 - h.HITS[0], c) for c in (target.common, target.rare)]
    return _average(log_w, [mean + 0 * kappa, *tails])


def _pumps(target: Any) -> tuple[float, float, float]:
    """The rates integrated out; a grid over the logarithms of alpha and beta."""
    x, w = _nodes(-5.0, 3.0, 60)
    z, v = _nodes(-12.0, 4.0, 60)
    alpha, beta = np.exp(x)[:, None], np.exp(z)
    log_w = np.log(w)[:, None] + np.log(v) + x[:, None] - alpha + 0.1 * z - beta
    for y, time in zip(h.PUMP_FAILURES, h.PUMP_HOURS, strict=True):
        log_w = log_w + gammaln(alpha + y) - gammaln(alpha) + alpha * z
        log_w = log_w - (alpha + y) * np.log(beta + time)
    last = (alpha + h.PUMP_FAILURES[9]) / (beta + h.PUMP_HOURS[9])
    first = alpha + h.PUMP_FAILURES[0], beta + h.PUMP_HOURS[0]
    tails = [gammaincc(first[0], first[1] * c) for c in (target.common, target.rare)]
    return _average(log_w, [last, *tails])


def _plain(target: Any) -> tuple[float, float]:
    """The thresholds of an event of the form s < c, as the program has them."""
    return -target.common, -target.rare


CLOSED = {"ab_test": _ab_test, "exponential_survival": _exponential_survival}
CLOSED |= {"baseball_beta": _baseball_beta, "pumps": _pumps}
COUNTS = {1: (2001, 1501), 2: (121, 91), 3: (61, 49)}


def answers(target: Any) -> tuple[str, tuple[float, ...], tuple[float, ...]] | None:
    """How, the answers, and those of a coarser grid; None where a model needs sampling."""
    name = target.entry.name
    if name in CLOSED:
        found = CLOSED[name](target)
        return (
            "conjugate given at most two parameters, over which quadrature integrates",
            found,
            found,
        )
    if name in PLANES:
        fine, coarse = (plane(target, name, panels) for panels in (30, 22))
        return "Gauss–Legendre quadrature over both parameters", fine, coarse
    models = gaussians(lambda _: (target.common, target.rare))
    if name not in models:
        return None
    fine, coarse = (solve(models[name], count) for count in COUNTS[len(models[name].box)])
    how = "Gaussian given its scales: normal tails in closed form, a grid over the log scales"
    return how, fine, coarse
