"""The door for simulators: what goes out, what comes back, and what is said when it does not."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.density import Density
from estimand.model import SimulatorExpectation
from tests import stats

PLANE = {"x": dist.Normal(0.0, 1.0).expand([2]).to_event(1)}


def parabola(points: dict[str, np.ndarray]) -> np.ndarray:
    """RP22, whose failure probability is known."""
    x = points["x"]
    return 2.5 - x.sum(axis=1) / np.sqrt(2) + 0.1 * (x[:, 0] - x[:, 1]) ** 2


def parabola_at(point: dict[str, np.ndarray]) -> float:
    return float(parabola({"x": point["x"][None]})[0])


def is_negative(sites: dict[str, Any], margin: jax.Array) -> jax.Array:
    return margin < 0


def failure_of(simulate: Callable, **settings: Any) -> SimulatorExpectation:
    return ep.from_simulator(simulate, prior=PLANE, f=is_negative, **settings)()


def few(**settings: Any) -> ep.Economical:
    return ep.Economical(**({"max_evaluations": 120} | settings))


# --- what a program is ---


def test_density_and_f_share_one_call() -> None:
    """The same log densities and outputs as the program written in NumPyro."""
    calls = []

    def simulate(points: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(len(points["a"]))
        return {"sum": points["a"] + points["b"], "pair": np.stack([points["a"]] * 2, axis=1)}

    def likelihood(sites: Any, found: Any, y: jax.Array) -> jax.Array:
        numpyro.sample("y", dist.Normal(found["sum"], 1.0), obs=y)
        return jnp.sum(jax.scipy.stats.norm.logpdf(found["pair"], 0.5))

    prior = {"b": dist.Gamma(2.0, 1.0), "a": dist.Normal(0.0, 2.0)}
    program = ep.from_simulator(
        simulate,
        prior=prior,
        likelihood=likelihood,
        f=lambda sites, found: (sites["a"] * found["sum"], found["pair"][1] > 1.0),
        outputs={"sum": (), "pair": (2,)},
    )

    def model(y: jax.Array) -> Any:
        b = numpyro.sample("b", prior["b"])
        a = numpyro.sample("a", prior["a"])
        numpyro.sample("y", dist.Normal(a + b, 1.0), obs=y)
        numpyro.factor("pair", 2 * jax.scipy.stats.norm.logpdf(a, 0.5))
        return a * (a + b), a > 1.0

    y = jnp.asarray([0.3, 1.2])
    one, other = Density.of(program(y)), Density.of(ep.expectation(model)(y))
    positions = np.random.default_rng(0).normal(size=(1000, 2))

    def evaluated(density: Density) -> Any:
        return jax.jit(jax.vmap(density.evaluate))(jnp.asarray(positions))

    for here, there in zip(
        jax.tree.leaves(evaluated(one)), jax.tree.leaves(evaluated(other)), strict=True
    ):
        np.testing.assert_allclose(here, there, rtol=1e-12, atol=1e-12)
    assert calls == [1000]
    assert one.has_comparisons
    assert len(program(y)) == 2
    assert program(y)[1].output is not None


def test_points_arrive_with_all_digits() -> None:
    seen = []

    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        seen.append(points["x"])
        return points["x"][:, 0]

    bound = failure_of(simulate)
    positions = jnp.asarray([[1 / 3, 2 / 3], [1e-9, 7.0]])
    found = jax.vmap(lambda u: Density.of(bound).model.evaluate(u, ()).outputs)(positions)
    assert (seen[-1] == np.asarray(positions)).all()
    assert found.shape == (2, 1)


def test_the_default_method_is_economical_and_auto_works() -> None:
    bound = failure_of(parabola)
    result = ep.estimate_expectation(bound)
    assert result.method == "Economical()"
    assert "Economical" in result.diagnostics["notes"][0]
    stats.assert_estimate(result.value, result.standard_error, 4.20730551e-3)


@pytest.mark.slow
def test_auto_runs_a_cheap_simulator() -> None:
    result = ep.estimate_expectation(failure_of(parabola), ep.Auto())
    stats.assert_estimate(result.value, result.standard_error, 4.20730551e-3)


def test_a_prior_may_be_a_numpyro_model() -> None:
    def prior() -> None:
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.1))
        numpyro.sample("x", dist.Normal(0.0, scale))

    program = ep.from_simulator(
        lambda points: 3.0 * points["scale"] - points["x"], prior=prior, f=is_negative
    )
    result = ep.estimate_expectation(program(), few(), throw=False)
    assert program().simulator.job.inputs.names == ("scale", "x")
    stats.assert_estimate(result.value, result.standard_error, 1.3498980e-3)


# --- failures ---


def test_one_point_that_fails_does_not_lose_the_others() -> None:
    """In a batch the culprit is found; its point and its error are told."""

    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        if (points["x"][:, 0] < -1.8).any():
            raise ZeroDivisionError("singular stiffness")
        return parabola(points)

    result = ep.estimate_expectation(failure_of(simulate), few())
    notes = " ".join(result.diagnostics["notes"])
    assert "ZeroDivisionError: singular stiffness at x=[" in notes
    # It fails where the surrogate knows that nothing is.
    stats.assert_estimate(result.value, result.standard_error, 4.20730551e-3)


def test_failures_where_there_could_be_mass_are_a_finding() -> None:
    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        margin = parabola(points)
        return np.where(margin < -0.2, np.nan, margin)

    result = ep.estimate_expectation(failure_of(simulate), few(), throw=False)
    assert result.status is ep.Status.nan_density
    assert any("gave nan at x=[" in str(finding) for finding in result.findings[0])


def test_a_simulator_that_always_fails_is_refused() -> None:
    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        raise OSError("no licence")

    with pytest.raises(ep.SimulatorError, match=r"fails at every point.*OSError: no licence"):
        ep.estimate_expectation(failure_of(simulate), few())


def test_a_simulator_that_fails_at_most_points_is_refused() -> None:
    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        return np.where(points["x"][:, 0] > 0.5, parabola(points), np.nan)

    with pytest.raises(ep.SimulatorError, match=r"failed at \d+ of the first 24 points: gave"):
        ep.estimate_expectation(failure_of(simulate), few())


@pytest.mark.parametrize(
    ("simulate", "settings", "message"),
    [
        (lambda points: 1.0, {}, r"has shape \(\) for 24 points, and \(24,\) was expected"),
        (lambda points: points["x"], {}, r"has shape \(24, 2\).*outputs="),
        (lambda points: {"g": points["x"][:, 0]}, {}, r"gave a dict.*outputs=\{'g': \(\)\}"),
        (
            lambda points: points["x"][:, 0],
            {"outputs": {"g": ()}},
            r"must give a dict with \['g'\]",
        ),
        (lambda points: ["a"] * len(points["x"]), {}, "not an array of real numbers"),
        (lambda point: np.ones(3), {"per_point": True}, r"has shape \(3,\) for a point"),
    ],
)
def test_wrong_shapes_are_named(simulate: Callable, settings: dict, message: str) -> None:
    def f(sites: Any, found: Any) -> jax.Array:
        return sites["x"][0] > 0

    program = ep.from_simulator(simulate, prior=PLANE, f=f, **settings)
    with pytest.raises(ep.SimulatorError, match=message):
        ep.estimate_expectation(program(), few())


def test_a_stochastic_simulator_is_refused() -> None:
    rng = np.random.default_rng(0)

    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        return parabola(points) + 0.01 * rng.normal(size=len(points["x"]))

    with pytest.raises(ep.SimulatorError, match="must be deterministic"):
        ep.estimate_expectation(failure_of(simulate), few())


def test_wrong_statements_are_refused_before_any_call() -> None:
    with pytest.raises(TypeError, match=r"from_simulator: f must be a function"):
        ep.from_simulator(parabola, prior=PLANE, f=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"at 'x' it has 1.0"):
        ep.from_simulator(parabola, prior={"x": 1.0}, f=is_negative)
    with pytest.raises(ValueError, match=r"outputs must be a shape"):
        ep.from_simulator(parabola, prior=PLANE, f=is_negative, outputs=(0,))
    with pytest.raises(TypeError, match=r"executor must be a concurrent.futures.Executor"):
        failure_of(parabola, executor=4)
    with pytest.raises(ep.ProgramError, match="outputs as Python numbers"):
        ep.from_simulator(parabola, prior=PLANE, f=lambda sites, g: float(g) > 0)()
    with pytest.raises(FileNotFoundError, match="no such folder"):
        failure_of(parabola, evaluations="/nowhere/evaluations.jsonl")


def test_methods_that_need_gradients_say_so() -> None:
    with pytest.raises(ep.ProgramError, match="has no gradients"):
        ep.estimate_expectation(failure_of(parabola), ep.TABI(ep.AnIS(kernel=ep.HMC())))


# --- files ---


class Counting:
    """A simulator that counts its points."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, points: dict[str, np.ndarray]) -> np.ndarray:
        self.count += len(points["x"])
        return parabola(points)


