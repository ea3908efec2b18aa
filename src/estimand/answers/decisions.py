"""`decide`: which of several actions has the largest expected utility, and what is known of it.

Two estimates. The first has the utility of every action as an output. The second has what the
actions differ in: each difference is an output of its own, so that its error is its own, too, and
what is rare and large in it is explored. The probabilities of being best come from its draws; for
a program that branches, whose branches have no draws in common, they are outputs of it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimand.answers.quantity import Quantity, columns
from estimand.answers.reported import Reported, provenance_of
from estimand.answers.studies import StudyValue, studies_of, value_of_study
from estimand.density import Density
from estimand.estimate import Estimate, EstimationError, estimate_expectation
from estimand.methods import Method
from estimand.model import (
    Bound,
    BranchingExpectation,
    ExpectationProgram,
    ProgramError,
    Study,
    at_settings,
    require_same_density,
    source_text,
)
from estimand.record import Provenance, as_key, quantile, values_at
from estimand.runtime import in_precision
from estimand.sampling import named_key
from estimand.settings import checked_names
from estimand.trust import (
    Evidence,
    Finding,
    Status,
    check_size,
    jackknife,
    replicates_of,
    rule_of_three,
    thresholds,
    worst,
)
from estimand.view import Summary, Table

# Utilities that differ by so many units of rounding are the same.
ROUNDING = 32
# Keys of the two estimates follow from the one that was given by these.
_UTILITIES, _CONTRASTS = 1, 2


class Action(NamedTuple):
    """One action, and what is known of it.

    `difference` is the expected utility of the best action less that of this one, and None for
    the best one itself. `probability` is that of being a best one, by the posterior; a tie counts
    for all that are in it. `regret` is the expected loss against the best action in hindsight.
    """

    name: str
    setting: Any
    utility: Quantity
    difference: Quantity | None
    probability: Quantity
    regret: Quantity

    def __str__(self) -> str:
        beside = "" if self.difference is None else f", {self.difference} below the best"
        return (
            f"{self.name}: expected utility {self.utility}{beside}; the best with probability "
            f"{self.probability}; expected regret {self.regret}"
        )

    def __repr__(self) -> str:
        return str(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Decision(Reported):
    """A choice among actions, with the evidence for it. Made by `decide`.

    `actions` are in the order in which they were given. `evpi` is the expected value of perfect
    information: what it would be worth, at the most, to know the sites before choosing. It is the
    expected regret of the best action. `studies` has the expected value of the data of each study
    that was asked about, by name. `utilities` and `contrasts` are the two estimates.
    """

    program: str
    actions: tuple[Action, ...]
    evpi: Quantity
    utilities: Estimate = dataclasses.field(repr=False)
    contrasts: Estimate = dataclasses.field(repr=False)
    studies: dict[str, StudyValue]
    provenance: Provenance = dataclasses.field(repr=False)

    @property
    def num_evaluations(self) -> int:
        return self.utilities.num_evaluations + self.contrasts.num_evaluations

    @property
    def num_gradients(self) -> int:
        return self.utilities.num_gradients + self.contrasts.num_gradients

    @functools.cached_property
    def best(self) -> Action:
        """The action of the largest expected utility."""
        return next(action for action in self.actions if action.difference is None)

    @property
    def runner_up(self) -> Action:
        """The action that comes next to the best one."""
        others = {
            action.difference.value: action
            for action in self.actions
            if action.difference is not None
        }
        return others[min(others)]

    @property
    def is_resolved(self) -> bool:
        """Whether the best action is better than each other one by more than the errors allow."""
        return all(
            bool(action.difference.status) and action.difference.interval[0] > 0
            for action in self.actions
            if action.difference is not None
        )

    @property
    def status(self) -> Status:
        """The worst of the expected utilities and of the differences between them.

        The probabilities, the regrets, `evpi` and `studies` have statuses of their own.
        """
        differences = (action.difference for action in self.actions)
        return worst(
            quantity.status
            for quantity in (*(action.utility for action in self.actions), *differences)
            if quantity is not None
        )

    def __getitem__(self, name: str) -> Action:
        for action in self.actions:
            if action.name == name:
                return action
        raise KeyError(f"there is no action {name!r}; there are {[a.name for a in self.actions]}.")

    def summary(self) -> Summary:
        """The actions as a table, the choice in words, and the value of perfect information."""
        header = (
            "action",
            "expected utility",
            "best less this",
            "probability of best",
            "expected regret",
            "status",
        )
        rows = tuple(
            (
                action.name,
                action.utility.text,
                "best" if action.difference is None else action.difference.text,
                action.probability.text,
                action.regret.text,
                _statuses(action),
            )
            for action in self.actions
        )
        title = f"Utility of {len(self.actions)} actions in {self.program}"
        lines = self.words
        for action in self.actions:
            for what in ("utility", "difference"):
                quantity = getattr(action, what)
                of = action.name if what == "utility" else f"{action.name} to the best"
                for finding in () if quantity is None else quantity.findings:
                    lines.append(f"{what} of {of}: {finding.status.name}: {finding}")
        return Summary([Table(title, header, rows)], lines)

    @property
    def words(self) -> list[str]:
        """The choice, and what perfect information and the studies are worth."""
        return [self._choice(), self._worth(), *map(_worth_of, self.studies.values())]

    def _choice(self) -> str:
        best, second = self.best, self.runner_up
        if not self.status:
            return f"No choice can be relied on: {self.status.value}"
        if self.is_resolved:
            assert second.difference is not None
            return (
                f"{best.name} is the best action, by {second.difference.text} to the next one, "
                f"{second.name}."
            )
        ties = [
            action.name
            for action in self.actions
            if action.difference is not None and not action.difference.interval[0] > 0
        ]
        return (
            f"{best.name} and {', '.join(ties)} cannot be told apart by this estimate: ask for a "
            "smaller error, or take any of them."
        )

    def _worth(self) -> str:
        if self.evpi.status is Status.no_mass_found:
            return (
                f"Perfect information would be worth nothing, as far as is known: no draw was met "
                f"at which another action is better than {self.best.name}."
            )
        text = f"Perfect information would be worth {self.evpi.text}"
        return f"{text} ({self.evpi.status.name})." if not self.evpi.status else f"{text}."

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: one row for every action."""
        return [
            {"name": action.name, "setting": action.setting}
            | {
                column: value
                for what in ("utility", "difference", "probability", "regret")
                for column, value in columns(what, getattr(action, what)).items()
            }
            for action in self.actions
        ]


