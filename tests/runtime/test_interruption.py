"""Ctrl-C is noted at once and raised at the next safe point, once."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from estimand.runtime import CompilationClock, Interruption

pytestmark = pytest.mark.usefixtures("usual_ctrl_c")


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_signal_is_noted_and_raised_once() -> None:
    with Interruption() as interruption:
        interruption.check()
        press()
        assert interruption.is_requested
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
        interruption.check()
        press()
        with pytest.raises(KeyboardInterrupt):
            interruption.check()


def test_the_previous_handler_is_restored() -> None:
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(RuntimeError), Interruption():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        press()


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    heard: list[int] = []

    def handler(number: int, _: Any) -> None:
        heard.append(number)

    signal.signal(signal.SIGINT, handler)
    with Interruption() as interruption:
        assert signal.getsignal(signal.SIGINT) is handler
        press()
        assert heard == [signal.SIGINT]
        assert not interruption.is_requested
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_signal_that_is_ignored_goes_on_being_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruption() as interruption:
        press()
        assert not interruption.is_requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_one_inside_of_another_leaves_the_signal_to_the_outer_one() -> None:
    """As where a listener makes an estimate: the outer run is the one that Ctrl-C is about."""
    with Interruption() as outer:
        with Interruption() as inner:
            press()
        assert outer.is_requested
        assert not inner.is_requested
        press()
        assert outer.is_requested
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_installed_outside_of_the_main_thread() -> None:
    seen: list[Any] = []

    def work() -> None:
        with Interruption() as interruption:
            seen.append(signal.getsignal(signal.SIGINT))
            interruption.check()
            seen.append(interruption.is_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler, False]


def test_it_is_obeyed_between_tracing_and_compiling() -> None:
    """What is pressed while a function is traced ends the work before it runs."""
    ran: list[int] = []

    def function(x: jax.Array) -> jax.Array:
        press()
        jax.debug.callback(lambda: ran.append(1))
        return jnp.cos(x) + 23.0

    with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt), CompilationClock(between=interruption.check):
            jax.jit(function)(jnp.ones(3)).block_until_ready()
        assert ran == []
        # Nothing is broken: the next function is compiled and runs.
        with CompilationClock(between=interruption.check):
            assert float(jax.jit(lambda x: jnp.sin(x) + 29.0)(0.0)) == 29.0
