"""How one evaluation of a program is summed over its labels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from estimand.model.enumerated.targets import Clamped, Free, Target, target_of
from estimand.model.enumerated.trace import Start, Sum, Trace
from estimand.model.layout import log_positive_part


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The sums that one evaluation needs.

    `joint` is that of the density, `prior` that of the prior where the prior of a kept site depends
    on labels; `target` averages the outputs along with the first.
    """

    trace: Trace
    joint: Sum
    prior: Sum | None
    target: Target | None

    @property
    def mixed(self) -> tuple[int, ...]:
        """The numbers of the kept sites whose prior depends on labels."""
        priors = self.trace.results.log_priors
        return tuple(k for k, place in enumerate(priors) if self.trace.reach(place) is not None)

    @property
    def num_runs(self) -> int:
        """Runs of the program that one evaluation needs."""
        sums = self.joint.layout.num_runs
        sums += 0 if self.prior is None else self.prior.layout.num_runs
        return sums if self.target is None else sums + self.target.num_runs

    @functools.cached_property
    def _start(self) -> Start:
        prior = [] if self.prior is None else self.prior.layout.places
        places = [*self.joint.layout.places, *prior, *self.trace.results.log_priors]
        return Start.of(self.trace, places)

    @functools.cached_property
    def _start_of_outputs(self) -> Start:
        return Start.of(self.trace, [] if self.target is None else self.target.wanted)

    def evaluate(
        self, position: jax.Array, data: Sequence[Any]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log prior, log likelihood and outputs."""
        weigh = self._weigh if self.target is None or self.is_free else _hidden(self._weigh)
        log_prior, log_likelihood, weights = weigh(position, tuple(data))
        if self.target is None:
            return log_prior, log_likelihood, jnp.zeros(0)
        values = self._start_of_outputs.values(self.trace, position, data)
        return log_prior, log_likelihood, self.target.mean(self.trace, values, weights)

    @property
    def is_free(self) -> bool:
        """Whether the outputs do not depend on the labels."""
        return isinstance(self.target, Free)

    def _weigh(self, position: jax.Array, data: Sequence[Any]) -> tuple[jax.Array, jax.Array, Any]:
        """Log prior, log likelihood, and the weights for the target."""
        trace, values = self.trace, self._start.values(self.trace, position, data)
        if self.target is None:
            summed, weights = self.joint.total(*self.joint.tables(trace, values)), ()
        else:
            summed, weights = self.target.weigh(trace, values)
        if self.prior is None:
            log_priors = [values[place] for place in trace.results.log_priors]
            return sum(log_priors, start=jnp.zeros(())), summed.log_total, weights
        log_prior = self.prior.total(*self.prior.tables(trace, values)).log_total
        is_nothing = log_prior == -jnp.inf
        difference = summed.log_total - jnp.where(is_nothing, 0.0, log_prior)
        return log_prior, jnp.where(is_nothing, -jnp.inf, difference), weights

    @property
    def can_draw_targets(self) -> bool:
        """Whether labels can be drawn in proportion to an output."""
        return isinstance(self.target, Free | Clamped)

    def draw(
        self, rng_key: jax.Array, position: jax.Array, data: Sequence[Any], output: Any, sign: Any
    ) -> jax.Array:
        """The labels drawn given a position, as the places of their values.

        They are drawn from the density for sign 0, else from the density times an output or −1
        times it.
        """
        values = self._start.values(self.trace, position, data)
        keys = jax.random.split(rng_key)
        if not isinstance(self.target, Clamped):
            summed = self.joint.total(*self.joint.tables(self.trace, values))
            return self.joint.elimination.draw(keys[0], summed.rounds)
        joint = self.target.joint
        summed = joint.total(*joint.tables(self.trace, values))
        values = self._start_of_outputs.values(self.trace, position, data)
        outputs = self.target.outputs(self.trace, values)[:, output] * sign
        log_weights = jnp.ravel(summed.clamped)
        tilted = jnp.full_like(log_weights, -jnp.inf)
        tilted = tilted.at[self.target.chosen].set(log_positive_part(outputs)) + log_weights
        kept = jax.random.categorical(keys[1], jnp.where(sign == 0, log_weights, tilted))
        return joint.elimination.draw(keys[0], summed.rounds, kept)


def _hidden(function: Callable) -> Callable:
    """The same function as one step, which nobody who reads an expression looks into."""
    whole = jax.custom_jvp(function)
    whole.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return whole


def plan_of(trace: Trace, has_output: bool) -> Plan:
    """The plan of a traced program.

    Raises:
        TooManyError: if a table would have too many joint values.
    """
    results = trace.results
    is_mixed = any(trace.reach(place) is not None for place in results.log_priors)
    priors = [*(results.log_priors if is_mixed else ()), results.log_prior_of_labels]
    density = trace.layout(trace.pieces([*priors, results.log_likelihood]))
    prior = Sum.of(trace, trace.layout(trace.pieces(priors))) if is_mixed else None
    target = target_of(trace, density) if has_output else None
    return Plan(trace, Sum.of(trace, density), prior, target)
