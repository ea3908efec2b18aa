"""Records on disk and in other libraries' terms.

A saved record is one line of text, ``estimand-record VERSION SHA-256``, and then a zip archive
with ``record.json`` and one ``.npy`` file for each array. The checksum is over the archive. There
is no pickle in it: loading runs no code from the file.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import io
import json
import math
import os
import tempfile
import zipfile
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from estimand.methods.protocol import Figures, Run
from estimand.model.program import Output
from estimand.record.provenance import Origin
from estimand.record.record import Contents, Draws, PartSummary, Path, Record, resample
from estimand.trust.status import Status

if TYPE_CHECKING:
    from xarray import DataTree


MAGIC = "estimand-record"
VERSION = 1


class RecordError(ValueError):
    """A file that is no record, or a damaged one; the message says which."""


# --- files ---


def save(record: Record, path: str | os.PathLike) -> None:
    """Writes a record to a file, which is there as a whole or not at all."""
    content, arrays = _encode(record)
    payload = _archive(content, arrays)
    checksum = hashlib.sha256(payload).hexdigest()
    write_atomically(path, f"{MAGIC} {VERSION} {checksum}\n".encode() + payload)


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Writes beside the file and then takes its place: no reader ever sees half of it."""
    target = FilePath(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {target.parent}.")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def is_record(path: str | os.PathLike) -> bool:
    """Whether there is a file that begins as a saved record does."""
    try:
        with FilePath(path).open("rb") as file:
            return file.read(len(MAGIC) + 1) == f"{MAGIC} ".encode()
    except FileNotFoundError:
        return False


def load(path: str | os.PathLike) -> dict[str, Any]:
    """The fields of a saved record."""
    data = FilePath(path).read_bytes()
    line, _, payload = data.partition(b"\n")
    words = line[:200].decode("ascii", errors="replace").split(" ")
    if len(words) != 3 or words[0] != MAGIC or not words[1].isdigit():
        raise RecordError(f"{path} is not a record saved by estimand.")
    if int(words[1]) > VERSION:
        raise RecordError(
            f"{path} has format version {words[1]}, and this estimand reads versions up to "
            f"{VERSION}: install a newer estimand."
        )
    if hashlib.sha256(payload).hexdigest() != words[2]:
        raise RecordError(
            f"{path} is damaged: its contents do not have the checksum that was saved with them. "
            "It was cut off or altered after it was written."
        )
    try:
        content, arrays = _unarchive(payload)
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RecordError(f"{path} was not written by estimand: {error}") from error
    try:
        return _decode(content, arrays)
    except (KeyError, TypeError, ValueError) as error:
        writer = content.get("origin", {}).get("versions", {}).get("estimand", "another estimand")
        raise RecordError(
            f"{path} was written by estimand {writer} and has contents that this version does not "
            f"know ({error}): install that version."
        ) from error


def _archive(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("record.json"), json.dumps(content, indent=1, allow_nan=False))
        for name, array in arrays.items():
            piece = io.BytesIO()
            np.lib.format.write_array(piece, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(_entry(f"{name}.npy"), piece.getvalue())
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without the time of day, so that equal records are equal files."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _unarchive(payload: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(
                io.BytesIO(archive.read(name)), allow_pickle=False
            )
            for name in archive.namelist()
            if name.endswith(".npy")
        }
        return json.loads(archive.read("record.json")), arrays


# --- a record as JSON and arrays ---

_PART_ARRAYS = ("largest", "replicate_log_z", "betas", "acceptance", "effective")


