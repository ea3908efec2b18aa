"""The cache of compiled code on disk: who uses it, what it holds, and that it is safe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from estimand.runtime import cache, cache_on_disk

FOLDER = "jax_compilation_cache_dir"
LEAST = "jax_persistent_cache_min_compile_time_secs"

CHILD = """
import json, jax, numpyro, numpyro.distributions as dist, estimand as ep

counts = {"cache_hits": 0, "cache_misses": 0}

def count(event, **_):
    name = event.rsplit("/", 1)[-1]
    if name in counts:
        counts[name] += 1

jax.monitoring.register_event_listener(count)

@ep.expectation
def program(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return x > 2.5

result = ep.estimate_expectation(program(1.0), throw=False)
folder = jax.config.jax_compilation_cache_dir
print(json.dumps(counts | {"value": result.value, "folder": folder}))
"""


def child(**variables: str) -> dict[str, Any]:
    """What a fresh process says of its cache."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD],
        env={k: v for k, v in os.environ.items() if k != cache.VARIABLE} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    first = child(ESTIMAND_CACHE=str(tmp_path))
    second = child(ESTIMAND_CACHE=str(tmp_path))
    num_programs = first["cache_misses"]
    assert num_programs > 2
    # Whole executables are loaded: nothing is traced, and JAX's cache is not asked.
    assert len(list(tmp_path.rglob(f"*{cache.KEPT}"))) == num_programs
    assert second["cache_misses"] == second["cache_hits"] == 0
    assert second["value"] == first["value"]
    assert second["folder"] is None
    # What is not there is taken from JAX's cache, and what came from there is not written.
    for path in tmp_path.rglob(f"*{cache.KEPT}"):
        path.unlink()
    third = child(ESTIMAND_CACHE=str(tmp_path))
    assert (third["cache_misses"], third["cache_hits"]) == (0, num_programs)
    assert third["value"] == first["value"]
    assert not list(tmp_path.rglob(f"*{cache.KEPT}"))


def test_damaged_files_are_made_again(tmp_path: Path) -> None:
    first = child(ESTIMAND_CACHE=str(tmp_path))
    for path in tmp_path.rglob("*-*"):
        path.write_bytes(path.read_bytes()[:200])
    second = child(ESTIMAND_CACHE=str(tmp_path))
    assert second["value"] == first["value"]
    assert second["cache_misses"] == first["cache_misses"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = child(HOME=str(tmp_path / "file"), XDG_CACHE_HOME="")
    assert found["cache_hits"] == found["cache_misses"] == 0


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path) -> None:
    environment = os.environ | {"ESTIMAND_CACHE": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", CHILD]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 4, outputs
    assert len({json.loads(out.splitlines()[-1])["value"] for out, _ in outputs}) == 1
    assert child(ESTIMAND_CACHE=str(tmp_path))["cache_misses"] == 0


def test_settings_are_there_only_in_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    before = getattr(jax.config, FOLDER), getattr(jax.config, LEAST)
    with cache_on_disk():
        inside = getattr(jax.config, FOLDER)
        assert Path(inside).parent == tmp_path
        assert getattr(jax.config, LEAST) == 0.0
        with cache_on_disk():
            assert getattr(jax.config, FOLDER) == inside
        assert getattr(jax.config, FOLDER) == inside
    assert (getattr(jax.config, FOLDER), getattr(jax.config, LEAST)) == before


def test_the_users_own_cache_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "ours"))
    before = getattr(jax.config, LEAST)
    jax.config.update(FOLDER, str(tmp_path / "theirs"))
    try:
        with cache_on_disk():
            assert getattr(jax.config, FOLDER) == str(tmp_path / "theirs")
            assert getattr(jax.config, LEAST) == before
    finally:
        jax.config.update(FOLDER, None)


@pytest.mark.parametrize("word", ["off", "OFF", "0", "none"])
def test_the_switch(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, word)
    with cache_on_disk():
        assert getattr(jax.config, FOLDER) is None


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / "machine" / f"{number}{cache.KEPT if number % 2 else cache.JAX_KEPT}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    cache.trim(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.rglob("*-*")) == ["3-executable", "4-cache"]


def test_machines_do_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cache.machine()
    monkeypatch.setattr("platform.machine", lambda: "another")
    assert cache.machine() != one
