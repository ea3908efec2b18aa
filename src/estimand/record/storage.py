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
from typing import Any

import jax
import numpy as np

from estimand.methods import Run
from estimand.model import Output
from estimand.record.draws import KeptDraws
from estimand.record.parts import PART_FIELDS, PartSummary, with_parts
from estimand.record.provenance import Provenance
from estimand.record.record import Contents, Record
from estimand.record.settling import Settling
from estimand.trust import BranchEstimate, EffectiveSizes, Finding, OutputEstimate, Status

MAGIC = "estimand-record"
VERSION = 2


class RecordError(ValueError):
    """A file that is not a record or is damaged; the message says which.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("other.est").write_text("not a record")
        >>> try:
        ...     ep.load("other.est")
        ... except ep.RecordError as error:
        ...     print(error)
        other.est is not a record saved by estimand.
    """


# --- files ---


def save(record: Record, path: str | os.PathLike) -> None:
    """Writes a record to a file, which is there as a whole or not at all."""
    content, arrays = _encode(record)
    payload = _archive(content, arrays)
    checksum = hashlib.sha256(payload).hexdigest()
    write_atomically(path, f"{MAGIC} {VERSION} {checksum}\n".encode() + payload)


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Writes a temporary file and renames it: no reader ever sees half a file."""
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
    if int(words[1]) < VERSION:
        raise RecordError(
            f"{path} has format version {words[1]}, from before the first release; this "
            f"estimand reads version {VERSION}. Run the estimation again."
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
        writer = (
            content.get("provenance", {}).get("versions", {}).get("estimand", "another estimand")
        )
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

_ARRAYS = tuple(field.name for field in PART_FIELDS if field.is_array)
# The fields of an output that are plain numbers, flags and text.
_OUTPUT_FIELDS = (
    "value",
    "standard_error",
    "degrees",
    "magnitude",
    "is_log_scale",
    "upper_bound",
    "route",
    "covariance",
)


def number(value: float) -> float | str:
    """A float that JSON has; NaN and infinities are the strings that `float` reads."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def plain_numbers(value: Any) -> Any:
    """Dicts and lists of numbers and text as JSON has them; see `number`."""
    if isinstance(value, dict):
        return {str(key): plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain_numbers(item) for item in value]
    return plain(value)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Status):
        return value.name
    if isinstance(value, float | np.floating):
        return number(float(value))
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    return value


def plain_output(output: OutputEstimate) -> dict[str, Any]:
    """An output without its parts, as JSON has it."""
    return {
        **{name: plain(getattr(output, name)) for name in _OUTPUT_FIELDS},
        "ess": {name: number(size) for name, size in output.ess._asdict().items()},
        "status": output.status.name,
        "findings": [
            {name: plain(value) for name, value in finding._asdict().items()}
            for finding in output.findings
        ],
    }


def plain_branch(branch: BranchEstimate) -> dict[str, Any]:
    """A branch without its draws, as JSON has it."""
    return {
        "values": [list(pair) for pair in branch.values],
        "prior": number(branch.mass),
        "log_z2": number(branch.log_z2),
        "relative_variance": number(branch.relative_variance),
        "cost": branch.cost,
        "outputs": [plain_output(output) for output in branch.outputs],
    }


def plain_part(part: PartSummary) -> dict[str, Any]:
    """A part without its arrays, as JSON has it."""
    return {
        field.name: plain(getattr(part, field.name)) for field in PART_FIELDS if not field.is_array
    }


