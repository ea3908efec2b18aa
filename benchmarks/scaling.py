"""One estimate on 1, 2, 4, … processes: seconds, speed-up and efficiency.

The model is a simulator in NumPy that takes about 10 ms of one core, called back by JAX. A process
is started and has imported everything before the clock runs, because pools outlive estimates; what
it has to trace and compile is in the time. Every result must be the same to the last bit.

    python -m benchmarks.run scaling --workers=1,2,4,8,16

takes about six minutes on 16 cores.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, wait

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep
from benchmarks.measure import parser

GOAL = 0.7  # the least efficiency at 16 workers
# As a user would call it, and small enough for one worker to finish in some minutes.
METHOD = ep.Auto(relative_error=0.003)
NUM_STEPS = 200


def simulate(position, num_copies):
    """Where a swing with friction is after some time; copies of it only take time."""
    start, push = np.asarray(position)
    angle, speed = np.full(num_copies, start), np.full(num_copies, push)
    for _ in range(NUM_STEPS):
        speed = 0.999 * speed - 0.01 * np.sin(angle)
        angle = angle + 0.01 * speed
    return np.asarray(angle[0], np.asarray(position).dtype)


def program_of(num_copies):
    @ep.expectation
    def swing(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        shape = jax.ShapeDtypeStruct((), x.dtype)
        end = jax.pure_callback(
            lambda position: simulate(position, num_copies), shape, x, vmap_method="sequential"
        )
        numpyro.sample("y", dist.Normal(end, 0.1), obs=y)
        return x[1] ** 2

    return swing(0.7)


def copies_for(milliseconds):
    """Copies in the simulator with which it takes so long on this machine."""

    def taken(num_copies):
        times = []
        for _ in range(7):
            began = time.perf_counter()
            simulate(np.ones(2), num_copies)
            times.append(time.perf_counter() - began)
        return 1000 * min(times)

    least, more = taken(1), taken(2000)
    return max(1, round(2000 * (milliseconds - least) / (more - least)))


def waited(seconds):
    """A task that no process can do twice while others have not yet begun."""
    time.sleep(seconds)
    return ep.__version__


def measured(program, num_workers):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        began = time.perf_counter()
        wait([pool.submit(waited, 1.0) for _ in range(num_workers)])
        starting = time.perf_counter() - began
        began = time.perf_counter()
        result = ep.estimate_expectation(program, METHOD, throw=False, executor=pool)
        return result, time.perf_counter() - began, starting


def main(argv=None):
    options = parser(__doc__)
    options.add_argument("--workers", default=None, help="numbers of processes, as 1,2,4,8,16")
    options.add_argument("--milliseconds", type=float, default=None, help="of one evaluation")
    given = options.parse_args(argv)
    workers = [int(number) for number in (given.workers or "1,2").split(",")]
    milliseconds = given.milliseconds or (2.0 if given.quick else 10.0)
    num_copies = copies_for(milliseconds)
    program = program_of(num_copies)
    print(f"about {milliseconds:g} ms an evaluation ({num_copies:,} copies)", flush=True)
    print("workers  seconds  speed-up  efficiency  starting  result", flush=True)
    rows = []
    for number in workers:
        result, seconds, starting = measured(program, number)
        first = rows[0] if rows else {"workers": number, "seconds": seconds}
        speed_up = first["workers"] * first["seconds"] / seconds
        row = {
            "workers": number,
            "seconds": seconds,
            "speed_up": speed_up,
            "efficiency": speed_up / number,
            "starting_seconds": starting,
            "evaluations": result.num_evaluations,
            "value": float(result.value).hex(),
            "standard_error": float(result.standard_error).hex(),
            "status": result.status.name,
            "notes": list(result.run.notes),
        }
        rows.append(row)
        print(
            f"{number:7d}  {seconds:7.1f}  {speed_up:8.2f}  {row['efficiency']:10.2f}  "
            f"{starting:8.1f}  {result.value:.6g} ± {result.standard_error:.2g}",
            flush=True,
        )
    is_same = len({(row["value"], row["standard_error"]) for row in rows}) == 1
    print(
        f"{rows[0]['evaluations']:,} evaluations; results are {'' if is_same else 'NOT '}the same"
    )
    assert is_same
    return {"milliseconds": milliseconds, "goal": GOAL, "rows": rows}


if __name__ == "__main__":
    main()
