"""Linear algebra has one thread while an estimate is made, and as many as before afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from estimand.runtime import one_blas_thread

assert np.linalg.inv(np.eye(2)).any()  # BLAS is loaded
CONTROLLER = ThreadpoolController()


def num_threads() -> set[int]:
    return {library["num_threads"] for library in CONTROLLER.select(user_api="blas").info()}


@pytest.fixture(autouse=True)
def two_threads() -> object:
    with CONTROLLER.limit(limits=2, user_api="blas"):
        yield


def test_one_thread_inside_and_as_before_outside() -> None:
    with one_blas_thread():
        assert num_threads() == {1}
        with one_blas_thread():
            assert num_threads() == {1}
        assert num_threads() == {1}
    assert num_threads() == {2}


def test_an_error_inside_takes_the_limit_away() -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert num_threads() == {2}
