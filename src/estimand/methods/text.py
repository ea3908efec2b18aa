"""Methods as they are written: ``TABI(AnIS(num_samples=1000))`` as text, without running code."""

from __future__ import annotations

import ast
from typing import Any

from estimand.estimators import SMC, AnIS, BridgeSampling, ImportanceSampling
from estimand.kernels import HMC, MALA, NUTS, IndependentT, RandomWalk
from estimand.methods.adaptive import AdaptiveIS, Ascents
from estimand.methods.auto import Auto
from estimand.methods.economical import Economical
from estimand.methods.posterior_bridge import PosteriorBridge
from estimand.methods.posterior_mcmc import PosteriorMCMC
from estimand.methods.protocol import Method
from estimand.methods.self_normalised import SelfNormalised
from estimand.methods.tabi import SKIP, TABI
from estimand.sampling import geometric, linear
from estimand.settings import known_names

METHODS = {
    kind.__name__: kind
    for kind in (Auto, AdaptiveIS, Economical, TABI, SelfNormalised, PosteriorMCMC, PosteriorBridge)
}
# What methods are put together from.
_PIECES = {
    kind.__name__: kind
    for kind in (
        *(AnIS, SMC, BridgeSampling, ImportanceSampling, Ascents),
        *(HMC, MALA, NUTS, IndependentT, RandomWalk, linear, geometric),
    )
} | {"SKIP": SKIP}
_SETTINGS = METHODS | _PIECES
# What averages of chains are called elsewhere.
_CHAINS = ("nuts", "hmc", "mcmc")


def method_of(text: str) -> Method:
    """The method that a text names: calls of the library's own settings, with numbers in them.

    Raises:
        ValueError: if it is anything else; the message says what.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not written as Python: {error.msg}") from error
    called = node.func if isinstance(node, ast.Call) else node
    if (name := ast.unparse(called)) not in METHODS:
        meant = PosteriorMCMC.__name__ if name.lower() in _CHAINS else name
        raise ValueError(f"{name!r} is no method. {known_names(meant, METHODS)}")
    try:
        made = _made(node)
        # A name alone is the method with its defaults.
        return made() if isinstance(made, type) else made
    except TypeError as error:
        raise ValueError(f"{text}: {error}") from error


def _made(node: ast.expr) -> Any:
    """The value of an expression of constants and the library's own settings."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_made(operand)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(map(_made, elements))
        case ast.Dict(keys=keys, values=values) if all(keys):
            return {
                _made(key): _made(value) for key, value in zip(keys, values, strict=True) if key
            }
        case ast.Name(id=name) if name in _SETTINGS:
            return _SETTINGS[name]
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _SETTINGS:
            named = {str(item.arg): _made(item.value) for item in keywords}
            return _SETTINGS[name](*map(_made, args), **named)  # type: ignore[operator]
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    raise ValueError(f"{name!r} is no estimator and no kernel. {known_names(name, _PIECES)}")
