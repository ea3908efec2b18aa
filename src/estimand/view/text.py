"""An estimate as a few lines of text, for ``print`` and the prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from estimand.record import Record
from estimand.trust import Finding, OutputEstimate, Status
from estimand.view.remedies import message

# Outputs and branches that are printed; others are in `to_dataframe` and `summary`.
MAX_OUTPUTS, MAX_BRANCHES = 40, 4
# Names of outputs in one line.
MAX_NAMES = 6


def printed(record: Record) -> str:
    """The estimate of every output, what it cost, and what speaks against it."""
    lines = [
        *_output_lines(record),
        cost_text(record),
        *record.run.notes,
        *_branch_lines(record),
        *finding_lines(record),
        message(record),
    ]
    return "\n".join([f"E[{record.program}] by {record.method}", *(f"  {line}" for line in lines)])


def _output_lines(record: Record) -> Iterator[str]:
    labels = record.output.labels[:MAX_OUTPUTS]
    texts = [_number(output) for output in record.outputs[:MAX_OUTPUTS]]
    # One output has no label, and nothing to be aligned with.
    name_width, width = max(map(len, labels)), max(map(len, texts))
    rows = zip(labels, texts, record.outputs, record.bounds(), strict=False)
    for label, text, output, (low, high) in rows:
        name = f"{label:<{name_width}}  " if label else ""
        span = f"95 % interval [{low:.6g}, {high:.6g}]"
        yield f"{name}{text:<{width}}   {span}   {output.status.name}"
    if len(record.outputs) > MAX_OUTPUTS:
        yield f"and {len(record.outputs) - MAX_OUTPUTS} more outputs, in to_dataframe()"


def _number(output: OutputEstimate) -> str:
    if output.status in (Status.no_mass_found, Status.underflow):
        return estimate_text(output)
    if output.is_zero:
        return "0 exactly"
    return f"{output.value:.6g} ± {output.standard_error:.2g}"


def _branch_lines(record: Record) -> Iterator[str]:
    for branch in record.branches[:MAX_BRANCHES]:
        number = f"{branch.probability:.6g} ± {branch.probability_error:.2g}"
        yield f"branch {branch.text}: probability {number}"
    if len(record.branches) > MAX_BRANCHES:
        yield f"and {len(record.branches) - MAX_BRANCHES} more branches, in summary()"


def finding_lines(record: Record) -> Iterator[str]:
    """What the checks found; outputs of which the same check says so have one line together."""
    groups: dict[tuple[Status, str | None, str], dict[str, Finding]] = {}
    for name, findings in zip(record.names, record.findings, strict=True):
        for finding in findings:
            group = groups.setdefault((finding.status, finding.part, finding.check), {})
            group.setdefault(name, finding)
    for (status, _, _), found in groups.items():
        first, *others = found
        where = f"{first}: " if len(record.outputs) > 1 else ""
        also = f" (also {names_text(others)})" if others else ""
        yield f"{where}{status.name}: {found[first]}{also}"


def names_text(names: Sequence[str]) -> str:
    """Names in a row, the first few of many."""
    shown, left = names[:MAX_NAMES], len(names) - MAX_NAMES
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def cost_text(record: Record) -> str:
    """What was evaluated, and how long it took."""
    return (
        f"{record.num_evaluations:,} evaluations, {record.num_gradients:,} gradients; "
        f"{record.compile_seconds:.2f} s compiling, {record.run_seconds:.2f} s running"
    )


def estimate_text(output: OutputEstimate) -> str:
    """The number to the precision of its error, or that there is none."""
    value, error = output.value, output.standard_error
    if output.status is Status.no_mass_found and not math.isfinite(error):
        return "no mass found"
    if output.status is Status.underflow:
        return "below the smallest number"
    if output.is_zero:
        return "0 exactly"
    if not 0 < error < math.inf or value == 0:
        return f"{value:.6g} ± {error:.2g}"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2
    return f"{value:.{min(max(digits, 1), 15)}g} ± {error:.2g}"