def _worth_of(study: StudyValue) -> str:
    """What a study is worth, in words."""
    if not study.status:
        low, high = study.interval
        return (
            f"What the data of {study.name} would be worth cannot be relied on: between {low:.4g} "
            f"and {high:.4g} ({study.status.name}: {study.findings[0]})."
        )
    return f"The data of {study.name} would be worth {study.text}."


def _statuses(action: Action) -> str:
    needed = [action.utility] if action.difference is None else [action.utility, action.difference]
    return worst(quantity.status for quantity in needed).name


@checked_names
def decide(
    program: ExpectationProgram | Callable,
    actions: Sequence[Any] | Mapping[str, Any] | np.ndarray | jax.Array,
    *,
    utility: Callable[[dict[str, Any], Any], Any] | None = None,
    argument: str | None = None,
    study: Callable | Mapping[str, Callable] | None = None,
    method: Method | None = None,
    rng_key: int | jax.Array = 0,
    throw: bool = True,
    precision: str = "double",
    progress_bar: bool | None = None,
    executor: Executor | None = None,
) -> Callable[..., Decision]:
    """A choice among actions by expected utility, as a function of the data.

    The utility is what a program returns, with the action as an argument; or a function of the
    sites of a model and the action. The random part is the same for all actions: only the utility
    may depend on them.

    Args:
        program: an expectation program whose return value is the utility of the action that it is
            called with; or with `utility`, a model or a program without an action.
        actions: a list of actions, an array with the settings of one number, or a dict of actions
            by name. An action is whatever the utility takes.
        utility: a function of the dict of the values of all sites, as in `expect`, and an action.
        argument: the name of the program's argument for the action; the first one by default.
        study: what could be observed before choosing: a NumPyro function of the dict of the
            program's sites, which draws the data with `numpyro.sample`; or a dict of such
            functions by name. Their expected value is in the decision's `studies`.
        method: as in `estimate_expectation`, for both estimates.
        rng_key: an int or a JAX key.
        throw: raise `EstimationError` if an expected utility or a difference between actions
            cannot be trusted; False returns the decision, whose `status` must then be looked at.
        precision: as in `estimate_expectation`.
        progress_bar: as in `estimate_expectation`.
        executor: as in `estimate_expectation`.

    Returns:
        A function that takes the data and gives a `Decision`.

    Raises:
        ProgramError: if a site's density depends on the action.

    Examples:
        >>> def gain(sites, action):
        ...     return sites["x"] - 0.5 if action == "keep" else 0.2
        >>> decision = ep.decide(program, {"keep": "keep", "sell": "sell"}, utility=gain)(2.0)
        >>> decision.best.name, decision.is_resolved
        ('keep', True)
        >>> def trial(sites):
        ...     numpyro.sample("outcome", dist.Normal(sites["x"], 1.0))
        >>> decision = ep.decide(program, ["keep", "sell"], utility=gain, study=trial)(2.0)
        >>> 0 < decision.studies["trial"].value < decision.evpi.value
        True
    """
    model = program if isinstance(program, ExpectationProgram) else ExpectationProgram(program)
    if utility is not None and argument is not None:
        raise TypeError(
            "decide: argument= names an argument of the program; with utility= leave it."
        )
    settings = _settings(actions)
    asked = _Asked(model, settings, utility, argument, studies_of(study))
    options = {
        "method": method,
        "precision": precision,
        "progress_bar": progress_bar,
        "executor": executor,
    }
    key = as_key(rng_key)

    def decided(*args: Any, **kwargs: Any) -> Decision:
        if utility is None:
            require_same_density(model, argument, list(settings.values()), args, kwargs)
        decision = _decided(asked, key, options, args, kwargs)
        if throw and not decision.status:
            raise EstimationError(decision)
        return decision

    return decided


