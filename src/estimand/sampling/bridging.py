"""Bridge sampling between two sets of draws (Meng and Wong 1996)."""

from __future__ import annotations

import math

import numpy as np
from numpyro.diagnostics import effective_sample_size as autocorrelation_size

from estimand.sampling.weights import log_mean


def meng_wong(log_drawn: np.ndarray, log_normal: np.ndarray) -> tuple[float, float]:
    """log Z and its relative variance from log density ratios at the draws and at normals.

    `log_drawn` has shape (chains, draws); its effective size, by the autocorrelation of what is
    averaged there, takes the place of its size in the optimal bridge.
    """
    log_z = float(np.median(log_drawn))
    effective = float(log_drawn.size)
    drawn_terms = log_drawn
    for _ in range(3):
        share = effective / (effective + log_normal.size)
        log_shares = math.log(share), math.log1p(-share)
        for _ in range(1000):
            drawn_terms = -np.logaddexp(log_shares[0] + log_drawn - log_z, log_shares[1])
            normal_terms = (
                log_normal - log_z - np.logaddexp(log_shares[0] + log_normal - log_z, log_shares[1])
            )
            change = log_mean(normal_terms) - log_mean(drawn_terms)
            log_z += change
            if abs(change) < 1e-10:
                break
        values = np.exp(drawn_terms - drawn_terms.max())
        if values.min() < values.max():
            # NumPyro 0.21 has no size for draws of which a chain stands still.
            size = np.nan_to_num(autocorrelation_size(values), nan=2.0)
            effective = float(np.clip(size, 2.0, values.size))
    drawn, normal = np.exp(drawn_terms), np.exp(normal_terms)
    variance = drawn.var() / drawn.mean() ** 2 / effective
    variance += normal.var() / normal.mean() ** 2 / normal.size
    return log_z, float(variance)