def test_evaluations_are_kept_and_not_repeated(tmp_path: Path) -> None:
    """A later run with a larger budget goes on from the same points."""
    path, one, other = tmp_path / "calls.jsonl", Counting(), Counting()
    small = few(max_evaluations=100, relative_error=1e-4)
    large = few(max_evaluations=130, relative_error=1e-4)
    first = ep.estimate_expectation(failure_of(one, evaluations=path), small, throw=False)
    assert one.count == first.num_evaluations <= 100
    again = ep.estimate_expectation(failure_of(other, evaluations=path), small, throw=False)
    assert other.count == 0
    assert again.value == first.value
    assert "known from before" in " ".join(again.diagnostics["notes"])
    more = ep.estimate_expectation(failure_of(other, evaluations=path), large, throw=False)
    assert 0 < other.count <= 70
    fresh = ep.estimate_expectation(failure_of(Counting()), large, throw=False)
    assert more.value == fresh.value
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["inputs"] == {"x": [2]}
    assert len(json.loads(lines[1])["point"]) == 2


def test_a_run_that_is_cut_off_resumes(tmp_path: Path) -> None:
    """At a point, in the middle of a line: what is whole is not simulated again."""
    path, one = tmp_path / "calls.jsonl", Counting()

    class Stop(BaseException):
        pass

    def until_fifty(points: dict[str, np.ndarray]) -> np.ndarray:
        if one.count >= 50:
            raise Stop
        return one(points)

    with pytest.raises(Stop):
        ep.estimate_expectation(failure_of(until_fifty, evaluations=path), few())
    with path.open("a") as file:
        file.write('{"point": [0.1, 0.')
    known = len(path.read_text().splitlines()) - 2
    other = Counting()
    result = ep.estimate_expectation(failure_of(other, evaluations=path), few())
    assert other.count <= result.num_evaluations - known
    fresh = ep.estimate_expectation(failure_of(Counting()), few())
    assert result.value == fresh.value


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping\n")
    with pytest.raises(ep.ProgramError, match="no evaluations of a simulator"):
        failure_of(parabola, evaluations=path)
    path.unlink()
    ep.estimate_expectation(failure_of(parabola, evaluations=path), few())
    with pytest.raises(ep.ProgramError, match="of another simulator"):
        ep.from_simulator(
            lambda p: p["y"], prior={"y": dist.Normal(0, 1)}, f=is_negative, evaluations=path
        )()


