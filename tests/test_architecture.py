"""Packages in one direction and through their doors, the core's imports, and the demo."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "estimand"

# Each package (or single module) imports only from those before it and from itself.
PACKAGES = (
    "settings",
    "runtime",
    "model",
    "target",
    "density",
    "kernels",
    "sampling",
    "trust",
    "estimators",
    "methods",
    "record",
    "plots",
    "view",
    "sensitivity",
    "estimate",
    "many",
    "answers",
    "cli",
    "__main__",
    "__init__",
)
# SciPy is imported where it is used, not with the package.
CORE = {"jax", "numpyro", "numpy", "estimand", "scipy", "threadpoolctl"}
# Optional libraries, and the packages that may import them: inside functions, except for the
# command line.
EXTRAS = {
    "rich": {"runtime", "view"},
    "xarray": {"record", "estimate", "many", "answers"},
    "arviz_stats": {"answers"},
    "pandas": {"record", "estimate", "many", "answers"},
    "matplotlib": {"plots", "view"},
    "click": {"cli"},
    "cloudpickle": {"runtime"},
    "distributed": {"cli"},
    "pymc": {"model"},
    "pytensor": {"model"},
}
# Only `model` runs programs under handlers.
NUMPYRO = {
    "numpyro.handlers": {"model"},
    "numpyro.infer": {"model", "kernels", "sampling"},
    "numpyro.diagnostics": {"model", "kernels", "sampling"},
}
MAX_LINES = 70

FILES = sorted(path for path in SOURCE.rglob("*.py") if "starters" not in path.parts)


class Import(NamedTuple):
    """`from module import name`; the name is empty for `import module`."""

    file: str
    line: int
    module: str
    name: str
    is_at_top: bool

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.full}"


def label(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def imports_of(package: str) -> tuple[Import, ...]:
    """Everything that the files of a package import."""
    own = [path for path in FILES if label(path).split("/")[0].removesuffix(".py") == package]
    return tuple(
        item
        for path in own
        for item in _imports(ast.parse(path.read_text()), label(path), is_at_top=True)
    )


def _imports(node: ast.AST, file: str, *, is_at_top: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(file, node.lineno, alias.name, "", is_at_top)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file} has a relative import"
        assert node.module is not None
        for alias in node.names:
            yield Import(file, node.lineno, node.module, alias.name, is_at_top)
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        is_run = is_at_top and not is_function and not is_for_types
        yield from _imports(child, file, is_at_top=is_run)


def entered(item: Import) -> str | None:
    """The package of this library from which something is imported; None for other libraries."""
    top, _, rest = item.module.partition(".")
    if top != "estimand":
        return None
    if rest:
        return rest.split(".")[0]
    return item.name if item.name in PACKAGES else "__init__"


@functools.cache
def shown(package: str) -> frozenset[str]:
    """The names in `__all__` at a package's door."""
    for node in ast.parse((SOURCE / package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def is_through_the_door(item: Import, package: str) -> bool:
    """Whether a name comes from the package itself: not from, and not as, an inner module."""
    if not (SOURCE / package).is_dir() or item.module == "estimand":
        return True
    if item.module != f"estimand.{package}":
        return False
    folder = SOURCE / package
    is_module = (folder / f"{item.name}.py").exists() or (folder / item.name).is_dir()
    return bool(item.name) and (not is_module or item.name in shown(package))


def test_every_package_has_its_place() -> None:
    modules = {path.stem for path in SOURCE.glob("*.py")}
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert modules | folders == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_from_those_before(package: str) -> None:
    later = [
        str(item)
        for item in imports_of(package)
        if (other := entered(item)) and PACKAGES.index(other) > PACKAGES.index(package)
    ]
    assert not later, "\n".join(later)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_entered_through_their_doors(package: str) -> None:
    """`from estimand.kernels import HMC`, not `from estimand.kernels.hmc import HMC`."""
    around = [
        str(item)
        for item in imports_of(package)
        if (other := entered(item)) and other != package and not is_through_the_door(item, other)
    ]
    assert not around, "\n".join(around)


@pytest.mark.parametrize("package", PACKAGES)
def test_core_imports_are_few(package: str) -> None:
    for item in imports_of(package):
        top = item.module.split(".")[0]
        if top in EXTRAS:
            assert package in EXTRAS[top], str(item)
            assert package == "cli" or not item.is_at_top, str(item)
        else:
            assert top in CORE or top in sys.stdlib_module_names, str(item)


# The names by which distributions are installed, where they differ from the module's.
DISTRIBUTIONS = {"arviz_stats": "arviz-stats", "arviz_base": "arviz-base", "pytensor": "pymc"}


def test_every_import_is_declared() -> None:
    """What the core imports is a dependency, and all else is in an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=;]", item)[0] for item in requirements}

    core = names(project["dependencies"])
    extras = {name for items in project["optional-dependencies"].values() for name in names(items)}
    imported = {item.module.split(".")[0] for package in PACKAGES for item in imports_of(package)}
    for module in imported - set(sys.stdlib_module_names) - {"estimand"}:
        name = DISTRIBUTIONS.get(module, module)
        assert name in (core if module not in EXTRAS else extras | core), module
    assert names(project["dependencies"]) == {*CORE, "click"} - {"estimand"}


@pytest.mark.parametrize("package", PACKAGES)
def test_only_the_model_knows_handlers(package: str) -> None:
    found = [
        str(item)
        for item in imports_of(package)
        for module, packages in NUMPYRO.items()
        if f"{item.full}.".startswith(f"{module}.") and package not in packages
    ]
    assert not found, "\n".join(found)


def test_import_brings_in_no_extra() -> None:
    code = (
        "import sys, estimand; "
        "print([m for m in ('rich', 'matplotlib', 'xarray', 'click', 'scipy.stats', 'blackjax')"
        " if m in sys.modules])"
    )
    plain = "import sys, numpyro; " + code.split("; ", 1)[1]
    outputs = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        for text in (code, plain)
    ]
    assert outputs[0].stdout == outputs[1].stdout


def test_functions_are_short() -> None:
    long = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.body[0].lineno + 1
                if lines > MAX_LINES:
                    long[f"{label(path)}::{node.name}"] = lines
    assert not long


@pytest.mark.slow
def test_demo_prints_both_methods_and_the_truth() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    for words in ("default", "TABI + AnIS", "NUTS", "truth", "no_mass_found", "2.2964e-06"):
        assert words in result.stdout
    assert "of its standard errors" in result.stdout
    rows = re.findall(r"([\d.e+-]+) ± .*?\(([\d.e+-]+), +([\d.e+-]+)\)", result.stdout)
    assert len(rows) == 5
    for value, low, high in rows:
        truth = 2.5 if float(value) > 1 else 2.2964e-06
        assert float(low) < truth < float(high)
    report = Path(result.stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert report.is_relative_to(ROOT / "build")
    assert "<svg" in report.read_text()
