"""The check of compiled code."""

from __future__ import annotations

import warnings

import pytest

from estimand.runtime import compiler


def test_the_installed_version_compiles_normal_densities_rightly() -> None:
    assert compiler.is_right()


def test_wrong_code_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "is_right", lambda: False)
    monkeypatch.setattr(compiler, "FIRST_CHECKED", (0, 0))
    with pytest.warns(RuntimeWarning, match="install jax 0.10"):
        compiler.warn_of_wrong_code()


def test_known_versions_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "is_right", lambda: False)
    monkeypatch.setattr(compiler, "FIRST_CHECKED", (99, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.warn_of_wrong_code()