def _encode(record: Record) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    draws = []
    for index, part in enumerate(record.parts):
        arrays |= {f"part{index}.{name}": getattr(part, name) for name in _ARRAYS}
    for index, item in enumerate(record.draws):
        arrays[f"draws{index}.log_weights"] = item.log_weights
        arrays[f"draws{index}.outputs"] = item.outputs
        arrays |= {f"draws{index}.site{k}": v for k, v in enumerate(item.sites.values())}
        draws.append({"name": item.name, "output": item.output, "sites": list(item.sites)})
    for index, path in enumerate(record.paths):
        arrays |= {f"path{index}.{name}": values for name, values in path._asdict().items()}
    content = {
        "program": record.program,
        "method": record.method,
        "output": {
            "structure": _structure(record.output),
            "shapes": record.output.shapes,
            "is_indicator": [bool(flag) for flag in record.output.is_indicator],
            "labels": record.output.labels,
        },
        "outputs": [plain_output(output) for output in record.outputs],
        "num_evaluations": record.num_evaluations,
        "num_gradients": record.num_gradients,
        "notes": list(record.run.notes),
        "compile_seconds": number(record.compile_seconds),
        "run_seconds": number(record.run_seconds),
        "provenance": dataclasses.asdict(record.provenance),
        "parts": [plain_part(part) for part in record.parts],
        "draws": draws,
        "num_paths": len(record.paths),
        "branches": [plain_branch(branch) for branch in record.run.branches],
    }
    return content, arrays


def _decode(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    parts = tuple(_decode_part(item, arrays, k) for k, item in enumerate(content["parts"]))
    draws = tuple(
        KeptDraws(
            name=item["name"],
            output=item["output"],
            log_weights=arrays[f"draws{index}.log_weights"],
            outputs=arrays[f"draws{index}.outputs"],
            sites={site: arrays[f"draws{index}.site{k}"] for k, site in enumerate(item["sites"])},
        )
        for index, item in enumerate(content["draws"])
    )
    paths = tuple(
        Settling(*(arrays[f"path{index}.{name}"] for name in Settling._fields))
        for index in range(content["num_paths"])
    )
    output, provenance = content["output"], content["provenance"]
    outputs = [_decode_output(item) for item in content["outputs"]]
    return {
        "program": content["program"],
        "method": content["method"],
        "output": Output.like(
            _template(output["structure"]),
            tuple(map(tuple, output["shapes"])),
            output["is_indicator"],
            output["labels"],
        ),
        "run": Run(
            outputs=with_parts(outputs, parts),
            num_evaluations=content["num_evaluations"],
            num_gradients=content["num_gradients"],
            notes=tuple(content["notes"]),
            branches=tuple(map(_decode_branch, content.get("branches", ()))),
        ),
        "compile_seconds": float(content["compile_seconds"]),
        "run_seconds": float(content["run_seconds"]),
        "provenance": Provenance(**{**provenance, "keys": tuple(provenance["keys"])}),
        "contents": Contents(parts, draws, paths),
    }


def _decode_part(item: dict[str, Any], arrays: dict[str, np.ndarray], index: int) -> PartSummary:
    fields: dict[str, Any] = {}
    for field in PART_FIELDS:
        if field.is_array:
            fields[field.name] = arrays[f"part{index}.{field.name}"]
        elif field.kind is Status:
            fields[field.name] = Status[item[field.name]]
        else:
            fields[field.name] = field.kind(item[field.name])
    return PartSummary(**fields)


def _decode_branch(item: dict[str, Any]) -> BranchEstimate:
    return BranchEstimate(
        values=tuple((name, int(value)) for name, value in item["values"]),
        mass=float(item["prior"]),
        log_z2=float(item["log_z2"]),
        relative_variance=float(item["relative_variance"]),
        outputs=tuple(map(_decode_output, item["outputs"])),
        cost=int(item["cost"]),
    )


def _decode_output(item: dict[str, Any]) -> OutputEstimate:
    return OutputEstimate(
        **{name: _typed(name, item[name]) for name in _OUTPUT_FIELDS if name in item},
        ess=EffectiveSizes(**{name: float(size) for name, size in item["ess"].items()}),
        findings=tuple(
            Finding(**{**finding, "status": Status[finding["status"]]})
            for finding in item["findings"]
        ),
    )


def _typed(name: str, value: Any) -> Any:
    return value if name in ("route", "is_log_scale") else float(value)


def _structure(output: Output) -> Any:
    """The structure of a return value as JSON, with leaves by number."""
    tree = output.tree(range(len(output.places)))

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
