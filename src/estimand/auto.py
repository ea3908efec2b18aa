"""The default method: a fitted mixture where that works, SMC or bridge sampling elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from estimand.adaptive import AdaptiveIS, is_reached
from estimand.bridge import BridgeSampling
from estimand.density import Density
from estimand.evidence import Status
from estimand.methods import TABI, Figures, Run, worst
from estimand.settings import Settings, require_count
from estimand.smc import SMC

# Above this dimension the second route is bridge sampling instead of islands. Chains are many and
# start apart, so that separate modes show as chains that disagree.
MAX_ISLAND_DIMENSION = 20
ISLANDS = SMC(num_particles=4000, num_steps=100, num_islands=16)
CHAINS = BridgeSampling(num_samples=2500, num_warmup=1000, num_chains=8)

# Statuses that another route may mend. A NaN or missing mass it would only find again.
_MENDABLE = (
    Status.low_ess,
    Status.heavy_tailed,
    Status.replicates_disagree,
    Status.not_converged,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Settings):
    """Chooses the route by the program, and takes another one where the first cannot be trusted.

    Continuous programs go through `AdaptiveIS`. Outputs that its own checks do not pass (funnels,
    hard walls: shapes that no mixture of Gaussians fits), and programs with discrete sites, are
    estimated by `TABI` with independent islands of `SMC`, whose error is that between islands:
    much coarser, and honest. Above 20 dimensions it is `BridgeSampling` of NUTS chains, which
    cannot see a mode that no chain visits. The estimate's notes say which output went which way.

    Args:
        relative_error: standard error to reach, relative to the value.
        max_evaluations: evaluations that may be spent, a gradient counting as 3. The first route
            takes a quarter of them at the most.
    """

    relative_error: float = 0.01
    max_evaluations: int = 4_000_000

    def __post_init__(self) -> None:
        require_count("Auto", "max_evaluations", self.max_evaluations)
        if not self.relative_error > 0:
            raise ValueError(f"Auto: relative_error must be positive; it is {self.relative_error}.")

    def check(self, density: Density) -> None:
        density.require_prior("the default method")

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        first_key, second_key = jax.random.split(rng_key)
        if density.layout.discrete_sites:
            note = f"by islands of SMC: site {density.layout.discrete_sites[0]!r} is discrete"
            run = self._again(second_key, density, tuple(range(density.num_outputs)), 0)
            return run._replace(notes=(note,))
        mixture = AdaptiveIS(
            relative_error=self.relative_error,
            max_evaluations=max(1, self.max_evaluations // 4),
        )
        first = mixture.run(first_key, density)
        weak = tuple(i for i, item in enumerate(first.figures) if item.status in _MENDABLE)
        if not weak:
            return first
        spent = first.num_evaluations + 3 * first.num_gradients
        second = self._again(second_key, density, weak, spent)
        figures = list(first.figures)
        notes = []
        is_wide = density.dimension > MAX_ISLAND_DIMENSION
        route = "bridge sampling of NUTS draws" if is_wide else "islands of SMC"
        assert density.layout.output is not None
        for output, item in zip(weak, second.figures, strict=True):
            label = density.layout.output.labels[output] or "the estimate"
            notes.append(f"{label} by {route}: the mixture was {figures[output].status.name}")
            figures[output] = item
        return first._replace(
            figures=tuple(figures),
            num_evaluations=first.num_evaluations + second.num_evaluations,
            num_gradients=first.num_gradients + second.num_gradients,
            evidence=first.evidence + second.evidence,
            notes=tuple(notes),
        )

    def _again(
        self, rng_key: jax.Array, density: Density, outputs: tuple[int, ...], spent: int
    ) -> Run:
        """Another route for some outputs; once more with more effort if the budget allows it."""
        is_wide = density.dimension > MAX_ISLAND_DIMENSION and not density.layout.discrete_sites
        route: BridgeSampling | SMC = CHAINS if is_wide else ISLANDS
        run = TABI(route).run(rng_key, density, outputs)
        cost = run.num_evaluations + 3 * run.num_gradients
        figures = tuple(map(self._judged, run.figures))
        affordable = (self.max_evaluations - spent - cost) // max(cost, 1)
        if affordable < 1 or all(item.status is Status.ok for item in figures):
            return run._replace(figures=figures)
        factor = min(affordable, 16)
        if isinstance(route, BridgeSampling):
            more: Any = dataclasses.replace(route, num_samples=factor * route.num_samples)
        else:
            more = dataclasses.replace(route, num_islands=factor * route.num_islands)
        second = TABI(more).run(jax.random.fold_in(rng_key, 1), density, outputs)
        return second._replace(
            figures=tuple(map(self._judged, second.figures)),
            num_evaluations=run.num_evaluations + second.num_evaluations,
            num_gradients=run.num_gradients + second.num_gradients,
        )

    def _judged(self, figures: Figures) -> Figures:
        figures = figures._replace(degrees=float(ISLANDS.num_islands - 1))
        if figures.status is Status.ok and not is_reached(figures, 3 * self.relative_error):
            return figures._replace(status=worst([figures.status, Status.not_converged]))
        return figures
