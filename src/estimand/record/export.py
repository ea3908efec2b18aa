"""Records in other libraries' terms: plain data for JSON, and an xarray DataTree for ArviZ."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from estimand.model import Axes, Output
from estimand.record.branches import Branch
from estimand.record.draws import resample
from estimand.record.parts import SHARED
from estimand.record.record import Record
from estimand.record.storage import MAGIC, VERSION, number, plain_output, plain_part

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataTree


def to_dict(record: Record) -> dict[str, Any]:
    """The record without its draws, as plain data that JSON has."""
    outputs = [
        {
            "label": label,
            "interval": [number(end) for end in interval],
            "log_z": {
                "Z1_plus": number(output.parts.log_z("plus")),
                "Z1_minus": number(output.parts.log_z("minus")),
                "Z2": number(output.parts.log_z("normaliser")),
            },
            **plain_output(output),
        }
        for label, output, interval in zip(
            record.output.labels, record.outputs, record.bounds(), strict=True
        )
    ]
    parts = [
        {**plain_part(part), "output": None if part.output == SHARED else part.output}
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
        "parts": parts,
        "branches": [_plain_branch(branch, record.output) for branch in record.branches],
        "notes": list(record.run.notes),
        "num_evaluations": record.num_evaluations,
        "num_gradients": record.num_gradients,
        "compile_seconds": number(record.compile_seconds),
        "run_seconds": number(record.run_seconds),
        "provenance": {
            **dataclasses.asdict(record.provenance),
            "keys": list(record.provenance.keys),
        },
    }


def rows_of(record: Record) -> list[dict[str, Any]]:
    """A table with a row for every output."""
    return [
        {
            "output": name,
            "value": output.value,
            "standard_error": output.standard_error,
            "low": low,
            "high": high,
            "status": output.status.name,
            "route": output.route,
            "evaluations": record.cost,
            "message": "; ".join(f"{item.status.name}: {item}" for item in output.findings),
        }
        for name, output, (low, high) in zip(
            record.names, record.outputs, record.bounds(), strict=True
        )
    ]


def to_dataframe(rows: list[dict[str, Any]], index: str | None = None) -> DataFrame:
    """Rows as a pandas DataFrame, named by one of their entries if that is asked for."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: pip install 'estimand[tables]'") from error
    frame = pd.DataFrame(rows)
    return frame if index is None else frame.set_index(index)


def _plain_branch(branch: Branch, output: Output) -> dict[str, Any]:
    values, errors = (
        [number(leaf) for leaf in output.ravel(structure)]
        for structure in (branch.value, branch.standard_error)
    )
    return {
        "values": branch.values,
        "prior": number(branch.prior),
        "log_z2": number(branch.log_z2),
        "log_z2_error": number(branch.log_z2_error),
        "probability": number(branch.probability),
        "probability_error": number(branch.probability_error),
        "value": values,
        "standard_error": errors,
        "status": branch.status.name,
        "findings": [str(finding) for findings in branch.findings for finding in findings],
        "cost": branch.cost,
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
    axes = record.provenance.axes
    groups: dict[str, xarray.Dataset] = {}
    for draws in record.draws:
        group = _GROUPS[draws.name]
        label = record.names[draws.output] if draws.output >= 0 else ""
        is_numbered = draws.output >= 0 and record.output.size > 1
        if is_numbered and not (draws.name == "gamma2" and group not in groups):
            group = f"{group}_{draws.output}"
        attributes = {"density": draws.name, "output": label}
        chosen = resample(draws.log_weights, draws.log_weights.size, rng)
        equal = {name: values[chosen] for name, values in draws.sites.items()}
        groups[group] = _dataset(equal, {**attributes, "weights": "equal"}, axes)
        log_shares = draws.log_weights - np.logaddexp.reduce(draws.log_weights)
        weighted = {**draws.sites, "log_weight": log_shares}
        attributes["weights"] = "log_weight"
        groups[f"weighted_{group}"] = _dataset(weighted, attributes, axes)
        if group == "posterior":
            values = {name: draws.outputs[chosen, k] for k, name in enumerate(record.names)}
            groups["sample_stats"] = _dataset(values, {"of": "the return value at each draw"})
    tree = xarray.DataTree.from_dict(groups)
    tree.attrs = {
        "inference_library": "estimand",
        "inference_library_version": record.provenance.versions.get("estimand", ""),
        "created_at": record.provenance.created,
        "program": record.program,
        "method": record.method,
        "status": record.status.name,
        "estimate": json.dumps(to_dict(record)["outputs"]),
    }
    return tree


def _dataset(
    values: dict[str, np.ndarray], attributes: dict[str, str], axes: Axes | None = None
) -> Any:
    import xarray

    known = axes or {"dims": {}, "coords": {}}
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for name, array in values.items():
        own = [f"{name}_dim_{k}" for k in range(array.ndim - 1)]
        names = known["dims"].get(name, own)
        # Names that do not fit the shape are left out.
        names = names if len(names) == len(own) else own
        variables[name] = (("chain", "draw", *names), array[None])
        for dim, length in zip(names, array.shape[1:], strict=True):
            if len(labels := known["coords"].get(dim, ())) == length:
                coordinates[dim] = labels
    size = len(next(iter(values.values())))
    coordinates |= {"chain": [0], "draw": np.arange(size)}
    return xarray.Dataset(variables, coords=coordinates, attrs=attributes)
