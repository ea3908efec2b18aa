"""The cells of the calibration: methods, problems and budgets, and the runs of one cell."""

import functools
import math
import statistics
import time
from typing import NamedTuple

import jax

import estimand as ep
from problems import PROBLEMS
from problems.known import known

jax.config.update("jax_enable_x64", True)

BUDGETS = ("small", "medium", "large")
LEVELS = (0.5, 0.8, 0.95, 0.99)
# Runs of a cell that are waited for, up to so many times its seconds; with fewer than the fewest it
# is left out.
MIN_RUNS = 20
PATIENCE = 3
FEWEST = 5

LEFT_OUT = {
    "radon_85": "173 dimensions: a run takes minutes; three are in high_dimension.json",
}
CELLS = (*PROBLEMS, "normal_excess", "equal_modes_10", "unequal_modes_10")


class Method(NamedTuple):
    """Settings for the three budgets, and what a cell of it may take.

    Methods of one family share what they compile for a problem.
    """

    settings: tuple
    seeds: int = 400
    seconds: float = 2.0
    family: str = ""


def _sized(make, *sizes, **limits):
    return Method(tuple(make(size) for size in sizes), **limits)


def _tabi(estimator, *sizes, name="num_samples", **limits):
    return _sized(lambda size: ep.TABI(estimator(**{name: size})), *sizes, **limits)


_SMC = functools.partial(ep.SMC, num_steps=25)
_STANDARD = functools.partial(ep.SMC, num_steps=10, waste_free=False)
_ANIS = functools.partial(ep.AnIS, num_temperatures=50)

METHODS = {
    "TABI(ImportanceSampling)": _tabi(ep.ImportanceSampling, 1_000, 5_000, 25_000),
    "TABI(AnIS)": _tabi(_ANIS, 200, 600, 1_800),
    "TABI(SMC)": _tabi(_SMC, 1_000, 4_000, 10_000, name="num_particles"),
    "TABI(SMC), standard": _tabi(_STANDARD, 200, 800, 3_000, name="num_particles"),
    "TABI(SMC), unbiased": _tabi(
        functools.partial(_STANDARD, schedule=ep.geometric(20), adapt=False),
        *(200, 400, 800),
        name="num_particles",
    ),
    "TABI(SMC), islands": _tabi(
        functools.partial(_SMC, num_islands=8), 500, 1_000, 3_000, name="num_particles"
    ),
    "TABI(AdaptiveIS)": _tabi(
        *(ep.AdaptiveIS, 100_000, 200_000, 500_000),
        name="max_evaluations",
        seconds=4,
        family="mixture",
    ),
    "TABI(BridgeSampling)": _tabi(
        functools.partial(ep.BridgeSampling, num_warmup=300), 200, 600, 1_500, seconds=3
    ),
    "SelfNormalised(AnIS)": _sized(
        lambda size: ep.SelfNormalised(_ANIS(num_samples=size)), 200, 600, 1_800
    ),
    "PosteriorMCMC": _sized(
        lambda size: ep.PosteriorMCMC(num_samples=size, num_warmup=300),
        *(200, 1_000, 4_000),
        seconds=3,
    ),
    "PosteriorBridge": _sized(
        lambda size: ep.PosteriorBridge(
            num_samples=size, num_warmup=300, num_particles=max(500, size)
        ),
        *(200, 600, 1_500),
        seconds=3,
    ),
    "AdaptiveIS": _sized(
        lambda size: ep.AdaptiveIS(max_evaluations=size),
        *(100_000, 300_000, 1_000_000),
        seeds=150,
        seconds=6,
        family="mixture",
    ),
    "Auto": _sized(
        lambda size: ep.Auto(max_evaluations=size),
        *(100_000, 600_000, 4_000_000),
        seeds=100,
        seconds=12,
        family="mixture",
    ),
}


class Cell(NamedTuple):
    """One method on one problem at one budget."""

    method: str
    problem: str
    budget: str

    @property
    def settings(self):
        return METHODS[self.method].settings[BUDGETS.index(self.budget)]


def cells(methods, problems, budgets=BUDGETS):
    """All of them, problem by problem."""
    return [
        Cell(method, problem, budget)
        for problem in problems
        if problem not in LEFT_OUT
        for method in methods
        for budget in budgets
    ]


def batches(some):
    """Cells that one process runs in sequence, since they share compiled programs."""
    found = {}
    for cell in some:
        family = METHODS[cell.method].family or cell.method
        found.setdefault((cell.problem, family), []).append(cell)
    return sorted(found.values(), key=_longest, reverse=True)


def _longest(batch):
    return sum(METHODS[cell.method].seconds for cell in batch)


# --- the runs of one cell ---


def measured(cell, seeds, seconds, min_runs=MIN_RUNS):
    """The runs of a cell, or why there are none. Seconds are CPU time.

    The first run, which compiles, is not counted; where `min_runs` need more time than that, up to
    `PATIENCE` times as much is taken.
    """
    found = {**cell._asdict(), "settings": repr(cell.settings), "runs": []}
    problem, taken = known(cell.problem), []
    try:
        for seed in range(seeds):
            began = time.process_time()
            result = ep.estimate_expectation(
                problem.expectation, cell.settings, rng_key=seed, throw=False
            )
            found["runs"].append(_numbers(result, problem))
            taken.append(time.process_time() - began)
            spent, count = sum(taken[1:]), len(taken)
            if spent > seconds and (count >= min_runs or spent > PATIENCE * seconds):
                break
    except ep.ProgramError as error:
        found["refused"] = str(error)
    except Exception as error:  # noqa: BLE001  (what a method must not do is what is looked for)
        found["error"] = f"{type(error).__name__}: {error}"
    else:
        found["first_seconds"] = taken[0]
        found["seconds"] = statistics.median(taken[1:] or taken)
    return found


def _numbers(result, problem):
    """One run: the cost, log Z over the truth, and for each output the report and its error."""
    bounds = [result.bounds(level) for level in LEVELS]
    outputs = []
    for number, (item, status) in enumerate(zip(result.outputs, result.statuses, strict=True)):
        truth, scale = problem.values[number], problem.scales[number]
        covered = sum(bool(ends[number][0] <= truth <= ends[number][1]) for ends in bounds)
        outputs.append(
            [
                _short((item.value - truth) / scale),
                _short(item.standard_error / scale),
                status.name,
                covered,
            ]
        )
    return {
        "cost": result.num_evaluations + 3 * result.num_gradients,
        "log_z": [_short(value) for value in _log_ratios(result.outputs[0].parts, problem)],
        "outputs": outputs,
    }


def _log_ratios(parts, problem):
    """log Ẑ − log Z of Z2, and of Z1⁺ and Z1⁻ of the first output; NaN where there is none."""
    found = [parts.log_z(field) for field in ("normaliser", "plus", "minus")]
    return [
        estimate - truth if math.isfinite(truth) else math.nan
        for estimate, truth in zip(found, problem.log_z, strict=True)
    ]


def _short(number):
    return float(f"{number:.6g}")
