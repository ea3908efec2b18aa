"""Checkpoints: a run that is stopped anywhere resumes and gives the identical result."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.runtime import journal

ROOT = Path(__file__).parents[1]

# --- estimates ---


@ep.expectation
def cube(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"cube": x**3, "tail": x > 3.5}


@ep.expectation
def gentle(y: float) -> Any:
    """No part of it needs a scout."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x**2


@ep.expectation
def square(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"cube": x**2, "tail": x > 3.5}


@functools.cache
def bound(method: str) -> Any:
    return gentle(0.5) if method == "adaptive" else cube(2.0)


METHODS: dict[str, Any] = {
    "TABI": ep.TABI(ep.ImportanceSampling(num_samples=200)),
    "annealed": ep.TABI(ep.AnIS(num_samples=50, num_temperatures=5)),
    "each": ep.TABI(ep.AdaptiveIS(max_evaluations=50_000)),
    "self": ep.SelfNormalised(ep.AnIS(num_samples=50, num_temperatures=5)),
    "adaptive": ep.AdaptiveIS(max_evaluations=50_000),
    "Auto": ep.Auto(max_evaluations=50_000, max_seconds=1e4),
    "chains": ep.PosteriorMCMC(num_samples=100, num_warmup=50, kernel=ep.RandomWalk(scale=1.0)),
    "NUTS": ep.PosteriorMCMC(num_samples=100, num_warmup=50),
    "bridge": ep.PosteriorBridge(
        num_samples=100, num_warmup=50, num_islands=2, num_particles=100, num_steps=10
    ),
    "warp": ep.TABI(ep.BridgeSampling(num_samples=100, num_warmup=50, num_chains=2)),
}
QUICK = ["TABI", "adaptive", "chains"]
BUSY = {"method": ep.AdaptiveIS(relative_error=1e-9, max_seconds=2000.0)}


def contents(estimate: ep.Estimate) -> str:
    """Every number of a record except the times, as text that is equal only if they all are."""
    plain = estimate.to_dict()
    for name in ("compile_seconds", "run_seconds"):
        plain.pop(name)
    plain["provenance"].pop("created")
    arrays = jax.tree.map(
        lambda x: np.asarray(x).tobytes().hex() if isinstance(x, np.ndarray) else str(x),
        (estimate.parts, estimate.draws, estimate.paths),
    )
    return json.dumps(plain) + repr(arrays)


def is_interrupted(estimate: ep.Estimate) -> bool:
    return any(
        finding.check == "interruption" for findings in estimate.findings for finding in findings
    )


def estimated(method: str, path: Path | None = None, /, **changes: Any) -> ep.Estimate:
    arguments = {"expectation": bound(method), "method": METHODS[method], "rng_key": 3} | changes
    return ep.estimate_expectation(**arguments, throw=False, checkpoint=path)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C at the heavy call of a number; none for a negative one."""
    original = journal._encoded

    def at(number: int) -> None:
        left = [number]

        def encoded(*args: Any) -> bytes:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return original(*args)

        monkeypatch.setattr(journal, "_encoded", encoded)

    return at


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_interrupted_anywhere_it_resumes_to_the_same(
    method: str, tmp_path: Path, interrupt: Callable[[int], None]
) -> None:
    path = tmp_path / "run.est"
    wanted = contents(estimated(method))
    count = 0
    while True:
        # A few more calls in each attempt.
        interrupt({"adaptive": 7}.get(method, 2))
        with contextlib.suppress(KeyboardInterrupt):  # where nothing was known yet
            result = estimated(method, path)
            if not is_interrupted(result):
                break
        assert path.read_bytes().startswith(journal.MAGIC)
        count += 1
    assert count >= 1 or method in ("chains", "NUTS", "self")
    assert contents(result) == wanted
    assert contents(ep.load(path)) == wanted
    assert list(tmp_path.iterdir()) == [path]


def full_journal(
    method: str, path: Path, monkeypatch: pytest.MonkeyPatch, /, **changes: Any
) -> bytes:
    """The journal of a complete run, stopped before its record was saved."""

    def save(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ep.Estimate, "save", save)
        with pytest.raises(KeyboardInterrupt):
            estimated(method, path, **changes)
    return path.read_bytes()


def test_truncated_or_altered_anywhere_it_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path, rng = tmp_path / "run.est", random.Random(seed)
    wanted = contents(estimated("adaptive"))
    whole = full_journal("adaptive", path, monkeypatch)
    for place in sorted(rng.sample(range(len(whole)), 4)):
        path.write_bytes(whole[:place])
        assert contents(estimated("adaptive", path)) == wanted
        altered = bytearray(whole)
        altered[max(place, 2000)] ^= 0x40
        path.write_bytes(altered)
        assert contents(estimated("adaptive", path)) == wanted


def test_decisions_by_time_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of a run whose time ran out gives its result, however fast it is read."""
    seconds = iter(range(0, 10**6, 300))
    path = tmp_path / "run.est"
    with monkeypatch.context() as patch:
        patch.setattr(journal.time, "monotonic", lambda: float(next(seconds)))
        entries = full_journal("adaptive", path, monkeypatch, **BUSY)
    result = estimated("adaptive", path, **BUSY)
    assert result.status is ep.Status.interrupted
    assert "time" in {finding.check for finding in result.findings[0]}
    # It ran out of time and was not interrupted: this is its result.
    assert contents(ep.load(path)) == contents(result)
    # A stopped clock would have allowed far more.
    assert result.num_evaluations < 0.5 * BUSY["method"].max_evaluations
    path.write_bytes(entries)
    assert contents(estimated("adaptive", path, **BUSY)) == contents(result)