def test_failures_are_kept_in_the_file(tmp_path: Path) -> None:
    path, counting = tmp_path / "calls.jsonl", Counting()

    def simulate(point: dict[str, np.ndarray]) -> float:
        if point["x"][0] < -1.8:
            raise ValueError("no convergence")
        return float(counting({"x": point["x"][None]})[0])

    def run() -> ep.Estimate:
        bound = failure_of(simulate, per_point=True, evaluations=path)
        return ep.estimate_expectation(bound, few(), throw=False)

    first, count = run(), counting.count
    assert "no convergence" in path.read_text()
    assert run().value == first.value
    assert counting.count == count


def test_checkpoints_work_too(tmp_path: Path) -> None:
    """A run that was cut off goes on from its checkpoint, to the same result."""
    path, count = tmp_path / "run.est", tmp_path / "count"
    (tmp_path / "stop").touch()

    def simulate(points: dict[str, np.ndarray]) -> np.ndarray:
        with count.open("a") as file:
            file.write("." * len(points["x"]))
        if (tmp_path / "stop").exists() and count.stat().st_size > 60:
            raise KeyboardInterrupt
        return parabola(points)

    with pytest.raises(ep.EstimationError, match=r"stopped by Ctrl-C"):
        ep.estimate_expectation(failure_of(simulate), few(), checkpoint=path)
    before = count.stat().st_size
    (tmp_path / "stop").unlink()
    result = ep.estimate_expectation(failure_of(simulate), few(), checkpoint=path)
    assert count.stat().st_size < before + result.num_evaluations - 24
    assert result.value == ep.estimate_expectation(failure_of(parabola), few()).value
    again = ep.estimate_expectation(failure_of(simulate), few(), checkpoint=path)
    assert again.value == result.value


