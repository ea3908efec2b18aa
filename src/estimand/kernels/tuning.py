"""From a kernel's settings to arrays: step sizes and metric, one entry per temperature."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from estimand.density import Density
from estimand.kernels.protocol import Tuning
from estimand.settings import require_positive

# --- from settings to arrays ---


def tuning_of(
    owner: str,
    density: Density,
    num_temperatures: int,
    *,
    scale: tuple[str, Any],
    metric: tuple[str, Any],
) -> Tuning:
    """Arrays with one entry per temperature from a kernel's settings, each given by name."""
    scale_name, value = scale
    factor = _factor(owner, density.layout.num_continuous, num_temperatures, *metric)
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        scales = _site_scales(owner, density, dict(value))
        factor = factor * (scales if factor.ndim == 2 else scales[..., None])
        value = 1.0
    steps = np.asarray(value)
    if steps.ndim == 1 and steps.size != num_temperatures:
        raise ValueError(
            f"{owner}: {scale_name} has {steps.size} entries for {num_temperatures} temperatures."
        )
    dtype = jnp.result_type(float)
    arrays: Any = (
        np.broadcast_to(steps, (num_temperatures,)),
        np.broadcast_to(factor, (num_temperatures, *factor.shape[1:])),
        np.zeros((num_temperatures, density.layout.num_continuous)),
    )
    return Tuning(*(array.astype(dtype) for array in arrays))


def _factor(
    owner: str, dimension: int, num_temperatures: int, name: str, metric: Any
) -> np.ndarray:
    """Square roots of a metric: shape (1 or T, d) for diagonal ones, (1 or T, d, d) for dense."""
    if metric is None:
        return np.ones((1, dimension))
    array = np.asarray(metric)
    dense, diagonal = (dimension, dimension), (dimension,)
    per_temperature = (num_temperatures, dimension)
    if array.shape == dense == per_temperature and dimension > 1:
        raise ValueError(
            f"{owner}: {name} of shape {array.shape} may be one matrix or a diagonal for each of "
            f"the {num_temperatures} temperatures: give it with shape {(1, *dense)} or "
            f"{(num_temperatures, *dense)}."
        )
    if array.shape in (diagonal, per_temperature) and array.shape != dense:
        require_positive(owner, name, array)
        return np.sqrt(np.atleast_2d(array))
    if array.shape in (dense, (1, *dense), (num_temperatures, *dense)):
        try:
            return np.linalg.cholesky(array.reshape(-1, *dense))
        except np.linalg.LinAlgError:
            raise ValueError(f"{owner}: {name} must be positive definite.") from None
    raise ValueError(
        f"{owner}: {name} has shape {array.shape}; for {dimension} continuous dimensions it must "
        f"be {diagonal}, {dense}, {per_temperature} or {(num_temperatures, *dense)}."
    )


def _site_scales(owner: str, density: Density, scales: dict[str, Any]) -> np.ndarray:
    continuous = [site for site in density.layout.sites if not site.is_discrete]
    names = [site.name for site in continuous]
    for name in scales:
        if name not in names:
            raise ValueError(
                f"{owner}: scale names {name!r}, which is not a continuous site of program "
                f"{density.name!r}; it has {names}."
            )
    pieces = []
    for site in continuous:
        if site.name not in scales:
            raise ValueError(f"{owner}: scale has no entry for site {site.name!r}.")
        value = np.asarray(scales[site.name])
        try:
            pieces.append(np.broadcast_to(value, site.coordinate_shape).reshape(site.size))
        except ValueError:
            raise ValueError(
                f"{owner}: scale of site {site.name!r} has shape {value.shape}; its "
                f"unconstrained shape is {site.coordinate_shape}."
            ) from None
    return np.concatenate(pieces)[None]