class _Asked(NamedTuple):
    """Actions by name, and how their utility is stated."""

    program: ExpectationProgram
    settings: dict[str, Any]
    utility: Callable[[dict[str, Any], Any], Any] | None
    argument: str | None
    studies: tuple[Study, ...] = ()

    @property
    def source(self) -> str:
        """The text of the functions that were given."""
        stated: list[Callable | None] = [self.utility, *(one.function for one in self.studies)]
        functions = [function for function in stated if function is not None]
        texts = dict.fromkeys([self.program.source, *map(source_text, functions)])
        return "\n".join(texts)

    def program_of(self, combine: Callable[[list[Any]], Any]) -> ExpectationProgram:
        """The program that returns something of the utilities of all actions."""
        settings = list(self.settings.values())
        if self.utility is None:
            return at_settings(self.program, self.argument, settings, combine)
        utility = self.utility

        def target(sites: dict[str, Any]) -> Any:
            return combine([utility(sites, setting) for setting in settings])

        return ExpectationProgram(self.program.model, target, enumerate=self.program.enumerate)


def _settings(actions: Any) -> dict[str, Any]:
    """The actions by name."""
    if isinstance(actions, Mapping):
        found = {str(name): setting for name, setting in actions.items()}
        count = len(actions)
    else:
        if isinstance(actions, np.ndarray | jax.Array):
            if actions.ndim != 1:
                raise ValueError(
                    f"decide: an array of actions has one axis; this one has shape {actions.shape}."
                )
            actions = np.asarray(actions).tolist()
        elif isinstance(actions, str) or not isinstance(actions, Sequence):
            raise TypeError(f"decide: actions must be a list, an array or a dict; got {actions!r}.")
        found = {_name(setting): setting for setting in actions}
        count = len(actions)
    if len(found) < count:
        raise ValueError(
            "decide: two actions have the same name; give a dict with a name for each."
        )
    if len(found) < 2:
        raise ValueError(f"decide: there must be two actions at least; there are {list(found)}.")
    return found


def _name(setting: Any) -> str:
    return f"{setting:.6g}" if isinstance(setting, float) else str(setting)