def number(value: float) -> float | str:
    """A float that JSON has; NaN and infinities are the strings that `float` reads."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _encode(record: Record) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    parts, draws = [], []
    for index, part in enumerate(record.parts):
        arrays |= {f"part{index}.{name}": getattr(part, name) for name in _PART_ARRAYS}
        plain = {k: v for k, v in part._asdict().items() if k not in _PART_ARRAYS}
        parts.append(_plain(plain))
    for index, item in enumerate(record.draws):
        arrays[f"draws{index}.log_weights"] = item.log_weights
        arrays[f"draws{index}.outputs"] = item.outputs
        arrays |= {f"draws{index}.site{k}": v for k, v in enumerate(item.sites.values())}
        draws.append({"name": item.name, "output": item.output, "sites": list(item.sites)})
    for index, path in enumerate(record.paths):
        arrays |= {f"path{index}.{name}": values for name, values in path._asdict().items()}
    run = {k: v for k, v in record.run._asdict().items() if k not in ("figures", "evidence")}
    content = {
        "program": record.program,
        "method": record.method,
        "output": {
            "structure": _structure(record.output),
            "shapes": record.output.shapes,
            "is_indicator": [bool(flag) for flag in record.output.is_indicator],
            "labels": record.output.labels,
        },
        "figures": [_plain(figures._asdict()) for figures in record.run.figures],
        "run": _plain(run),
        "compile_seconds": number(record.compile_seconds),
        "run_seconds": number(record.run_seconds),
        "origin": dataclasses.asdict(record.origin),
        "parts": parts,
        "draws": draws,
        "num_paths": len(record.paths),
    }
    return content, arrays


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if isinstance(value, Status):
            return value.name
        if isinstance(value, float | np.floating):
            return number(float(value))
        if isinstance(value, np.integer | np.bool_):
            return value.item()
        return value

    return {name: one(value) for name, value in values.items()}


def _decode(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    parts = tuple(
        PartSummary(
            **_typed(plain) | {name: arrays[f"part{index}.{name}"] for name in _PART_ARRAYS}
        )
        for index, plain in enumerate(content["parts"])
    )
    draws = tuple(
        Draws(
            item["name"],
            item["output"],
            arrays[f"draws{index}.log_weights"],
            arrays[f"draws{index}.outputs"],
            {site: arrays[f"draws{index}.site{k}"] for k, site in enumerate(item["sites"])},
        )
        for index, item in enumerate(content["draws"])
    )
    paths = tuple(
        Path(*(arrays[f"path{index}.{name}"] for name in Path._fields))
        for index in range(content["num_paths"])
    )
    output, run, origin = content["output"], _typed(content["run"]), content["origin"]
    figures = tuple(Figures(**_typed(item)) for item in content["figures"])
    return {
        "program": content["program"],
        "method": content["method"],
        "output": Output(
            jax.tree.structure(_template(output["structure"])),
            tuple(map(tuple, output["shapes"])),
            tuple(output["is_indicator"]),
            tuple(output["labels"]),
        ),
        "run": Run(figures=figures, **{**run, "notes": tuple(run["notes"])}),
        "compile_seconds": float(content["compile_seconds"]),
        "run_seconds": float(content["run_seconds"]),
        "origin": Origin(**{**origin, "keys": tuple(origin["keys"])}),
        "contents": Contents(parts, draws, paths),
    }


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    def one(name: str, value: Any) -> Any:
        if name == "status":
            return Status[value]
        if isinstance(value, str) and name not in ("name",):
            return float(value)
        return value

    return {name: one(name, value) for name, value in values.items()}


def _structure(output: Output) -> Any:
    """The structure of a return value as JSON, with leaves by number."""
    tree = jax.tree.unflatten(output.treedef, range(output.treedef.num_leaves))

    def describe(node: Any) -> Any:
        if isinstance(node, int):
            return node
        if isinstance(node, dict):
            return {"dict": [[_key(key), describe(child)] for key, child in node.items()]}
        if hasattr(node, "_fields"):
            fields = [[name, describe(getattr(node, name))] for name in node._fields]
            return {"namedtuple": type(node).__name__, "fields": fields}
        if isinstance(node, tuple | list):
            return {type(node).__name__: [describe(child) for child in node]}
        # A container of the user's own cannot be made again without its class.
        leaves = jax.tree_util.tree_leaves_with_path(node)
        return {"dict": [[jax.tree_util.keystr(path), leaf] for path, leaf in leaves]}

    return describe(tree)


def _key(key: Any) -> Any:
    return key if isinstance(key, str | int | float) else repr(key)


def _template(structure: Any) -> Any:
    if isinstance(structure, int):
        return structure
    if "dict" in structure:
        return {key: _template(child) for key, child in structure["dict"]}
    if "namedtuple" in structure:
        names, children = zip(*structure["fields"], strict=True)
        return collections.namedtuple(structure["namedtuple"], names)(*map(_template, children))
    kind, children = next(iter(structure.items()))
    return (tuple if kind == "tuple" else list)(map(_template, children))


# --- for other programs ---


def to_dict(record: Record) -> dict[str, Any]:
    """The record without its draws, as plain data that JSON has."""
    outputs = [
        {
            "label": label,
            "interval": [number(end) for end in interval],
            **_plain(figures._asdict()),
        }
        for label, figures, interval in zip(
            record.output.labels, record.run.figures, record.bounds(), strict=True
        )
    ]
    parts = [
        {
            **_plain({k: v for k, v in part._asdict().items() if k not in _PART_ARRAYS}),
            "output": None if part.output < 0 else part.output,
        }
        for part in record.parts
    ]
    return {
        "format": MAGIC,
        "version": VERSION,
        "program": record.program,
        "method": record.method,
        "status": record.status.name,
        "message": record.status.value,
        "outputs": outputs,
        "log_z2": number(record.run.log_z2),
        "ess_z2": number(record.run.ess_z2),
        "parts": parts,
        "notes": list(record.run.notes),
        "num_evaluations": record.num_evaluations,
        "num_gradients": record.num_gradients,
        "compile_seconds": number(record.compile_seconds),
        "run_seconds": number(record.run_seconds),
        "origin": {**dataclasses.asdict(record.origin), "keys": list(record.origin.keys)},
    }


_GROUPS = {"gamma2": "posterior", "gamma1_plus": "target_plus", "gamma1_minus": "target_minus"}


def to_datatree(record: Record, rng: np.random.Generator) -> DataTree:
    """The record as an xarray DataTree in ArviZ's layout; see `Estimate.to_datatree`."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_datatree needs xarray: pip install 'estimand[arviz]'") from error
    if not record.draws:
        raise ValueError(
            f"to_datatree: {record.method} keeps no draws of its densities; take TABI, AdaptiveIS "
            "or the default method."
        )
    if not record.draws[0].sites:
        raise ValueError(f"to_datatree: program {record.program!r} has no latent site.")
    groups: dict[str, xarray.Dataset] = {}
    for draws in record.draws:
        group = _GROUPS[draws.name]
        label = record.output.labels[draws.output] if draws.output >= 0 else ""
        if draws.output >= 0 and record.output.size > 1:
            group = f"{group}_{draws.output}"
        attributes = {"density": draws.name, "output": label}
        chosen = resample(draws.log_weights, draws.log_weights.size, rng)
        equal = {name: values[chosen] for name, values in draws.sites.items()}
        groups[group] = _dataset(equal, {**attributes, "weights": "equal"})
        weighted = {**draws.sites, "log_weight": np.log(draws.weights)}
        groups[f"weighted_{group}"] = _dataset(weighted, {**attributes, "weights": "log_weight"})
        if draws.name == "gamma2":
            values = {
                f"output{label}": draws.outputs[chosen, k]
                for k, label in enumerate(record.output.labels)
            }
            groups["sample_stats"] = _dataset(values, {"of": "the return value at each draw"})
    tree = xarray.DataTree.from_dict(groups)
    tree.attrs = {
        "inference_library": "estimand",
        "inference_library_version": record.origin.versions.get("estimand", ""),
        "created_at": record.origin.created,
        "program": record.program,
        "method": record.method,
        "status": record.status.name,
        "estimate": json.dumps(to_dict(record)["outputs"]),
    }
    return tree


def _dataset(values: dict[str, np.ndarray], attributes: dict[str, str]) -> Any:
    import xarray

    variables = {
        name: (("chain", "draw", *(f"{name}_dim_{k}" for k in range(array.ndim - 1))), array[None])
        for name, array in values.items()
    }
    size = len(next(iter(values.values())))
    coordinates = {"chain": [0], "draw": np.arange(size)}
    return xarray.Dataset(variables, coords=coordinates, attrs=attributes)