def test_a_finished_run_is_returned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.est"
    first = estimated("TABI", path)
    monkeypatch.setattr(ep.TABI, "run", lambda *_: pytest.fail("it ran again"))
    assert contents(estimated("TABI", path)) == contents(first)
    assert contents(ep.load(path)) == contents(first)


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "another program or changed source": lambda: {"expectation": square(2.0)},
    "other data": lambda: {"expectation": cube(2.5)},
    "another method or other settings": lambda: {
        "method": ep.TABI(ep.ImportanceSampling(num_samples=201))
    },
    "key threefry2x32:0,3 instead of threefry2x32:0,4": lambda: {"rng_key": 4},
    "precision float64 instead of float32": lambda: {"precision": "single"},
}


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_file_of_another_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    path = tmp_path / "run.est"
    if is_finished:
        estimated("TABI", path)
    else:
        full_journal("TABI", path, monkeypatch)
    before = path.read_bytes()
    for words, changes in OTHERS.items():
        with pytest.raises(ep.CheckpointError, match=f"it has {words}[.]"):
            estimated("TABI", path, **changes())
    assert path.read_bytes() == before


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.est"
    estimated("TABI", path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ep.RecordError, match="damaged"):
        estimated("TABI", path)


def test_an_untrusted_estimate_is_kept_and_raised_again(tmp_path: Path) -> None:
    method = ep.TABI(ep.ImportanceSampling(num_samples=3))
    for _ in range(2):
        with pytest.raises(ep.EstimationError):
            ep.estimate_expectation(cube(2.0), method, checkpoint=tmp_path / "run.est")


# --- kill −9 ---

HARNESS = """
import json, os, random, signal, sys, time
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from tests.test_checkpoint import contents, estimated

folder, method, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng = random.Random(sys.argv[4])


def start(path):
    child = os.fork()
    if child == 0:
        try:
            text = contents(estimated(method, path))
            Path(f"{path}.txt").write_text(text)
        finally:
            os._exit(0 if Path(f"{path}.txt").exists() else 1)
    return child


def is_over(child):
    return os.waitpid(child, os.WNOHANG)[0] != 0


# The uninterrupted run says how large a journal becomes, and how long it takes.
whole, began, size = folder / "whole.est", time.monotonic(), 0
child = start(whole)
while not is_over(child):
    if whole.exists() and whole.read_bytes()[:17] == b"estimand-journal ":
        size = max(size, whole.stat().st_size)
    time.sleep(0.001)
duration = time.monotonic() - began

path, landed = folder / "run.est", []
targets = sorted(rng.uniform(0, size) for _ in range(kills))
for target in targets:
    child, began = start(path), time.monotonic()
    moment = rng.uniform(0, duration)
    while not is_over(child):
        grown = path.exists() and path.stat().st_size >= target
        if grown or time.monotonic() - began > moment + duration:
            time.sleep(rng.choice([0.0, rng.uniform(0.0, 0.01), rng.uniform(0.0, 0.2)]))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            landed.append(path.stat().st_size if path.exists() else 0)
            break
    else:
        break
os.waitpid(start(path), 0) if not Path(f"{path}.txt").exists() else None
same = Path(f"{path}.txt").read_text() == Path(f"{whole}.txt").read_text()
print(json.dumps({"same": same, "landed": landed, "size": size}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness forks its victims; Windows cannot")
@pytest.mark.slow
@pytest.mark.parametrize(("method", "kills"), [("adaptive", 5), ("Auto", 20)])
def test_killed_at_random_moments_it_resumes_to_the_same(
    method: str, kills: int, tmp_path: Path, seed: int
) -> None:
    environment = dict(os.environ)
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "cache")
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["PYTHONWARNINGS"] = "ignore"
    arguments = [str(tmp_path), method, str(kills), str(seed)]
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["same"]
    assert len(told["landed"]) >= kills // 2, told
