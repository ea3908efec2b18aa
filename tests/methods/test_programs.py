"""How many programs the default method compiles: a few, and as many for five outputs as for one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

CHILD = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist, estimand as ep
from estimand.runtime import CompilationClock

names = []

def note(event, duration_secs, fun_name=None, **_):
    if event.endswith("backend_compile_duration"):
        names.append(fun_name)

jax.monitoring.register_event_duration_secs_listener(note)
dimension, num_outputs = int(sys.argv[1]), int(sys.argv[2])

@ep.expectation
def program(y):
    x = numpyro.sample("x", dist.Normal(jnp.zeros(dimension), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)
    thresholds = 3.0 + 0.2 * jnp.arange(num_outputs)
    return x[0] > thresholds if num_outputs > 1 else x[0] > 3.0

result = ep.estimate_expectation(program(np.ones(dimension, np.float32)), throw=False)
print(json.dumps({"names": names, "status": result.status.name}))
"""


def programs(dimension: int, num_outputs: int) -> list[str]:
    """The names of all programs that a fresh process compiles for one answer."""
    command = [sys.executable, "-c", CHILD, str(dimension), str(num_outputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == "ok"
    return sorted(found["names"])


@pytest.mark.parametrize(
    ("dimension", "at_most"),
    [
        (2, 4),
        pytest.param(8, 6, marks=pytest.mark.slow),
        pytest.param(14, 7, marks=pytest.mark.slow),
    ],
)
def test_programs_are_few_and_the_same_for_one_output_as_for_five(
    dimension: int, at_most: int
) -> None:
    one, five = programs(dimension, 1), programs(dimension, 5)
    assert len(one) <= at_most, one
    own = [name for name in one if name.startswith("jit(_")]
    assert own == [name for name in five if name.startswith("jit(_")]
    # The threshold array of the second program is made by the program's own code.
    assert len(five) <= len(one) + 3, five
