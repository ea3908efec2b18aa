"""The default method: a fitted mixture where that works, islands of SMC where it does not."""

from __future__ import annotations

import dataclasses

import jax

from estimand.adaptive import AdaptiveIS, is_reached
from estimand.density import Density
from estimand.evidence import Status
from estimand.methods import TABI, Figures, Run, worst
from estimand.settings import Settings, require_count
from estimand.smc import SMC

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
    much coarser, and honest. The estimate's notes say which output went which way.

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
            run = self._islands(second_key, density, tuple(range(density.num_outputs)), 0)
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
        second = self._islands(second_key, density, weak, spent)
        figures = list(first.figures)
        notes = []
        assert density.layout.output is not None
        for output, item in zip(weak, second.figures, strict=True):
            label = density.layout.output.labels[output] or "the estimate"
            notes.append(
                f"{label} by islands of SMC: the fitted mixture was {figures[output].status.name}"
            )
            figures[output] = item
        return first._replace(
            figures=tuple(figures),
            num_evaluations=first.num_evaluations + second.num_evaluations,
            num_gradients=first.num_gradients + second.num_gradients,
            evidence=first.evidence + second.evidence,
            notes=tuple(notes),
        )

    def _islands(
        self, rng_key: jax.Array, density: Density, outputs: tuple[int, ...], spent: int
    ) -> Run:
        """TABI with islands, their number doubled once if the first ones leave budget to."""
        islands = SMC(num_particles=4000, num_steps=100, num_islands=16)
        run = TABI(islands).run(rng_key, density, outputs)
        cost = run.num_evaluations + 3 * run.num_gradients
        figures = tuple(self._judged(item, islands.num_islands) for item in run.figures)
        if any(item.status is not Status.ok for item in figures):
            affordable = (self.max_evaluations - spent - cost) // max(cost, 1)
            if affordable >= 1:
                more = dataclasses.replace(islands, num_islands=16 * min(affordable, 16))
                extra = TABI(more).run(jax.random.fold_in(rng_key, 1), density, outputs)
                figures = tuple(self._judged(item, more.num_islands) for item in extra.figures)
                run = extra._replace(
                    num_evaluations=run.num_evaluations + extra.num_evaluations,
                    num_gradients=run.num_gradients + extra.num_gradients,
                )
        return run._replace(figures=figures)

    def _judged(self, figures: Figures, num_islands: int) -> Figures:
        figures = figures._replace(degrees=float(num_islands - 1))
        if figures.status is Status.ok and not is_reached(figures, 3 * self.relative_error):
            return figures._replace(status=worst([figures.status, Status.not_converged]))
        return figures
