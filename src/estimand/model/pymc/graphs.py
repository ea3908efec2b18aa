"""PyMC's symbolic graphs as JAX functions of the values of free variables and of the data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from estimand.model.layout import ProgramError

if TYPE_CHECKING:
    from pymc import Model as PymcModel

# A tensor of PyTensor's. It has no types that would be of use here.
Variable = Any

# Turns PyMC's checks of parameters into densities of 0, as PyMC's own compiled functions do.
_CHECKS = "local_check_parameter_to_ninf_switch"


def require_pymc() -> Any:
    """PyMC, or an ImportError that says how to install it."""
    try:
        with warnings.catch_warnings():
            # ArviZ announces its next version.
            warnings.simplefilter("ignore")
            import pymc
    except ImportError as error:
        raise ImportError("from_pymc needs PyMC: pip install 'estimand[pymc]'") from error
    return pymc


class Random(NamedTuple):
    """A random variable of the model: its name, itself, and the variable that has its value."""

    name: str
    rv: Variable
    value: Variable
    transform: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape


class Graphs:
    """The graphs of a model, with inputs in the places of free variables and of the data.

    All shapes are known: data are inputs of the shape that they have now, and the lengths of
    dimensions are constants.
    """

    def __init__(self, model: PymcModel, further: Sequence[Variable]):
        self.name = model.name or "pymc_model"
        free, observed = model.free_RVs, model.observed_RVs
        given = [model.rvs_to_values[rv] for rv in observed]
        whole = [*free, *observed, *model.potentials, *model.deterministics, *further, *given]
        self.data: dict[str, np.ndarray] = {}
        self._inputs: list[Variable] = []
        cloned = iter(self._with_inputs(model, whole))
        self.free = _parents_first(
            [
                Random(rv.name, new, self._value_of(rv.name, new), model.rvs_to_transforms[rv])
                for rv in free
                for new in [next(cloned)]
            ]
        )
        rvs = [next(cloned) for _ in observed]
        self._potentials = [next(cloned) for _ in model.potentials]
        self._deterministics = {rv.name: next(cloned) for rv in model.deterministics}
        self._further = [next(cloned) for _ in further]
        self.observed = [
            Random(old.name, rv, self._data_of(old.name, value))
            for old, rv, value in zip(observed, rvs, cloned, strict=True)
        ]

    def _with_inputs(self, model: PymcModel, variables: list[Variable]) -> list[Variable]:
        """The same graphs with inputs for shared variables, and constants for lengths."""
        import pytensor.tensor as pt
        from pytensor.compile.sharedvalue import SharedVariable
        from pytensor.graph.replace import clone_replace
        from pytensor.graph.traversal import ancestors
        from pytensor.tensor.random.type import RandomType

        lengths = list(model.dim_lengths.values())
        replaced: dict[Variable, Variable] = {}
        for variable in ancestors(variables):
            if not isinstance(variable, SharedVariable) or isinstance(variable.type, RandomType):
                continue
            value = np.asarray(variable.get_value())
            if any(variable is length for length in lengths):
                replaced[variable] = pt.constant(value, name=variable.name)
            else:
                name = variable.name or f"shared_{len(self.data)}"
                dtype = variable.type.dtype
                replaced[variable] = self._input(
                    name, value, pt.tensor(name, dtype=dtype, shape=value.shape)
                )
        return clone_replace(variables, replaced, rebuild_strict=False)

    def _input(self, name: str, value: np.ndarray, variable: Variable) -> Variable:
        # Of short integers JAX makes floats of single precision, where PyTensor makes double ones.
        self.data[name] = value.astype(np.int64) if value.dtype.kind in "iu" else value
        self._inputs.append(variable)
        return variable

    def _value_of(self, name: str, rv: Variable) -> Variable:
        """A variable for the value of a random variable, of known shape."""
        import pytensor.tensor as pt
        from pymc.pytensorf import constant_fold

        shape = rv.type.shape
        if None in shape:
            [found] = constant_fold([pt.stack(tuple(rv.shape))], raise_not_constant=False)
            if not isinstance(found, np.ndarray):
                raise ProgramError(
                    f"the shape of variable {name!r} of {self.name!r} depends on data or on other "
                    "variables: give it shape= or dims=."
                )
            shape = tuple(found.tolist())
        return pt.tensor(name, dtype=rv.type.dtype, shape=shape)

    def _data_of(self, name: str, value: Variable) -> Variable:
        """Observed values as an input, if they are numbers and not a graph of other data."""
        if not hasattr(value, "data") or value.owner is not None:
            return value
        return self._input(name, np.asarray(value.data), value.type(name=name))

    @property
    def deterministic_names(self) -> tuple[str, ...]:
        return tuple(self._deterministics)

    def small_deterministics(self, limit: int) -> tuple[str, ...]:
        """Names of the first ones that have at most so many numbers together."""
        names, left = [], limit
        for name, graph in self._deterministics.items():
            size = math.inf if None in graph.type.shape else math.prod(graph.type.shape)
            if size <= left:
                names.append(name)
                left -= int(size)
        return tuple(names)

    # --- graphs of values ---

    def log_densities(self) -> dict[str, Variable]:
        """Log density of every random variable given the others, by name."""
        from pymc.logprob.basic import conditional_logp

        randoms = [*self.free, *self.observed]
        values = {random.rv: random.value for random in randoms}
        found = conditional_logp(values)
        return {random.name: found[random.value].sum() for random in randoms}

    def log_likelihood(self, log_densities: dict[str, Variable]) -> Variable:
        """That of data and potentials; −inf outside of the range of the user's own transforms."""
        import pytensor.tensor as pt

        terms = [log_densities[random.name] for random in self.observed]
        terms += [pt.sum(term) for term in self.of_values(self._potentials)]
        terms += [self._restriction(random) for random in self.free]
        return pt.add(*terms) if len(terms) > 1 else terms[0]

    def _restriction(self, random: Random) -> Variable:
        """0 or −inf: a transform that is not the default one can restrict the support further."""
        import pytensor.tensor as pt

        if not _is_own(random):
            return pt.zeros(())
        inputs = self.of_values(random.rv.owner.inputs)
        forward = random.transform.forward(random.value, *inputs)
        is_inside = pt.all(~(pt.isnan(forward) | pt.isinf(forward)))
        return pt.switch(is_inside, 0.0, -np.inf)

    def of_values(self, variables: Sequence[Variable], but: Random | None = None) -> list[Variable]:
        """Graphs of random variables as graphs of their values; one of them may stay random."""
        from pymc.logprob.utils import replace_rvs_by_values

        randoms = [random for random in (*self.free, *self.observed) if random is not but]
        values = {random.rv: random.value for random in randoms}
        return replace_rvs_by_values(list(variables), rvs_to_values=values)

    def reported(self) -> list[Variable]:
        """Observed values, deterministics and what was asked for, as graphs of values."""
        given = [random.value for random in self.observed]
        return [*given, *self.of_values([*self._deterministics.values(), *self._further])]

    # --- JAX ---

    def jaxified(self, what: str, outputs: Sequence[Variable]) -> Callable[..., tuple]:
        """A JAX function of the values of all free variables, then of the data."""
        return self._translated(what, [], outputs) if outputs else lambda *_: ()

    def jaxified_of(
        self, what: str, first: Variable, outputs: Sequence[Variable]
    ) -> Callable[..., tuple]:
        """The same with an argument before the others."""
        return self._translated(what, [first], outputs)

    def drawn(self, random: Random) -> Callable[..., Any]:
        """A JAX function that draws a variable: of a key, of the other values, of the data."""
        import jax

        [graph] = self.of_values([random.rv], but=random)
        generators = _generators([graph])
        self._check_draws(random, graph)
        what = f"the prior draw of {random.name!r}"
        function = self._translated(what, generators, [graph])

        def draw(rng_key: jax.Array, *args: Any) -> Any:
            keys = jax.random.split(rng_key, max(1, len(generators)))
            states = [{"jax_state": jax.random.key_data(key)} for key in keys[: len(generators)]]
            try:
                return function(*states, *args)[0]
            except NotImplementedError as error:  # PyTensor's word for what it cannot translate
                raise self._not_translated(what, error) from error

        return draw

    def _check_draws(self, random: Random, graph: Variable) -> None:
        from pytensor.tensor.random.basic import CategoricalRV

        if any(isinstance(node.op, CategoricalRV) for node in _nodes([graph])):
            # It takes logits of each probability for their logarithms.
            raise ProgramError(
                f"variable {random.name!r} of {self.name!r} is drawn by way of a Categorical "
                "inside of it, which PyTensor's JAX backend draws with wrong probabilities: write "
                "the label as a variable of its own (pm.Categorical), or marginalise it."
            )

    def _translated(
        self, what: str, first: list[Variable], outputs: Sequence[Variable]
    ) -> Callable[..., tuple]:
        from pytensor.compile.mode import get_mode
        from pytensor.graph.fg import FunctionGraph
        from pytensor.link.jax.dispatch import jax_funcify

        inputs = [*first, *(random.value for random in self.free), *self._inputs]
        if not first and _generators(outputs):
            raise ProgramError(
                f"{what} in {self.name!r} are random beyond the variables of the model, as a "
                "pm.Minibatch or a pm.Simulator is: use all data and a likelihood that has a "
                "density, and give every random quantity a name in the model."
            )
        graph = FunctionGraph(inputs, list(outputs), clone=True)
        try:
            get_mode("JAX").including(_CHECKS).optimizer.rewrite(graph)
            with warnings.catch_warnings():
                # Asserts that are dropped; those of parameters are densities of 0 by now.
                warnings.filterwarnings("ignore", message="Skipping ")
                return _quiet(jax_funcify(graph))
        except NotImplementedError as error:  # as above, before anything is drawn
            raise self._not_translated(what, error) from error

    def _not_translated(self, what: str, error: Exception) -> ProgramError:
        return ProgramError(
            f"{what} in {self.name!r} cannot be translated by PyMC's JAX backend: {error}"
        )


