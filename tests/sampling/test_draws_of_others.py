"""Posterior draws in ArviZ's containers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm

import estimand as ep

xarray = pytest.importorskip("xarray")

program = ep.from_density(
    lambda v, y: jnp.sum(norm.logpdf(y, v["x"], 1.0)),
    prior={"x": dist.Normal(0.0, 1.0).expand([2])},
    f=lambda v: v["x"][0],
)


def posterior() -> Any:
    """Draws with their axes in another order, and a variable that is no site."""
    values = np.random.default_rng(0).normal(0.5, np.sqrt(0.5), size=(2, 300, 4))
    return xarray.Dataset(
        {"x": (("place", "draw", "chain"), values), "square": (("draw",), values[0, :, 0] ** 2)}
    )


def containers() -> dict[str, Any]:
    dataset = posterior()
    tree = xarray.DataTree.from_dict({"posterior": dataset, "sample_stats": xarray.Dataset()})
    return {
        "DataTree": tree,
        "its group": tree["posterior"],
        "Dataset": dataset,
        "InferenceData": SimpleNamespace(posterior=dataset),
    }


@pytest.mark.parametrize("kind", ["DataTree", "its group", "Dataset", "InferenceData"])
@pytest.mark.parametrize("setting", [ep.BridgeSampling, ep.PosteriorBridge])
def test_draws_become_arrays_by_site(kind: str, setting: Any) -> None:
    method = setting(draws=containers()[kind])
    assert list(method.draws) == ["x"]
    expected = posterior()["x"].values.transpose(2, 1, 0)
    np.testing.assert_array_equal(method.draws["x"], expected)


def test_the_answer_is_that_of_a_dict() -> None:
    bound = program(jnp.ones(2))
    by_name = {"x": posterior()["x"].values.transpose(2, 1, 0)}
    one, other = (
        ep.log_evidence(bound, ep.BridgeSampling(draws=draws))
        for draws in (by_name, containers()["DataTree"])
    )
    assert one.log_z == other.log_z


def test_what_is_refused() -> None:
    without = xarray.DataTree.from_dict({"prior": posterior()})
    for draws in (without, 3.0, "draws"):
        with pytest.raises(TypeError, match="BridgeSampling: draws is of type"):
            ep.BridgeSampling(draws=draws)
    with pytest.raises(ValueError, match=r"no dimension \['chain'\]"):
        ep.PosteriorBridge(draws=posterior().isel(chain=0))
    lacking = containers()["DataTree"].copy()
    lacking["posterior"] = posterior().rename(x="z")
    with pytest.raises(ep.ProgramError, match="no entry for site 'x'"):
        ep.log_evidence(program(jnp.ones(2)), ep.BridgeSampling(draws=lacking))
