"""Target-aware estimation: every normalising constant on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

from estimand.density import Density
from estimand.estimators import Estimator, Request, estimate_all
from estimand.methods.protocol import Run
from estimand.runtime import Runtime
from estimand.settings import Settings
from estimand.trust import combine


class _Skip:
    def __repr__(self) -> str:
        return "SKIP"


SKIP = _Skip()


@dataclasses.dataclass(frozen=True, repr=False)
class TABI(Settings):
    """Target-aware estimation: E[f] = (Z1⁺ − Z1⁻) / Z2, each Z estimated on its own.

    A part that the return expression itself rules out, such as the negative one of ``x**2``, is
    not estimated.

    Args:
        estimator: for all three, where no other one is named.
        normaliser: the estimator of Z2.
        positive: the estimator of Z1⁺, or `SKIP` if f ≤ 0.
        negative: the estimator of Z1⁻, or `SKIP` if f ≥ 0.

    Examples:
        >>> method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=20))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
        >>> prior = ep.ImportanceSampling()
        >>> ep.TABI(ep.AnIS(), normaliser=prior)  # of any kinds mixed
        TABI(normaliser=ImportanceSampling(), positive=AnIS(), negative=AnIS())
    """

    estimator: dataclasses.InitVar[Estimator | None] = None
    _: dataclasses.KW_ONLY
    normaliser: Estimator | None = None
    positive: Estimator | _Skip | None = None
    negative: Estimator | _Skip | None = None

    def __post_init__(self, estimator: Estimator | None) -> None:
        if isinstance(estimator, _Skip) or isinstance(self.normaliser, _Skip):
            raise ValueError("TABI: Z2 cannot be skipped; it is what the result is divided by.")
        for name in ("normaliser", "positive", "negative"):
            if getattr(self, name) is None:
                if estimator is None:
                    raise ValueError(
                        f"TABI: no estimator for {name}. Give one estimator for all parts, as in "
                        "TABI(AnIS()), or normaliser=, positive= and negative=."
                    )
                object.__setattr__(self, name, estimator)
            chosen = getattr(self, name)
            if not isinstance(chosen, _Skip | Estimator):
                raise TypeError(f"TABI: {name} must be an estimator or SKIP; it is {chosen!r}.")
        if isinstance(self.positive, _Skip) and isinstance(self.negative, _Skip):
            raise ValueError("TABI: with both parts skipped nothing is left to estimate.")

    def __repr__(self) -> str:
        if self.normaliser == self.positive == self.negative:
            return f"TABI({self.normaliser!r})"
        return (
            f"TABI(normaliser={self.normaliser!r}, positive={self.positive!r}, "
            f"negative={self.negative!r})"
        )

    def check(self, density: Density) -> None:
        for estimator in (self.normaliser, self.positive, self.negative):
            if not isinstance(estimator, _Skip):
                assert estimator is not None
                estimator.check(density)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        return self.run_outputs(rng_key, density, runtime, range(density.num_outputs))

    def run_outputs(
        self, rng_key: jax.Array, density: Density, runtime: Runtime, outputs: Sequence[int]
    ) -> Run:
        """Estimates of some of the outputs."""
        assert self.normaliser is not None
        keys = jax.random.split(rng_key, 1 + 2 * density.num_outputs)
        # Where f may be NaN, it has to be evaluated.
        known, is_zero = density.known_signs, density.known_zeros & (not density.bounds.has_nan)
        requests = {("gamma2", 0): Request(self.normaliser, keys[0], density.part("gamma2"))}
        for output in outputs:
            for number, (name, sign) in enumerate((("gamma1_plus", 1), ("gamma1_minus", -1))):
                estimator = (self.positive, self.negative)[number]
                is_absent = is_zero[output] or known[output] == -sign
                if not (isinstance(estimator, _Skip) or is_absent):
                    assert estimator is not None
                    key = keys[1 + 2 * output + number]
                    part = density.part(name, output)
                    requests[name, output] = Request(estimator, key, part)
        estimated = estimate_all(runtime, list(requests.values()))
        evidence = dict(zip(requests, estimated, strict=True))
        normaliser = evidence["gamma2", 0]
        return Run(
            outputs=tuple(
                combine(
                    evidence.get(("gamma1_plus", output)),
                    evidence.get(("gamma1_minus", output)),
                    normaliser,
                )
                for output in outputs
            ),
            num_evaluations=sum(item.num_evaluations for item in estimated),
            num_gradients=sum(item.num_gradients for item in estimated),
        )
