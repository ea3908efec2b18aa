"""Files from others: reading them runs none of their code, and pages show it as text."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import io
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import estimand as ep
from estimand.record import Contents, with_parts
from estimand.record import storage as records
from estimand.trust import Finding, Status

SOURCE = Path(ep.__file__).parent


class Malice:
    """An object that makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


@ep.expectation
def square(y: float) -> Any:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return {"a": x**2, "b": x}


@functools.cache
def estimate() -> ep.Estimate:
    method = ep.TABI(ep.ImportanceSampling(num_samples=500))
    return ep.estimate_expectation(square(2.0), method, throw=False)


def evil_array(marker: Path) -> bytes:
    """The bytes of a NumPy file whose one element is malicious."""
    array = np.empty(1, object)
    array[0] = Malice(marker)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


# Records and checkpoints -------------------------------------------------------------------------


def test_the_malice_works(tmp_path: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    marker = tmp_path / "was-here"
    pickle.loads(pickle.dumps(Malice(marker)))
    assert marker.exists()
    np.load(io.BytesIO(evil_array(tmp_path / "here-too")), allow_pickle=True)
    assert (tmp_path / "here-too").exists()


def test_a_record_with_a_pickle_in_it_is_refused(tmp_path: Path) -> None:
    """A record that is valid in everything else, including its checksum."""
    marker, path = tmp_path / "was-here", tmp_path / "evil.est"
    content, arrays = records._encode(estimate())
    whole = records._archive(content, arrays)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w") as new:
        names = [name for name in old.namelist() if name.endswith(".npy")]
        for name in old.namelist():
            new.writestr(name, evil_array(marker) if name == names[0] else old.read(name))
    payload = buffer.getvalue()
    head = f"{records.MAGIC} {records.VERSION} {hashlib.sha256(payload).hexdigest()}\n"
    path.write_bytes(head.encode() + payload)
    with pytest.raises(ep.RecordError, match="not written by estimand"):
        ep.load(path)
    assert not marker.exists()


def test_a_pickle_is_no_record_and_no_checkpoint(tmp_path: Path) -> None:
    marker, path = tmp_path / "was-here", tmp_path / "evil.est"
    path.write_bytes(pickle.dumps(Malice(marker)))
    with pytest.raises(ep.RecordError, match="not a record"):
        ep.load(path)
    with pytest.raises(ep.CheckpointError, match="is not changed"):
        ep.estimate_expectation(square(2.0), checkpoint=path)
    assert not marker.exists()


def test_no_module_can_unpickle_or_evaluate_text() -> None:
    """The command line runs the one file that it is given, by the import system.

    Only what goes to the workers of the user's own executor, and comes back from there, is pickled;
    executors pickle whatever they are given. Of what is read from files only compiled code is, by
    JAX, from a folder that is the user's own (tests/runtime/test_executables.py).
    """
    code = {"serialize_executable"}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                is_sending = path == SOURCE / "runtime" / "parcels.py"
                unsafe = {"marshal", "shelve", "dill"} | (set() if is_sending else {"pickle"})
                is_code = path == SOURCE / "runtime" / "executables.py"
                assert names.isdisjoint(unsafe | (set() if is_code else code)), path.name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path.name
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path.name


# The command line --------------------------------------------------------------------------------

MODEL = """
import numpyro
import numpyro.distributions as dist
import estimand as ep
import helper

@ep.expectation
def program(y=2.0):
    x = numpyro.sample("x", dist.Normal(helper.LOCATION, 1.0))
    return x * y
"""


def test_only_the_file_that_is_named_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what that file itself imports: its neighbours hide no installed library."""
    cli = pytest.importorskip("estimand.cli")
    marker = tmp_path / "was-here"
    mischief = f"import os; os.mkdir({str(marker)!r})"
    for name in ("neighbour", "numpyro", "estimand", "jax", "numpy", "conftest", "__init__"):
        (tmp_path / f"{name}.py").write_text(mischief)
    (tmp_path / "helper.py").write_text("LOCATION = 0.5")
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    before = set(sys.modules)
    program = cli.load_program(f"{tmp_path / 'model.py'}:program")
    assert isinstance(program, ep.ExpectationProgram)
    assert set(sys.modules) - before == {"helper"}
    assert not marker.exists()


@pytest.mark.parametrize("name", ["evil.npy", "evil.npz"])
def test_data_files_are_not_unpickled(name: str, tmp_path: Path) -> None:
    cli = pytest.importorskip("estimand.cli")
    marker, path = tmp_path / "was-here", tmp_path / name
    if name.endswith("npy"):
        path.write_bytes(evil_array(marker))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("y.npy", evil_array(marker))
    with pytest.raises(cli.InputError, match="evil"):
        cli.read_data(path)
    assert not marker.exists()


# Pages -------------------------------------------------------------------------------------------

TEXT = "<img src=x onerror=alert(1)>\"'&"


def test_every_text_of_a_record_is_escaped() -> None:
    """Names of program, outputs and sites, method, notes, findings, keys, versions and source."""
    result = estimate()
    output = dataclasses.replace(result.output, labels=(TEXT, f"['{TEXT}']"))
    finding = Finding(Status.heavy_tailed, TEXT, TEXT, TEXT)
    outputs = tuple(
        output._replace(route=TEXT).with_findings([finding])
        for output in with_parts(result.outputs, result.parts)
    )
    draws = tuple(item._replace(sites={TEXT: item.sites["x"]}) for item in result.draws)
    provenance = dataclasses.replace(
        result.provenance, source=TEXT, keys=(TEXT,), created=TEXT, versions={TEXT: TEXT}
    )
    hostile = dataclasses.replace(
        result,
        program=TEXT,
        method=TEXT,
        output=output,
        provenance=provenance,
        run=result.run._replace(outputs=outputs, notes=(TEXT,)),
        density=None,
        contents=Contents(result.parts, draws, result.paths),
    )
    for page in (hostile.to_html(), hostile._repr_html_()):
        assert "<img" not in page
        assert "&lt;img src=x" in page