def _decided(
    asked: _Asked, rng_key: jax.Array, options: dict[str, Any], args: tuple, kwargs: dict[str, Any]
) -> Decision:
    def estimated(bound: Bound, number: int) -> Estimate:
        own_key = jax.random.fold_in(rng_key, number)
        return estimate_expectation(bound, rng_key=own_key, throw=False, **options)

    def asking(combine: Callable[[list[Any]], Any]) -> Bound:
        return asked.program_of(combine)(*args, **kwargs)

    names = list(asked.settings)
    stated = asking(functools.partial(_stacked, asked.program.name, tuple(names)))
    utilities = estimated(stated, _UTILITIES)
    own = Quantity.each(utilities)
    best = int(np.argmax([quantity.value for quantity in own]))
    branches = isinstance(stated, BranchingExpectation)
    contrasts = estimated(asking(functools.partial(_contrasts, best, branches)), _CONTRASTS)
    evpi, *rest = Quantity.each(contrasts)
    leads, won = rest[: len(own) - 1], rest[len(own) - 1 :]
    probabilities = won or _probabilities(contrasts, asking(_are_best))
    leads.insert(best, evpi)
    differences = [
        _tied(own[best], utility)
        if probability.value == probabilities[best].value == 1
        else _surer(_difference(lead), _apart(own[best], utility))
        for utility, lead, probability in zip(own, leads, probabilities, strict=True)
    ]
    pairs = [*differences[:best], None, *differences[best + 1 :]]
    found = tuple(
        Action(name, setting, utility, difference, probability, _regret(evpi, difference))
        for (name, setting), utility, difference, probability in zip(
            asked.settings.items(),
            own,
            pairs,
            probabilities,
            strict=True,
        )
    )
    studies = {
        study.name: value_of_study(study, contrasts, evpi, named_key(rng_key, "study", study.name))
        for study in asked.studies
    }
    provenance = provenance_of(stated, utilities.method, rng_key, utilities.precision)
    provenance = dataclasses.replace(provenance, source=asked.source)
    return Decision(asked.program.name, found, evpi, utilities, contrasts, studies, provenance)


def _stacked(program: str, names: tuple[str, ...], utilities: list[Any]) -> jax.Array:
    for name, value in zip(names, utilities, strict=True):
        if value is None or jnp.ndim(value) != 0 or not isinstance(value, _NUMBERS):
            raise ProgramError(
                f"the utility of action {name!r} in program {program!r} is not one real number."
            )
    return jnp.stack([jnp.asarray(value, jnp.result_type(float)) for value in utilities])


_NUMBERS = (bool, int, float, np.ndarray, np.generic, jax.Array)


def _contrasts(best: int, has_won: bool, utilities: list[Any]) -> dict[str, Any]:
    """What the actions differ in. The keys are in the order in which JAX has them."""
    others = [value for number, value in enumerate(utilities) if number != best]
    gains = jnp.stack([value - utilities[best] for value in others]) - _rounding(utilities[best])
    found = {
        "gain": jnp.max(jnp.maximum(gains, 0.0)),
        "lead": jnp.stack([utilities[best] - value for value in others]),
    }
    return found | {"won": _are_best(utilities)} if has_won else found


def _are_best(utilities: list[Any]) -> jax.Array:
    every = jnp.stack(utilities)
    most = jnp.max(every)
    return (every == most) | (every >= most - _rounding(most))


def _rounding(utility: Any) -> jax.Array:
    """By how much a utility may be off for the way in which it is written."""
    return ROUNDING * jnp.finfo(jnp.result_type(float)).eps * jnp.abs(utility)


