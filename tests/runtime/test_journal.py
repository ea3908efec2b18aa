"""The journal: entries are restored exactly, and damaged ones are rejected."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimand.runtime import journal

FINGERPRINT = {"program": "p", "data": "d", "method": "m", "key": "k", "jax": "1"}


class Pair(NamedTuple):
    left: Any
    right: Any


def values(number: int) -> Any:
    array = np.random.default_rng(number).normal(size=(2, number % 3))
    return Pair((number, 0.1 * number, None, True), [array, jnp.asarray(array), np.float32(number)])


def plain(number: int) -> Any:
    return (number, np.full(number, 0.1))


def write(
    path: Path,
    count: int,
    calls: list[int] | None = None,
    value: Callable[[int], Any] = values,
) -> list[Any]:
    def compute(number: int) -> Any:
        if calls is not None:
            calls.append(number)
        return value(number)

    with journal.writing(path, FINGERPRINT) as book:
        return [
            book.remember(f"entry {k}", functools.partial(compute, k), (Pair,))
            for k in range(count)
        ]


def assert_equal(one: Any, other: Any) -> None:
    assert str(jax.tree.structure(one)) == str(jax.tree.structure(other))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_values_are_restored_exactly(tmp_path: Path) -> None:
    path, calls = tmp_path / "a.est", list[int]()
    assert_equal(write(path, 4, calls), [values(k) for k in range(4)])
    assert_equal(write(path, 4, calls), [values(k) for k in range(4)])
    assert calls == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), -0.0, float("-inf"), 2**70, 5e-324])
def test_numbers_are_exact(tmp_path: Path, value: Any) -> None:
    for _ in range(2):
        with journal.writing(tmp_path / "a.est", FINGERPRINT) as book:
            found = book.remember("x", lambda: (value, np.asarray([float(value)])))
        assert repr(found) == repr((value, np.asarray([float(value)])))


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait for the disk."""
    monkeypatch.setattr(journal.os, "fsync", lambda _: None)


def test_every_entry_is_on_the_disk_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    path = tmp_path / "a.est"
    monkeypatch.setattr(journal.os, "fsync", lambda _: sizes.append(path.stat().st_size))
    with journal.writing(path, FINGERPRINT) as book:
        for number in range(3):
            book.remember("x", lambda: np.zeros(1000))
            assert len(set(sizes)) == 2 + number
            assert sizes[-1] == path.stat().st_size


@pytest.mark.usefixtures("unsettled")
def test_whatever_is_cut_off_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.est"
    ends = []
    for count in range(4):
        write(path, count, value=plain)
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        calls: list[int] = []
        assert_equal(write(path, 3, calls, plain), [plain(k) for k in range(3)])
        assert calls == list(range(max(0, sum(end <= size for end in ends) - 1), 3))
        with journal.writing(path, FINGERPRINT) as book:
            assert book.num_entries == 3


@pytest.mark.usefixtures("unsettled")
def test_any_altered_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.est"
    write(path, 0)
    start = path.stat().st_size
    write(path, 3, value=plain)
    whole = path.read_bytes()
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        if place < start:
            with pytest.raises(journal.CheckpointError):
                write(path, 3, value=plain)
            assert path.read_bytes() == altered
            continue
        calls: list[int] = []
        assert_equal(write(path, 3, calls, plain), [plain(k) for k in range(3)])
        assert calls, place


def test_frames_fit_in_their_own_place_only(tmp_path: Path) -> None:
    path = tmp_path / "a.est"
    sizes = []
    for count in range(3):
        write(path, count)
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    path.write_bytes(whole[: sizes[0]] + whole[sizes[1] :])
    with journal.writing(path, FINGERPRINT) as book:
        assert book.num_entries == 0


def test_calls_inside_calls_are_kept_and_then_not_needed(tmp_path: Path) -> None:
    calls: list[str] = []

    def inner(name: str) -> int:
        calls.append(name)
        if name == stopped:
            raise KeyboardInterrupt
        return len(name)

    def outer(book: journal.Journal) -> int:
        names = ("a", "bb", "ccc")
        return sum(book.remember(name, functools.partial(inner, name)) for name in names)

    def run() -> tuple[int, int]:
        with journal.writing(tmp_path / "a.est", FINGERPRINT) as book:
            first = book.remember("outer", lambda: outer(book))
            return first, book.remember("d", lambda: inner("dddd"))

    for stopped in ("bb", "dddd"):  # noqa: B007
        with pytest.raises(KeyboardInterrupt):
            run()
    stopped = ""
    assert run() == (6, 4)
    assert run() == (6, 4)
    assert calls == ["a", "bb", "bb", "ccc", "dddd", "dddd"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("program", "another program or changed source"),
        ("data", "other data"),
        ("method", "another method or other settings"),
        ("key", "key k instead of other"),
        ("jax", "jax 1 instead of other"),
    ],
)
def test_the_refusal_says_what_differs(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / "a.est"
    write(path, 1)
    before = path.read_bytes()
    with (
        pytest.raises(journal.CheckpointError, match=f"to another run: it has {words}[.]"),
        journal.writing(path, {**FINGERPRINT, name: "other"}),
    ):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a letter", "is not changed"), (journal.NAME + b"2\nxyz", "another version")],
)
def test_foreign_files_are_left_alone(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.est"
    path.write_bytes(content)
    with pytest.raises(journal.CheckpointError, match=words):
        write(path, 1)
    assert path.read_bytes() == content


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        journal.writing(tmp_path / "a.est", FINGERPRINT),
        pytest.raises(journal.CheckpointError, match="another process"),
    ):
        write(tmp_path / "a.est", 1)
    write(tmp_path / "a.est", 1)


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    for value in (object(), jax.random.key(0), Pair(1, 2)):
        with (
            journal.writing(tmp_path / "a.est", FINGERPRINT) as book,
            pytest.raises(TypeError, match="checkpoint: thing"),
        ):
            book.remember("thing", lambda value=value: value)  # type: ignore[misc]
    with pytest.raises(FileNotFoundError, match="no folder"):
        write(tmp_path / "nowhere" / "a.est", 1)


def test_a_label_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.est", 1)
    with (
        journal.writing(tmp_path / "a.est", FINGERPRINT) as book,
        pytest.raises(journal.CheckpointError, match="'entry 0' where this run has 'other'"),
    ):
        book.remember("other", lambda: 1)
