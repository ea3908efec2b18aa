"""The reliability view of an event: index, design points, importance of each site."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.model import NumpyroModel, ProgramError
from estimand.record import KeptDraws, Record, generator_of, resample
from estimand.runtime import compiled_per_model, in_precision
from estimand.sampling import in_chunks, vmapped
from estimand.trust import Status
from estimand.view.index import index_of
from estimand.view.tables import Summarised, Summary, Table

# Searches for design points, each from a draw of the event; steps of each, and proposals of a step.
NUM_STARTS, NUM_STEPS, NUM_PROPOSALS = 256, 80, 8
# Steps for each dimension, where these are more, and their largest number.
STEPS_PER_DIMENSION, MAX_STEPS = 10, 1000
# By how much each of `NUM_STEPS` becomes shorter.
SHRINKAGE = 0.92
# Ends that are nearer than this in standard space are those of one branch. Not measured.
BRANCH_DISTANCE = 1.0
# Branches with a smaller share of the searches are left out.
MIN_SHARE = 0.02
# Shares of the searches that may end elsewhere: of more it is said, and of more nothing is known.
MENTIONED, MAX_ELSEWHERE = 0.05, 0.5
# Design points, and numbers of the sites, that the summary of an estimate has.
MAX_POINTS, MAX_NUMBERS = 5, 8


class DesignPoint(NamedTuple):
    """The most likely point of one branch of an event.

    `coordinates` are in standard space and `importance` their squares as shares of the squared
    `distance` from its origin, by site. `share` is the branch's share of the event's probability.

    Examples:
        >>> @ep.expectation
        ... def failure():
        ...     return numpyro.sample("x", dist.Normal(0, 1)) > 4
        >>> (point,) = ep.estimate_expectation(failure()).reliability().design_points
        >>> round(point.distance, 2), round(float(point.values["x"]), 2)
        (4.0, 4.0)
    """

    share: float
    share_error: float
    distance: float
    values: dict[str, np.ndarray]
    coordinates: dict[str, np.ndarray]
    importance: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Reliability(Summarised):
    """An event's probability as an index β = −Φ⁻¹(P), and its design points.

    Standard space is that of the prior: every site is standard normal there, given those before
    it. Design points are the most likely points of the event, those of the posterior where the
    program has data; then their distances are not comparable with β. `note` says why there are
    none.

    Examples:
        >>> @ep.expectation
        ... def failure():
        ...     return numpyro.sample("x", dist.Normal(0, 1)) > 4
        >>> reliability = ep.estimate_expectation(failure()).reliability()
        >>> abs(reliability.beta - 4) < 4 * reliability.beta_error
        True
    """

    name: str
    probability: float
    standard_error: float
    beta: float
    beta_error: float
    interval: tuple[float, float]
    status: Status
    design_points: tuple[DesignPoint, ...] = ()
    note: str = ""

    def summary(self) -> Summary:
        """Tables of the index and of the design points."""
        low, high = self.interval
        row = (
            self.name,
            f"{self.probability:.5g} ± {self.standard_error:.2g}",
            f"{self.beta:.5g} ± {self.beta_error:.2g}",
            f"[{low:.5g}, {high:.5g}]",
            self.status.name,
        )
        header = ("event", "probability", "β", "95 % interval", "status")
        tables = [Table("Reliability", header, (row,))]
        for number, point in enumerate(self.design_points, 1):
            rows = tuple(
                (
                    label,
                    f"{point.values[name][index]:.5g}",
                    f"{point.coordinates[name][index]:.4g}",
                    _percent(point.importance[name][index]),
                )
                for label, name, index in _numbers_of(point)
            )
            title = (
                f"Design point {number}: {100 * point.share:.1f} ± "
                f"{100 * point.share_error:.1f} % of the probability, {point.distance:.4g} from "
                "the origin"
            )
            tables.append(Table(title, ("site", "value", "standard", "importance"), rows))
        return Summary(tables, [self.note] if self.note else [])

    def brief(self) -> Table | None:
        """The design points side by side, if there are any, with what they hang on most."""
        points = self.design_points[:MAX_POINTS]
        if not points:
            return None
        rows = [
            ("share", *(f"{100 * p.share:.1f} ± {100 * p.share_error:.1f} %" for p in points)),
            ("distance", *(f"{point.distance:.4g}" for point in points)),
            *(
                (f"importance of {label}", *map(_percent, shares))
                for label, shares in self.ranked(MAX_NUMBERS)
            ),
        ]
        header = ("", *map(str, range(1, len(points) + 1)))
        count = len(self.design_points)
        of_all = f", {len(points)} of {count}" if count > len(points) else ""
        return Table(f"Design points of {self.name}{of_all}", header, tuple(rows))

    def ranked(self, count: int) -> list[tuple[str, np.ndarray]]:
        """The numbers that the event hangs on most, with the importance of each at every design
        point; the last entry may stand for all others."""
        points = self.design_points
        labels = [label for label, *_ in _numbers_of(points[0])] if points else []
        shares = np.asarray(
            [[p.importance[name][index] for _, name, index in _numbers_of(p)] for p in points]
        )
        order = np.argsort(-np.asarray([p.share for p in points]) @ shares, kind="stable")
        most = order if len(order) <= count else order[: count - 1]
        found = [(labels[k], shares[:, k]) for k in most]
        if others := len(order) - len(most):
            found.append((f"{others} others", shares[:, order[len(most) :]].sum(axis=1)))
        return found


def _numbers_of(point: DesignPoint) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """A label for every number of the sites, the site that it is of, and its place there."""
    for name, value in point.values.items():
        for index in np.ndindex(*value.shape):
            yield name + (f"[{', '.join(map(str, index))}]" if index else ""), name, index


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def reliability_of(record: Record, output: int, rng_key: int | jax.Array) -> Reliability:
    """The reliability view of an indicator output."""
    if not 0 <= output < record.output.size:
        raise ValueError(
            f"reliability: output must be from 0 to {record.output.size - 1}; it is {output}."
        )
    if not record.are_indicators[output]:
        raise ValueError(
            f"reliability: {record.names[output]!r} is not an event: return a bool, such as "
            "margin < 0."
        )
    index, estimate = index_of(record, output), record.outputs[output]
    points, note = _design_points(record, output, rng_key)
    return Reliability(
        name=record.names[output],
        probability=estimate.value,
        standard_error=estimate.standard_error,
        beta=index.value,
        beta_error=index.standard_error,
        interval=index.interval,
        status=estimate.status,
        design_points=points,
        note=note,
    )


def _design_points(
    record: Record, output: int, rng_key: int | jax.Array
) -> tuple[tuple[DesignPoint, ...], str]:
    density, draws = record.density, record.draws_of("gamma1_plus", output)
    if draws is None or not draws.log_weights.size:
        return (), "There are no design points: no draws of the event are kept."
    if density is None or not isinstance(density.model, NumpyroModel):
        return (), "Design points need the program: they are there in the session that ran it."
    if density.layout.has_discrete:
        return (), "There are no design points: the program has discrete sites."
    rng = generator_of(rng_key)
    try:
        with in_precision(record.precision):
            found = _searched(density.part("gamma1_plus", output), draws, rng)
    except ProgramError as error:
        return (), f"There are no design points: {error}"
    elsewhere = 1 - sum(point.share for point in found)
    note = (
        f"{100 * elsewhere:.0f} % of the searches ended far apart from one another, in "
        f"{density.dimension} dimensions."
    )
    if elsewhere > MAX_ELSEWHERE:
        return (), f"There are no design points: {note}"
    return found, note if elsewhere > MENTIONED else ""


def _searched(
    density: Density, draws: KeptDraws, rng: np.random.Generator
) -> tuple[DesignPoint, ...]:
    chosen = resample(draws.log_weights, NUM_STARTS, rng)
    names = {site.name for site in density.model.sites}
    sites = {name: array[chosen] for name, array in draws.sites.items() if name in names}
    starts = np.asarray(_positions(density, {k: jnp.asarray(v) for k, v in sites.items()}))
    ends, log_sizes = _climbed(density, starts, rng)
    standard = _evaluated(density, ends)[1]
    groups = _grouped(standard, log_sizes)
    points = []
    for group in groups:
        share = len(group) / len(ends)
        if share < MIN_SHARE:
            continue
        best = group[int(np.argmax(log_sizes[group]))]
        # Of all of them or none there would be no error otherwise.
        middle = (len(group) + 1) / (len(ends) + 2)
        error = math.sqrt(middle * (1 - middle) / len(ends))
        points.append(_point(density, ends[best], standard[best], share, error))
    return tuple(sorted(points, key=lambda point: -point.share))


def _climbed(
    density: Density, starts: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Each start moved to more likely points of the event, in steps that become shorter."""
    points, (log_sizes, standard) = starts, _evaluated(density, starts)
    dimension = points.shape[1]
    spread = np.cov(points, rowvar=False).reshape(dimension, dimension)
    spread += 1e-12 * np.diag(np.diag(spread) + 1e-300)
    factor, size = np.linalg.cholesky(spread), 1.0
    half = NUM_PROPOSALS // 2
    num_steps = min(max(NUM_STEPS, STEPS_PER_DIMENSION * dimension), MAX_STEPS)
    shrinkage = SHRINKAGE ** (NUM_STEPS / num_steps)
    for _ in range(num_steps):
        noise = rng.normal(size=(half, *points.shape)) @ factor.T
        lengths = size * rng.uniform(size=(half, len(points), 1)) ** 2
        # The differences of others lie along the valleys in which all of them descend.
        first, second = rng.integers(len(points), size=(2, half, len(points)))
        along = rng.uniform(size=(half, len(points), 1)) * (points[first] - points[second])
        proposals = (points + np.concatenate([lengths * noise, along])).reshape(-1, dimension)
        found, places = (
            column.reshape(NUM_PROPOSALS, len(points), *column.shape[1:])
            for column in _evaluated(density, proposals)
        )
        # A search stays in the branch that it began in.
        is_far = np.linalg.norm(places - standard, axis=2) > BRANCH_DISTANCE
        found = np.where(is_far, -np.inf, found)
        best = found.argmax(axis=0), np.arange(len(points))
        is_better = found[best] > log_sizes
        moved = proposals.reshape(NUM_PROPOSALS, len(points), dimension)[best]
        points = np.where(is_better[:, None], moved, points)
        standard = np.where(is_better[:, None], places[best], standard)
        log_sizes = np.where(is_better, found[best], log_sizes)
        size *= shrinkage
    return points, log_sizes


