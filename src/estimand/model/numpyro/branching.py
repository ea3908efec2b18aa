"""Programs that branch in Python: sites marked ``infer={"branching": True}``.

A marked site has a Python integer as its value. Each sequence of values of the marked sites is a
straight-line program, an `Expectation` in which they are observed: their probability is a factor
of γ. `Tree` finds these sequences in order of promise, with the prior mass of each and of what is
left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from estimand.model.layout import Output, ProgramError
from estimand.model.numpyro.constants import Held
from estimand.model.numpyro.model import NumpyroModel
from estimand.model.numpyro.program import (
    CONCRETE,
    Arguments,
    Expectation,
    ExpectationProgram,
    bind,
    needs_value,
    plain_column,
)
from estimand.model.numpyro.sites import TRACING, drawing_from_prior, is_marked
from estimand.model.numpyro.transforms import has_integers
from estimand.runtime import compiler_options, in_precision

# Values of a site whose probabilities are looked at together.
NUM_VALUES = 64
# Prior draws over which a probability that depends on other sites is averaged.
NUM_DRAWS = 1024
# Choices that are followed without coming to the end of the program.
MAX_CHOICES = 1000

NO_WEIGHTS = np.zeros(NUM_DRAWS)

Values = tuple[tuple[str, int], ...]


def values_text(values: Values) -> str:
    """The values of a branch in words: ``k=2, m=0``."""
    return ", ".join(f"{name}={value}" for name, value in values)


class _Fork(Exception):  # noqa: N818 - not an error: the end of the values
    """A marked site was met beyond the values that are given."""

    def __init__(self, name: str, fn: Any):
        super().__init__(name)
        self.name, self.fn = name, fn


class Following(Messenger):
    """A handler that gives marked sites their values, and has them observed."""

    def __init__(self, program: str, values: Values):
        super().__init__()
        self.program, self.values = program, values
        self.num_taken = 0

    def process_message(self, msg: dict) -> None:
        if not is_marked(msg):
            return
        _check_marked(f"site {msg['name']!r} of program {self.program!r}", msg)
        if self.num_taken == len(self.values):
            raise _Fork(msg["name"], msg["fn"])
        name, value = self.values[self.num_taken]
        if name != msg["name"]:
            raise _changed(self.program)
        msg["value"], msg["is_observed"] = value, True
        self.num_taken += 1


def _check_marked(where: str, msg: dict) -> None:
    fn = msg["fn"]
    if not has_integers(fn.support):
        raise ProgramError(
            f'{where} is marked with infer={{"branching": True}}, and its values are not integers: '
            "only Bernoulli, Categorical, Poisson and other such sites can branch."
        )
    if fn.shape() != ():
        raise ProgramError(
            f'{where} is marked with infer={{"branching": True}} and has shape {fn.shape()}: a '
            "branching site is a single integer. Draw its elements as sites of their own, in a "
            "Python loop."
        )


def _changed(program: str) -> ProgramError:
    return ProgramError(
        f"program {program!r} meets other branching sites on every call: remove the state that it "
        "keeps."
    )


class StraightLine(ExpectationProgram):
    """A program in which the marked sites have given values."""

    def __init__(self, program: ExpectationProgram, data: Arguments, values: Values):
        super().__init__(*program.functions(data))
        self.name = f"{program.name} ({values_text(values)})"
        self.values = values

    def run(self, data: Arguments, arrays: tuple[jax.Array, ...]) -> Any:
        following = Following(self.name, self.values)
        try:
            with following:
                value = super().run(data, arrays)
        except _Fork:
            raise _changed(self.name) from None
        if following.num_taken < len(self.values):
            raise _changed(self.name)
        return value


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BranchingExpectation(Expectation):
    """A program with branching sites, bound to data.

    `latents` and `output` are those of the branch that was found first, whose values are `first`.
    """

    first: Values = ()

    @property
    def model(self) -> NumpyroModel:  # type: ignore[override]
        raise ProgramError(
            f"program {self.name!r} branches at site {self.first[0][0]!r}, and a program with "
            "branches has no single density: estimate it with estimate_expectation, or take one of "
            f"its branches, such as expectation.branch({dict(self.first)})."
        )

    def tree(self) -> Tree:
        """All branches, none of them found yet."""
        return Tree(self.program, self.data)

    def branch(self, values: Values | dict[str, int]) -> Expectation:
        """The straight-line program in which the branching sites have these values."""
        path = tuple(values.items()) if isinstance(values, dict) else values
        known: dict[Values, Expectation] = self.__dict__.setdefault("_branches", {})
        if path not in known:
            args, kwargs = self.data.arguments(self.data.numbers)
            line = StraightLine(self.program, self.data, path)
            bound = bind(line, args, kwargs, needs_output=self.output is not None)
            for key in self.path:
                bound = bound[key]
            known[path] = self._ordered(bound)
        return known[path]

    def _ordered(self, branch: Expectation) -> Expectation:
        """A branch whose outputs come in this program's order; they must be the same."""
        if self.output is None or branch.output is None:
            return branch
        if self.output.structure != branch.output.structure:
            raise ProgramError(
                f"the branches of program {self.name!r} return different structures: with "
                f"{values_text(self.first)} {_shown(self.output)}, and {branch.program.name!r} "
                f"{_shown(branch.output)}. Return the same structure in every branch."
            )
        return dataclasses.replace(branch, output=branch.output.in_order_of(self.output))

    def __repr__(self) -> str:
        size = 0 if self.output is None else self.output.size
        count = f"{size} output{'' if size == 1 else 's'}"
        return f"<expectation of {self.name}: {count}, branches at site {self.first[0][0]!r}>"