def _quiet(function: Callable[..., tuple]) -> Callable[..., tuple]:
    """The same without the warnings of JAX where it has no double precision."""

    def call(*args: Any) -> tuple:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Explicitly requested dtype")
            return function(*args)

    return call


def _parents_first(randoms: list[Random]) -> list[Random]:
    """Random variables, each after those on which it depends."""
    from pytensor.graph.traversal import ancestors

    parents = {
        random.name: set(ancestors(random.rv.owner.inputs)) & {other.rv for other in randoms}
        for random in randoms
    }
    ordered: list[Random] = []
    while len(ordered) < len(randoms):
        known = {random.rv for random in ordered}
        ordered.append(
            next(one for one in randoms if one.rv not in known and parents[one.name] <= known)
        )
    return ordered


def _is_own(random: Random) -> bool:
    """Whether a transform is the user's own, and not the default one of its distribution."""
    from pymc.distributions.transforms import _default_transform

    if random.transform is None:
        return False
    default = _default_transform(random.rv.owner.op, random.rv)
    if type(random.transform) is not type(default):
        return True
    codes = [
        getattr(getattr(item, "args_fn", None), "__code__", None)
        for item in (random.transform, default)
    ]
    return codes[0] is not codes[1]


def default_transform(random: Random) -> Any:
    """PyMC's map of a distribution's support to real numbers; None if it is all of them."""
    from pymc.distributions.transforms import _default_transform

    return _default_transform(random.rv.owner.op, random.rv)


def _generators(variables: Sequence[Variable]) -> list[Variable]:
    """The random generators that graphs begin with."""
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.type import RandomType

    return [
        variable
        for variable in ancestors(variables)
        if isinstance(variable.type, RandomType) and variable.owner is None
    ]


def _nodes(variables: Sequence[Variable]) -> list[Any]:
    """All steps of graphs, with those inside of others."""
    from pytensor.graph.traversal import ancestors

    found = [item.owner for item in ancestors(variables) if item.owner is not None]
    inner = [getattr(node.op, "fgraph", None) for node in found]
    return found + [node for graph in inner if graph is not None for node in _nodes(graph.outputs)]