def _probabilities(contrasts: Estimate, are_best: Bound) -> list[Quantity]:
    """Of each action that it is a best one, by the draws that explored what the actions differ in.

    Where another action is better than the best one the gain has its mass, and each difference has
    its own where that action is worse: no place that matters is left to chance.
    """
    assert are_best.output is not None
    evidence = contrasts.outputs[0].parts.normaliser
    replicate = replicates_of(evidence) if isinstance(evidence, Evidence) else None
    has_draws = isinstance(evidence, Evidence) and math.isfinite(evidence.log_z)
    assert contrasts.density is not None
    if not has_draws:
        return _unknown(contrasts, are_best.output.size)
    log_weights = np.asarray(evidence.log_weights, float)
    weights = np.exp(log_weights - log_weights.max())
    is_there = weights > 0
    with in_precision(contrasts.precision):
        density = Density.of(are_best)
        if density.model.sites != contrasts.density.model.sites:
            return _unknown(contrasts, are_best.output.size)
        # At a draw without the sites that are summed out each action has a probability.
        _, hits = values_at(density, np.asarray(evidence.positions)[is_there])
    if density.dimension == 0:
        return [Quantity(hit, 0.0, (hit, hit)) for hit in hits[0].tolist()]
    if replicate is None:
        return _unknown(contrasts, are_best.output.size)
    return [_probability(weights[is_there], replicate[is_there], hit) for hit in hits.T]


def _unknown(contrasts: Estimate, count: int) -> list[Quantity]:
    detail = f"{contrasts.method} keeps no independent draws of the posterior that would say it"
    finding = Finding(Status.no_mass_found, None, detail, "mass")
    return [Quantity(math.nan, math.inf, (0.0, 1.0), (finding,))] * count


def _probability(weights: np.ndarray, replicate: np.ndarray, hits: np.ndarray) -> Quantity:
    """A mean of numbers from 0 to 1."""
    bound = rule_of_three(weights.sum() ** 2 / (weights**2).sum())
    if not hits.any():
        detail = f"at none of {weights.size:,} draws"
        finding = Finding(Status.no_mass_found, None, detail, "mass")
        return Quantity(0.0, math.inf, (0.0, bound), (finding,))
    if (hits == 1).all():
        return Quantity(1.0, bound, (1 - bound, 1.0))
    sums = np.stack([np.bincount(replicate, weights * hits), np.bincount(replicate, weights)], 1)
    found = jackknife(lambda means: means[0] / means[1], sums)
    value, error = float(found.value), float(found.standard_error)
    reach = quantile(0.975, found.degrees) * error
    # The rarer of the event and its complement decides.
    rare = weights * (hits if value < 0.5 else 1 - hits)
    size = rare.sum() ** 2 / (rare**2).sum()
    findings = tuple(check_size(size, None, thresholds.ENOUGH_ESS))
    return Quantity(value, error, (max(value - reach, 0.0), min(value + reach, 1.0)), findings)


def _difference(quantity: Quantity) -> Quantity:
    """A difference whose error is known is one, whether or not it is small beside its error.

    Whether it is small enough for the choice is what `is_resolved` says.
    """
    if not math.isfinite(quantity.standard_error):
        return quantity
    findings = tuple(finding for finding in quantity.findings if finding.check != "goal")
    return quantity._replace(findings=findings)


def _apart(one: Quantity, other: Quantity) -> Quantity:
    """One utility less another, whatever their errors have in common."""
    return Quantity(
        one.value - other.value,
        one.standard_error + other.standard_error,
        (one.interval[0] - other.interval[1], one.interval[1] - other.interval[0]),
        (*one.findings, *other.findings),
    )


def _tied(one: Quantity, other: Quantity) -> Quantity:
    """The difference of two utilities that are the same at every draw."""
    apart = _apart(one, other)
    low, high = (end - apart.value for end in apart.interval)
    return apart._replace(value=0.0, interval=(low, high))


def _surer(one: Quantity, other: Quantity) -> Quantity:
    """The one that is `ok`, or the smaller error of the two."""
    return min(one, other, key=lambda quantity: (not quantity.status, quantity.standard_error))


def _regret(evpi: Quantity, difference: Quantity | None) -> Quantity:
    """The regret of an action is that of the best one and the difference to it.

    Both are from the same draws: the error is at most the sum of theirs.
    """
    if difference is None:
        return evpi
    if evpi.status is Status.no_mass_found:
        return difference
    low, high = (one + other for one, other in zip(evpi.interval, difference.interval, strict=True))
    return Quantity(
        evpi.value + difference.value,
        evpi.standard_error + difference.standard_error,
        (max(low, 0.0), high),
        (*evpi.findings, *difference.findings),
    )
