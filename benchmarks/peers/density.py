"""A NumPyro model as functions of flat arrays, with NumPyro's own functions only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, Independent, biject_to
from numpyro.infer.util import compute_log_probs

from benchmarks.peers.protocol import LOG_SMALLEST


class Density:
    """Prior, likelihood and target of a problem in unconstrained coordinates.

    After non-centring no prior depends on another site, so the priors of one trace hold for all.
    """

    def __init__(self, problem):
        self.problem = problem
        self.model = problem.bound()
        trace = handlers.trace(handlers.seed(self.model, 0)).get_trace()
        self.priors = {
            name: site["fn"]
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        self.transforms = {name: biject_to(fn.support) for name, fn in self.priors.items()}
        start = {name: self.transforms[name].inv(trace[name]["value"]) for name in self.priors}
        flat, self._unravel = ravel_pytree(start)
        self.dimension = flat.size

    def constrain(self, position):
        return {name: self.transforms[name](u) for name, u in self._unravel(position).items()}

    def log_prior(self, position):
        total = 0.0
        for name, u in self._unravel(position).items():
            transform = self.transforms[name]
            value = transform(u)
            jacobian = transform.log_abs_det_jacobian(u, value)
            total += self.priors[name].log_prob(value).sum() + jacobian.sum()
        return total

    def log_likelihood(self, position, sign=None):
        """Of the data, plus log of max(sign·f, 0) where a sign is given."""
        return self.terms(self.constrain(position), sign)[0]

    def terms(self, values, sign=None):
        """The same from constrained values, and the sites that the target reads."""
        log_probs, trace = compute_log_probs(self.model, (), {}, values)
        total = sum(log_probs[name] for name in log_probs if name not in self.priors)
        sites = {name: trace[name]["value"] for name in self.problem.sites}
        if sign is not None:
            found, log_magnitude = self.problem.log_target(sites)
            total += jnp.where(found * sign > 0, log_magnitude, LOG_SMALLEST)
        return jnp.asarray(total, float), sites

    def target(self, position):
        return self.problem.target(self.terms(self.constrain(position))[1])

    def draw(self, rng_key):
        """One prior draw."""
        keys = jax.random.split(rng_key, len(self.priors))
        values = {
            name: self.transforms[name].inv(fn.sample(key))
            for key, (name, fn) in zip(keys, self.priors.items(), strict=True)
        }
        return ravel_pytree(values)[0]

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def draws(self, rng_key, count):
        return jax.vmap(self.draw)(jax.random.split(rng_key, count))

    def from_cube(self, cube):
        """Constrained values whose prior probabilities are the cube's coordinates."""
        start, values = 0, {}
        for name, fn in self.priors.items():
            shape = fn.shape()
            size = int(np.prod(shape, dtype=int))
            values[name] = plain(fn).icdf(cube[start : start + size].reshape(shape))
            start += size
        return values


def plain(fn):
    """The distribution of one coordinate, which alone has cdf and icdf."""
    while isinstance(fn, Independent | ExpandedDistribution):
        fn = fn.base_dist
    return fn
