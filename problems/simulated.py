"""Simulators as people have them: a finite-element truss in NumPy, an epidemic by SciPy's solver.

The truss is the one of Blatman and Sudret (2011): 23 bars, six loads, ten uncertain inputs. It is
statically determinate, so that its deflection is known without solving a system for each point:
with as many bars as free displacements, K = Bᵀ D B with a square B, and u = B⁻¹ D⁻¹ B⁻ᵀ F. That
makes ten million plain draws cheap; `python -m problems.simulated` draws them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.limit_states import LimitState, Marginal, lognormal
from problems.sir import DATA, adaptive

Array = NDArray[np.float64]

NUM_PANELS, WIDTH, HEIGHT = 6, 4.0, 2.0
# Deflection of the middle of the lower chord at which the truss fails, in metres.
LIMIT = 0.12


@functools.cache
def geometry() -> tuple[Array, Array, NDArray[np.bool_], int]:
    """Bars as rows of direction cosines by free displacement, their lengths, whether they are
    chords, and the displacement in the middle."""
    lower = [(WIDTH * k, 0.0) for k in range(NUM_PANELS + 1)]
    upper = [(WIDTH * (k + 0.5), HEIGHT) for k in range(NUM_PANELS)]
    nodes = np.array(lower + upper)
    first = NUM_PANELS + 1
    chords = [(k, k + 1) for k in range(NUM_PANELS)]
    chords += [(first + k, first + k + 1) for k in range(NUM_PANELS - 1)]
    braces = [pair for k in range(NUM_PANELS) for pair in ((k, first + k), (first + k, k + 1))]
    rows, lengths = [], []
    for start, end in chords + braces:
        away = nodes[end] - nodes[start]
        lengths.append(float(np.hypot(*away)))
        row = np.zeros(2 * len(nodes))
        row[2 * start : 2 * start + 2] = -away / lengths[-1]
        row[2 * end : 2 * end + 2] = away / lengths[-1]
        rows.append(row)
    fixed = [0, 1, 2 * NUM_PANELS + 1]
    free = [k for k in range(2 * len(nodes)) if k not in fixed]
    is_chord = np.arange(len(rows)) < len(chords)
    middle = free.index(2 * (NUM_PANELS // 2) + 1)
    return np.array(rows)[:, free], np.array(lengths), is_chord, middle


def loaded() -> list[int]:
    """The displacements that the loads act on, downwards."""
    lower = 2 * (NUM_PANELS + 1)
    return [lower - 3 + 2 * k + 1 for k in range(NUM_PANELS)]


def stiffnesses(x: Array) -> Array:
    """Of every bar, from columns E and A of the chords, then of the braces."""
    _, lengths, is_chord, _ = geometry()
    return np.where(is_chord, (x[:, 0] * x[:, 1])[:, None], (x[:, 2] * x[:, 3])[:, None]) / lengths


def deflection(x: Array) -> Array:
    """Of the middle of the lower chord: a stiffness matrix is assembled and solved for each row.

    Columns: Young's modulus and area of the chords, of the braces, and the six loads.
    """
    bars, _, _, middle = geometry()
    matrices = np.einsum("bi,nb,bj->nij", bars, stiffnesses(x), bars)
    forces = np.zeros((len(x), bars.shape[1]))
    forces[:, loaded()] = -x[:, 4:]
    return -np.linalg.solve(matrices, forces[:, :, None])[:, middle, 0]


def determinate_deflection(x: Array) -> Array:
    """The same from the forces in the bars, which do not depend on the stiffnesses."""
    bars, _, _, middle = geometry()
    inverse = np.linalg.inv(bars)
    unit = np.zeros((bars.shape[1], NUM_PANELS))
    unit[loaded(), np.arange(NUM_PANELS)] = -1.0
    in_bars = x[:, 4:] @ (inverse.T @ unit).T
    return -np.sum(in_bars * inverse[middle] / stiffnesses(x), axis=1)


INPUTS = (
    *lognormal(2.1e11, 2.1e10),
    *lognormal(2e-3, 2e-4),
    *lognormal(2.1e11, 2.1e10),
    *lognormal(1e-3, 1e-4),
    *(Marginal("gumbel", 5e4, 7.5e3),) * NUM_PANELS,
)
# By plain Monte Carlo: python -m problems.simulated, 10 million draws, seed 0.
TRUSS_PROBABILITY, TRUSS_ERROR = 1.5186e-3, 1.23e-5
TRUSS = LimitState(INPUTS, lambda x: LIMIT - deflection(x), TRUSS_PROBABILITY)


def draws(rng: np.random.Generator, count: int) -> Array:
    """Inputs of the truss."""
    columns = []
    for marginal in INPUTS:
        first, second = marginal.parameters
        if marginal.family == "lognormal":
            columns.append(rng.lognormal(first, second, count))
        else:
            columns.append(rng.gumbel(first, second, count))
    return np.stack(columns, axis=1)


def monte_carlo(count: int, seed: int = 0, piece: int = 100_000) -> tuple[float, float]:
    """The failure probability of the truss by plain draws, and its standard error."""
    rng, failures = np.random.default_rng(seed), 0
    for start in range(0, count, piece):
        x = draws(rng, min(piece, count - start))
        failures += int(np.sum(determinate_deflection(x) > LIMIT))
    share = failures / count
    return share, math.sqrt(share * (1 - share) / count)


# --- an epidemic ---

# Posterior probability of a contact rate above 1, by quadrature with 64 Runge-Kutta steps a day:
# problems.sir.truth(runge_kutta(64)).mass_above(1.0).
EPIDEMIC_TAIL = 2.77293262e-5


def epidemic(points: dict[str, Array]) -> Array:
    """The newly infected on each of 15 days, by an adaptive solver of SciPy, point by point."""
    return adaptive(1e-8)(points["beta"], 10.0 * points["i0"]).T


def epidemic_program() -> Any:
    """The posterior probability of a contact rate above 1, as a program around the solver."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import estimand as ep

    def likelihood(_sites: dict[str, Any], new: Any, y: Any) -> None:
        mean = jnp.maximum(new, 1e-10)
        numpyro.sample("y", dist.NegativeBinomial2(mean, 0.5).to_event(1), obs=y)

    return ep.from_simulator(
        epidemic,
        prior={
            "beta": dist.TruncatedNormal(2.0, 1.5, low=0.0),
            "i0": dist.TruncatedNormal(10.0, 10.0, low=0.0, high=1000.0),
        },
        outputs=(len(DATA),),
        likelihood=likelihood,
        f=lambda sites, _new: sites["beta"] > 1.0,
    )(DATA)


if __name__ == "__main__":
    print("mean inputs:", deflection(np.array([[m.first for m in INPUTS]])))
    print("truss, 10 million plain draws:", monte_carlo(10_000_000))
