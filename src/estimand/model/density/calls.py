"""The functions that a user states a model by: how they are called, and what they may give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimand.model.layout import ProgramError
from estimand.model.numpyro import CONCRETE


class Stated(NamedTuple):
    """What a program is made of. A tuple, so that the constants its functions hold are found."""

    name: str
    log_likelihood: Callable | None
    prior: Any
    f: Callable | None

    @property
    def with_data(self) -> Callable:
        """The function whose further arguments are the data."""
        function = self.f if self.log_likelihood is None else self.log_likelihood
        assert function is not None
        return function

    def call(self, what: str, function: Callable, values: Any, data: tuple[tuple, dict]) -> Any:
        """Calls one of the functions, with the data if it takes them."""
        args, kwargs = data if takes_data(function, self.with_data) else ((), {})
        return call(self.name, what, function, values, *args, **kwargs)


def call(program: str, what: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of the user; one that JAX cannot trace is refused by its name."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # a builtin, which does not say what it takes
        pass
    except TypeError as error:
        raise ProgramError(
            f"{what} of program {program!r} takes {inspect.signature(function)}, which does not "
            f"fit {len(args) + len(kwargs)} arguments: {error}. It takes the parameters, and after "
            "these the data with which the program is called, or the parameters alone."
        ) from None
    try:
        return function(*args, **kwargs)
    except CONCRETE as error:
        raise ProgramError(
            f"{what} of program {program!r} needs the value of a parameter as a Python number, and "
            "JAX traces it without one. Use functions of jax.numpy and jax.scipy instead of numpy, "
            "scipy and math, and jnp.where or jax.lax.cond instead of if."
        ) from error
    except KeyError as error:
        values = args[0] if args else None
        if not isinstance(values, dict) or error.args[0] in values:
            raise
        raise ProgramError(
            f"{what} of program {program!r} asks for {error.args[0]!r}, and there are only "
            f"{list(values)}."
        ) from error


def takes_data(function: Callable, model: Callable) -> bool:
    """Whether a function is called with the data.

    It is if it has a further parameter without a default value, or one of the name of a datum. One
    with a default is often a constant that was bound in a loop: ``lambda v, t=t: v["x"] > t``.
    """
    if function is model:
        return True
    try:
        _, *further = inspect.signature(function).parameters.values()
        known = inspect.signature(model).parameters
    except ValueError:
        return False
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        item.kind in open_ended or item.default is item.empty or item.name in known
        for item in further
    )


class Drawn(NamedTuple):
    """The parameters as the functions take them, and the names that are in use."""

    values: Any
    names: tuple[str, ...]


def one_number(program: str, what: str, value: Any) -> jax.Array:
    """A log density, after its type and shape were checked."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or not (
        jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    ):
        kind = type(value).__name__ if array is None else array.dtype
        raise ProgramError(
            f"{what} of program {program!r} gives a value of type {kind}: return one real number."
        )
    if array.shape:
        raise ProgramError(
            f"{what} of program {program!r} gives an array of shape {array.shape}: return one "
            "number, the sum of it: jnp.sum(...)."
        )
    return array


def free_name(name: str, names: tuple[str, ...]) -> str:
    """A name that is not in use."""
    while name in names:
        name += "_"
    return name


def check_names(what: str, names: Sequence[Any]) -> None:
    """Refuses what is not a list of different names."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"from_density: {what} must be names; there is {name!r}.")
    if len(set(names)) < len(names):
        raise ValueError(f"from_density: {what} must be different names; they are {list(names)}.")


def parameters_of(what: str, values: Any, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Parameters by name: elements of a vector, or leaves of a pytree."""
    leaves, _ = jax.tree.flatten_with_path(values, is_leaf=lambda leaf: leaf is None)
    if not leaves:
        raise ProgramError(f"{what} gives no parameters: {values!r}.")
    for path, leaf in leaves:
        if leaf is None or (not hasattr(leaf, "dtype") and not isinstance(leaf, float | int)):
            raise ProgramError(
                f"{what} gives {type(leaf).__name__} in the place of a parameter"
                f"{_at(path)}: return an array, or a dict or tuple of arrays."
            )
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ProgramError(
                f"{what} gives numbers of type {jnp.result_type(leaf)}{_at(path)}: parameters are "
                "real. Discrete ones can be given as distributions, by prior=."
            )
    if names is not None:
        if len(leaves) > 1 or jnp.shape(leaves[0][1]) != (len(names),):
            shapes = [jnp.shape(leaf) for _, leaf in leaves]
            raise ProgramError(
                f"{what} gives arrays of shapes {shapes}, and there are {len(names)} names: names "
                "go with a vector of as many elements."
            )
        return {name: leaves[0][1][k] for k, name in enumerate(names)}
    found = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "theta": leaf
        for path, leaf in leaves
    }
    if len(found) < len(leaves):
        raise ProgramError(f"{what} gives parameters of equal names: {list(found)}.")
    return found


def _at(path: Any) -> str:
    return f" at {jax.tree_util.keystr(path)}" if path else ""