# --- executors and executables ---


def test_threads_give_the_same_numbers() -> None:
    places = set()

    def simulate(point: dict[str, np.ndarray]) -> float:
        places.add(threading.current_thread().name)
        return parabola_at(point)

    with ThreadPoolExecutor(2) as pool:
        result = ep.estimate_expectation(failure_of(simulate, per_point=True, executor=pool), few())
    alone = ep.estimate_expectation(failure_of(parabola_at, per_point=True), few())
    assert result.value == alone.value
    assert any("ThreadPool" in place for place in places)


def test_functions_that_cannot_be_sent_are_refused_at_once() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(ep.ProgramError, match="top level"):
        failure_of(lambda points: parabola(points), executor=pool)


@pytest.mark.slow
def test_processes_give_the_same_numbers() -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        result = ep.estimate_expectation(failure_of(parabola, executor=pool), few())
    assert result.value == ep.estimate_expectation(failure_of(parabola), few()).value


SOLVER = """
import json, sys
x = json.load(sys.stdin)["x"]
if x < -2.5:
    sys.exit("the solver did not converge")
print("noise of the solver", file=sys.stderr)
print(3.0 - x)
"""


def test_an_executable_is_a_simulator() -> None:
    """A process for each point; the exit code is told with the point."""
    command = ep.Command([sys.executable, "-S", "-E", "-c", SOLVER])
    with ThreadPoolExecutor(2) as pool:
        program = ep.from_simulator(
            command,
            prior={"x": dist.Normal(0.0, 1.0)},
            f=is_negative,
            per_point=True,
            executor=pool,
        )
        result = ep.estimate_expectation(program(), ep.Economical(max_evaluations=80))
    stats.assert_estimate(result.value, result.standard_error, 1.3498980e-3)
    failures = [note for note in result.diagnostics["notes"] if "failed" in note]
    assert failures
    assert all("exit code 1: the solver did not converge at x=-" in note for note in failures)


def test_commands_with_files(tmp_path: Path) -> None:
    script = tmp_path / "solver.py"
    script.write_text(
        "x, y = map(float, open('input.txt').read().split())\n"
        "open('output.txt', 'w').write(str(x * y))\n"
    )

    def write(point: dict[str, Any], folder: Path) -> None:
        (folder / "input.txt").write_text(f"{point['x']} {point['y']}")

    def read(folder: Path, printed: str) -> float:
        return float((folder / "output.txt").read_text())

    command = ep.Command([sys.executable, str(script)], write=write, read=read)
    assert command({"x": 3.0, "y": 2.0}) == 6.0


def test_commands_say_what_went_wrong() -> None:
    def run(code: str, **settings: Any) -> Any:
        return ep.Command([sys.executable, "-S", "-c", code], **settings)({"x": np.ones(2)})

    assert run("import sys; print(sys.stdin.read())") == {"x": [1.0, 1.0]}
    with pytest.raises(RuntimeError, match=r"ended with exit code 3: broken$"):
        run("import sys; print('broken', file=sys.stderr); sys.exit(3)")
    with pytest.raises(RuntimeError, match="not JSON: 'done'"):
        run("print('done')")
    with pytest.raises(RuntimeError, match=r"took more than 0.2 s"):
        run("import time; time.sleep(5)", timeout=0.2)
    with pytest.raises(TypeError, match="expected a list of words"):
        ep.Command("./solver --quiet")
