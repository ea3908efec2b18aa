"""Annealed importance sampling written by hand for two models, in plain jax.numpy.

What `throughput.py` measures AnIS against: the same density or gradient evaluations and the same
random draws, jitted and vmapped over particles, and nothing else. Log densities are written out in
unconstrained coordinates.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln, log_ndtr

from problems import sir as epidemic


class Model(NamedTuple):
    """`draw` gives a position from the prior; `terms` its log prior and log(likelihood · f)."""

    dimension: int
    draw: Callable
    terms: Callable


def gaussian(y):
    dimension = y.shape[0]
    constant = -0.5 * dimension * math.log(2 * math.pi)

    def terms(x):
        log_prior = constant - 0.5 * jnp.sum(x**2)
        log_likelihood = constant - 0.5 * jnp.sum((y - x) ** 2)
        log_target = -0.5 * dimension * math.log(math.pi) - jnp.sum((x + y) ** 2)
        return log_prior, log_likelihood + log_target

    return Model(dimension, lambda key: jax.random.normal(key, (dimension,)), terms)


def sir(y):
    y = y.astype(jnp.result_type(float))
    phi, constant = 0.5, -0.5 * math.log(2 * math.pi)

    def terms(u):
        beta, share = jnp.exp(u[0]), jax.nn.sigmoid(u[1])
        i0 = 1000.0 * share
        log_prior = constant - math.log(1.5) - 0.5 * ((beta - 2.0) / 1.5) ** 2 + u[0]
        log_prior -= log_ndtr(2.0 / 1.5)
        log_prior += constant - math.log(10.0) - 0.5 * ((i0 - 10.0) / 10.0) ** 2
        log_prior += math.log(1000.0) + jax.nn.log_sigmoid(u[1]) + jax.nn.log_sigmoid(-u[1])
        log_prior -= log_ndtr(1.0)
        mean = jnp.maximum(epidemic.new_infections(beta, 10.0 * i0), 1e-10)
        log_likelihood = jnp.sum(
            gammaln(y + phi)
            - gammaln(phi)
            - gammaln(y + 1)
            - (phi + y) * jnp.log(phi + mean)
            + phi * jnp.log(phi)
            + y * jnp.log(mean)
        )
        log_target = jax.nn.log_sigmoid(10.0 * beta / epidemic.RECOVERY - 30.0)
        return log_prior, log_likelihood + log_target + 12 * math.log(10.0)

    def draw(key):
        z = jax.random.truncated_normal(key, jnp.array([-2.0 / 1.5, -1.0]), jnp.array([1e9, 99.0]))
        share = (10.0 + 10.0 * z[1]) / 1000.0
        return jnp.stack([jnp.log(2.0 + 1.5 * z[0]), jnp.log(share) - jnp.log1p(-share)])

    return Model(2, draw, terms)


def random_walk(model, scale, num_steps):
    def move(key, beta, x, log_prior, log_weight):
        def step(_, carry):
            key, *old = carry
            key, move_key, accept_key = jax.random.split(key, 3)
            x = old[0] + scale * jax.random.normal(move_key, (model.dimension,))
            new = [x, *model.terms(x)]
            log_ratio = new[1] - old[1] + beta * (new[2] - old[2])
            return key, *_accept(accept_key, log_ratio, new, old)

        return lax.fori_loop(0, num_steps, step, (key, x, log_prior, log_weight))

    return move


def hamiltonian(model, step_size, num_leapfrog, num_steps):
    def move(key, beta, x, log_prior, log_weight):
        def tempered(u):
            log_prior, log_weight = model.terms(u)
            return log_prior + beta * log_weight, (log_prior, log_weight)

        def gradient(u):
            def slope(direction):
                _, slope, terms = jax.jvp(tempered, (u,), (direction,), has_aux=True)
                return slope, terms

            return jax.vmap(slope, out_axes=(0, None))(jnp.eye(model.dimension))

        def leapfrog(_, carry):
            x, momentum, slopes, _, _ = carry
            momentum = momentum + 0.5 * step_size * slopes
            x = x + step_size * momentum
            slopes, terms = gradient(x)
            return x, momentum + 0.5 * step_size * slopes, slopes, *terms

        def step(_, carry):
            key, x, slopes, log_prior, log_weight = carry
            key, momentum_key, accept_key = jax.random.split(key, 3)
            momentum = jax.random.normal(momentum_key, (model.dimension,))
            end = lax.fori_loop(
                0, num_leapfrog, leapfrog, (x, momentum, slopes, log_prior, log_weight)
            )
            log_ratio = end[3] - log_prior + beta * (end[4] - log_weight)
            log_ratio -= 0.5 * (jnp.sum(end[1] ** 2) - jnp.sum(momentum**2))
            new, old = [end[0], *end[2:]], [x, slopes, log_prior, log_weight]
            return key, *_accept(accept_key, log_ratio, new, old)

        slopes, _ = gradient(x)
        carry = (key, x, slopes, log_prior, log_weight)
        key, x, _, log_prior, log_weight = lax.fori_loop(0, num_steps, step, carry)
        return key, x, log_prior, log_weight

    return move


def _accept(key, log_ratio, new, old):
    accepted = -jax.random.exponential(key) < log_ratio
    return [jnp.where(accepted, a, b) for a, b in zip(new, old, strict=True)]


def anneal(keys, y, betas, make_model, make_move):
    """Log weights of independent particles, one for each key."""
    model = make_model(y)
    move = make_move(model)

    def particle(key):
        key, draw_key = jax.random.split(key)
        x = model.draw(draw_key)

        def temperature(carry, step):
            total, key, x, log_prior, log_weight = carry
            total = total + step[0] * log_weight
            return (total, *move(key, step[1], x, log_prior, log_weight)), None

        steps = (betas[1:-1] - betas[:-2], betas[1:-1])
        carry = (jnp.zeros_like(x[0]), key, x, *model.terms(x))
        (total, _, _, _, log_weight), _ = lax.scan(temperature, carry, steps)
        return total + (betas[-1] - betas[-2]) * log_weight

    return jax.vmap(particle)(keys)