def _shown(output: Output) -> str:
    template = output.tree(output.shapes)
    return f"numbers of the shapes {template}"


def bind_branching(
    program: ExpectationProgram, args: tuple, kwargs: dict, needs_output: bool
) -> BranchingExpectation:
    """Binds data to a program with marked sites, after checking the first branch that is found."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    held = Held((program.model, program.target))
    leaves = [*map(plain_column, leaves), *held.constants]
    written = Arguments(leaves, treedef, (False,) * len(leaves), held)
    with in_precision("double"):
        leaf = Tree(program, written).next_leaf()
    assert leaf is not None
    line = StraightLine(program, written, leaf.values)
    first = bind(line, args, kwargs, needs_output=needs_output)
    return BranchingExpectation(program, first.data, first.latents, first.output, first=leaf.values)


# --- finding the branches ---


class Leaf(NamedTuple):
    """A branch: the values of its sites, and its prior mass."""

    values: Values
    mass: float


class _Open(NamedTuple):
    """Branches that are not told apart yet: those that begin with some values.

    `look` is the one that chose the last value, and `log_weights` are the log probabilities of all
    values at its draws. With a `number` it is the one that chooses the next value, which has this
    number, counted from the lowest, or a higher one; `whole` is the mass of all that begin with the
    values.
    """

    values: Values
    mass: float
    log_weights: np.ndarray = NO_WEIGHTS
    look: _Look | None = None
    number: int = 0
    whole: float = math.nan


def _by_mass(_values: Values) -> float:
    return 0.0


class Tree:
    """The branches of a program, found one by one."""

    def __init__(self, program: ExpectationProgram, data: Arguments):
        self._program, self._data = program, data
        self._open = [_Open((), 1.0)]

    @property
    def mass_left(self) -> float:
        """The prior mass of all branches that were not found yet."""
        return math.fsum(item.mass for item in self._open)

    def next_leaf(self, log_promise: Callable[[Values], float] = _by_mass) -> Leaf | None:
        """The next branch; None if there is none left.

        Args:
            log_promise: of branches that begin with some values: the logarithm of what their prior
                mass is worth, compared with that of others.
        """

        def key(number: int) -> float:
            return math.log(self._open[number].mass) + log_promise(self._open[number].values)

        for _ in range(MAX_CHOICES):
            if not self._open:
                return None
            best = self._open.pop(max(range(len(self._open)), key=key))
            look = best.look
            if look is None or best.number == 0:
                look = _Look(self._program, self._data, best.values, best.look)
                if look.is_end:
                    return Leaf(best.values, best.mass)
            self._open += [item for item in look.choices(best) if item.mass > 0]
        raise ProgramError(
            f"no end of program {self._program.name!r} was found after {MAX_CHOICES:,} choices at "
            "its branching sites: does it end?"
        )


class _Look:
    """The program up to the first marked site beyond some values, or to its end.

    What was drawn before the last of these values is taken over from the look that chose it.
    """

    def __init__(
        self, program: ExpectationProgram, data: Arguments, values: Values, before: _Look | None
    ):
        self.program, self.data, self.values = program, data, values
        self.name: str | None = None
        self.is_bounded = True
        self.draws: dict[str, jax.Array] = {}
        self._found: tuple = ()
        known = {} if before is None else before.draws
        # JAX's own generator would have a program compiled for its key.
        seeds = np.arange(NUM_DRAWS, dtype=np.uint32)
        words = np.stack([np.full_like(seeds, len(values)), seeds], axis=1)
        keys = jax.random.wrap_key_data(words, impl="threefry2x32")  # type: ignore[arg-type]
        run = jax.jit(jax.vmap(self._one, (0, 0, None)), compiler_options=compiler_options(0))
        self._ask: Callable[[int], tuple] = lambda number: run(keys, known, number)
        try:
            jax.eval_shape(self._one, keys[0], {name: v[0] for name, v in known.items()}, 0)
            if not self.is_end:
                self.draws, self._found = self._ask(0)
        except CONCRETE as error:
            raise needs_value(program.name) from error

    def _one(self, rng_key: jax.Array, known: dict[str, jax.Array], number: jax.Array) -> tuple:
        """Draws of the sites before the next marked one, and the probabilities of its values."""
        fork = None
        try:
            with (
                TRACING,
                handlers.trace() as sites,
                drawing_from_prior(rng_key),
                handlers.substitute(data=known),
                Following(self.program.name, self.values),
            ):
                self.program.run(self.data, self.data.arrays)
        except _Fork as raised:
            fork = raised
        if fork is None:
            return ()
        self.name = fork.name
        low, high = _ends(fork.fn.support)
        self.is_bounded = high is not None
        candidates = low + number + jnp.arange(NUM_VALUES)
        log_probs = jax.vmap(fork.fn.log_prob)(candidates)
        if high is not None:
            log_probs = jnp.where(candidates <= high, log_probs, -jnp.inf)
        ends = jnp.asarray(low), jnp.asarray(low if high is None else high)
        latents = {
            name: site["value"]
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        return latents, (log_probs, *ends)

    @property
    def is_end(self) -> bool:
        return self.name is None

    def choices(self, item: _Open) -> list[_Open]:
        """Branches of an item by their next value, and the rest of them."""
        found = self._found if item.number == 0 else self._ask(item.number)[1]
        log_probs, low, high = (np.asarray(array) for array in found)
        if (low != low[0]).any() or (high != high[0]).any():
            raise ProgramError(
                f"the support of branching site {self.name!r} of program {self.program.name!r} "
                "depends on other sites that do not branch: mark them, too, or give it a fixed "
                "support."
            )
        weights = np.exp(item.log_weights - item.log_weights.max())
        shares = weights @ np.exp(log_probs) / weights.sum()
        whole = item.mass if item.number == 0 else item.whole
        assert self.name is not None
        start = int(low[0]) + item.number
        chosen = [
            _Open(
                values=(*self.values, (self.name, start + k)),
                mass=whole * float(share),
                log_weights=item.log_weights + log_probs[:, k],
                look=self,
            )
            for k, share in enumerate(shares)
        ]
        has_more = not self.is_bounded or start + NUM_VALUES <= int(high[0])
        rest = item.mass - math.fsum(other.mass for other in chosen)
        if has_more and rest > 0:
            number = item.number + NUM_VALUES
            chosen.append(item._replace(mass=rest, look=self, number=number, whole=whole))
        return chosen


def _ends(support: Any) -> tuple[Any, Any]:
    """The lowest and the highest integer of a support; None if there is no highest."""
    if support is constraints.boolean:
        return 0, 1
    return support.lower_bound, getattr(support, "upper_bound", None)
