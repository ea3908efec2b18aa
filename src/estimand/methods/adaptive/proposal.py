"""What explorations found, and the proposal that is fitted to it and drawn from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from estimand.methods.adaptive.draws import Draws, Evaluated, Part, influences
from estimand.sampling import Mixture, Sampler, Warped, warp
from estimand.sampling import mixture as mixtures

PRIOR_SHARE = 0.08
MIN_GROUP_SHARE = 0.05
# Islands whose log Z lags behind the largest one by more than this are not fitted to.
MAX_LAG = 10.0
# Components, the heaviest first, that serve as control variates.
MAX_CONTROLS = 48
MAX_SOBOL_DIMENSION = 40


class Exploration(NamedTuple):
    """Weighted points of a part, and the Markov chain that each of them is from."""

    points: np.ndarray
    log_weights: np.ndarray
    chains: np.ndarray

    @property
    def has_mass(self) -> bool:
        return bool(np.isfinite(self.log_weights).any())

    @staticmethod
    def join(explorations: tuple[Exploration, ...]) -> Exploration:
        counts = np.cumsum([0, *(item.chains.max() + 1 for item in explorations[:-1])])
        chains = [item.chains + n for item, n in zip(explorations, counts, strict=True)]
        return Exploration(
            points=np.concatenate([item.points for item in explorations]),
            log_weights=np.concatenate([item.log_weights for item in explorations]),
            chains=np.concatenate(chains),
        )

    def flattened(self) -> Exploration:
        """The same with islands of equal weight, but for those that found next to nothing.

        All islands sample the same distribution, and their estimates of Z would only add noise.
        """
        is_rich = self.log_weights >= self.log_weights.max() - MAX_LAG
        return self._replace(log_weights=np.where(is_rich, 0.0, -np.inf))


def uniforms_for(seed: tuple[int, ...], count: int, dimension: int) -> np.ndarray:
    """What so many draws of a mixture are made of, quasi-random where there are such points."""
    rng, shape = np.random.default_rng(seed), (count, dimension + 2)
    if dimension <= MAX_SOBOL_DIMENSION:
        return mixtures.sobol_uniforms(rng, *shape)
    return rng.random(shape)


class Proposal(NamedTuple):
    """The mixture that is drawn from: one group of components per part, and one for the prior."""

    groups: dict[Part, Warped]
    shares: dict[Part, float]
    prior: Mixture
    # Components with less weight do not serve as controls: the mean share of one that is hardly
    # ever drawn from has the same error in all replicates.
    least_control: float = 0.0

    @classmethod
    def of(cls, groups: dict[Part, Warped], prior: Mixture) -> Proposal:
        """Equal shares for all groups."""
        return cls(dict(groups), dict.fromkeys(groups, 1 / len(groups)), prior)

    @property
    def pieces(self) -> list[Warped]:
        """All components with their weights, those that are not warped in one mixture."""
        scaled = [
            group.scaled((1 - PRIOR_SHARE) * self.shares[part])
            for part, group in self.groups.items()
        ]
        plain = [group.mixture for group in scaled if group.warp is None]
        joined = Mixture.join([*plain, self.prior.scaled(PRIOR_SHARE)])
        return [Warped(joined), *(group for group in scaled if group.warp is not None)]

    def draw(self, seed: tuple[int, ...], count: int) -> np.ndarray:
        """Quasi-random points, plain random ones in many dimensions."""
        return self.points(uniforms_for(seed, count, self.prior.dimension))

    def points(self, uniforms: np.ndarray) -> np.ndarray:
        """Points from uniforms, of which there are two more than coordinates."""
        return warp.draw_from(self.pieces, uniforms)

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """log of the density that is drawn from."""
        return np.logaddexp.reduce([piece.log_density(points) for piece in self.pieces], axis=0)

    def weighed(self, evaluated: Evaluated, replicate: int | np.ndarray) -> Draws:
        """Draws of a replicate, or several, with their density here and their controls."""
        pieces = self.pieces
        chosen = self._controls(pieces)
        log_densities, shares = zip(
            *(
                piece.log_density_and_shares(evaluated.positions, own)
                for piece, own in zip(pieces, chosen, strict=True)
            ),
            strict=True,
        )
        log_proposal = log_densities[0]
        if len(pieces) > 1:
            log_proposal = np.logaddexp.reduce(log_densities, axis=0)
            for share, log_density in zip(shares, log_densities, strict=True):
                share *= np.exp(log_density - log_proposal)[:, None]
        for share, piece, own in zip(shares, pieces, chosen, strict=True):
            share -= piece.mixture.weights[own]
        return Draws(
            *evaluated,
            log_proposal=log_proposal,
            replicate=np.full(len(evaluated.positions), replicate),
            controls=shares[0] if len(pieces) == 1 else np.concatenate(shares, axis=1),
        )

    def sampler(self) -> Sampler:
        """The same in JAX, with the same controls."""
        pieces = self.pieces
        return Sampler.of(pieces, self._controls(pieces), MAX_CONTROLS)

    def _controls(self, pieces: list[Warped]) -> list[np.ndarray]:
        """The components of each piece that serve as control variates."""
        weights = np.concatenate([piece.mixture.weights for piece in pieces])
        largest = np.argsort(weights)[-MAX_CONTROLS:]
        is_control = np.zeros(weights.size, bool)
        is_control[largest] = weights[largest] >= self.least_control
        ends = np.cumsum([piece.mixture.size for piece in pieces])
        return [np.flatnonzero(own) for own in np.split(is_control, ends[:-1])]

    def allocated(self, pilot: Draws, parts: tuple[Part, ...]) -> Proposal:
        """The same with the shares that minimise the variance of the pilot's own estimate.

        With h the squared influence of a draw the variance is Σ h/q, convex in the shares; the
        update below is its fixed point.
        """
        influence = sum(x**2 for x in influences(pilot, parts))
        log_groups = [group.log_density(pilot.positions) for group in self.groups.values()]
        ratios = np.exp(np.minimum(np.stack(log_groups) - pilot.log_proposal, 500.0))
        log_prior = mixtures.log_density(self.prior, pilot.positions)
        prior = PRIOR_SHARE * np.exp(log_prior - pilot.log_proposal)
        shares = np.fromiter(self.shares.values(), float)
        for _ in range(30):
            mix = (1 - PRIOR_SHARE) * shares @ ratios + prior
            gains = (ratios * (influence / mix**2)).sum(axis=1)
            shares = shares * np.sqrt(np.maximum(gains, 1e-300))
            shares = shares / shares.sum()
        shares = np.maximum(shares, min(MIN_GROUP_SHARE, 0.5 / shares.size))
        shares = shares / shares.sum()
        return self._replace(shares=dict(zip(self.groups, shares.tolist(), strict=True)))