def _grouped(standard: np.ndarray, log_sizes: np.ndarray) -> list[np.ndarray]:
    """Ends that belong together, each to the most likely one that is near it."""
    centres: list[np.ndarray] = []
    members: list[list[int]] = []
    for number in np.argsort(-log_sizes):
        gaps = [float(np.linalg.norm(standard[number] - centre)) for centre in centres]
        nearest = int(np.argmin(gaps)) if gaps else -1
        if gaps and gaps[nearest] < BRANCH_DISTANCE:
            members[nearest].append(int(number))
        else:
            centres.append(standard[number])
            members.append([int(number)])
    return [np.asarray(group) for group in members]


def _point(
    density: Density, position: np.ndarray, standard: np.ndarray, share: float, error: float
) -> DesignPoint:
    values = {k: np.asarray(v) for k, v in density.constrain(jnp.asarray(position)).items()}
    squares = standard**2 / max(float((standard**2).sum()), 1e-300)
    coordinates, importance, start = {}, {}, 0
    for site in density.model.sites:
        shape = values[site.name].shape
        own = slice(start, start + math.prod(shape))
        coordinates[site.name] = standard[own].reshape(shape)
        importance[site.name] = squares[own].reshape(shape)
        start = own.stop
    kept = {site.name: values[site.name] for site in density.model.sites}
    distance = float(np.linalg.norm(standard))
    return DesignPoint(share, error, distance, kept, coordinates, importance)


def _evaluated(density: Density, positions: np.ndarray) -> list[np.ndarray]:
    """The log density in standard space, −∞ outside of the event; and the points there."""
    return in_chunks(lambda rows: _in_standard_space(density, jnp.asarray(rows)), positions)


@compiled_per_model
def _in_standard_space(density: Density, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = density.model
        assert isinstance(model, NumpyroModel)
        standard = jnp.concatenate(model.standard_normals(position, density.arrays))
        log_density = -0.5 * jnp.sum(standard**2) + density.terms(position).log_weight
        return jnp.where(jnp.isnan(log_density), -jnp.inf, log_density), standard

    return vmapped(one, positions)


@compiled_per_model
def _positions(density: Density, sites: dict[str, jax.Array]) -> jax.Array:
    return vmapped(density.position_of, sites)
