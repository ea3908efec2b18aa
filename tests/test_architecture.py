"""The one-way flow of modules, the core's imports, and the demo."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEAR

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "estimand"

# Each module imports only from those before it.
ORDER = (
    "settings",
    "compilation",
    "progress",
    "journal",
    "interruption",
    "intervals",
    "scaled",
    "expression",
    "target",
    "sites",
    "program",
    "coordinates",
    "density",
    "schedule",
    "resampling",
    "kernels",
    "evidence",
    "annealed",
    "smc",
    "bridge",
    "methods",
    "posterior",
    "posterior_bridge",
    "mixture",
    "warp",
    "laplace",
    "importance",
    "proposal",
    "adaptive",
    "auto",
    "origin",
    "record",
    "resolution",
    "merge",
    "goal",
    "io",
    "diagnostics",
    "summary",
    "plots",
    "report",
    "estimate",
    "cli",
    "__init__",
)
# SciPy comes with JAX; it is imported where it is used, not with the package.
CORE = {"jax", "numpyro", "numpy", "estimand", "scipy"}
# Optional libraries, and the modules that may import them, inside functions.
EXTRAS = {
    "progress": {"rich"},
    "io": {"xarray"},
    "estimate": {"xarray"},
    "summary": {"rich"},
    "plots": {"matplotlib"},
    "report": {"matplotlib"},
    "cli": {"click"},
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            assert node.module is not None
            found.add(node.module)
            if node.module == "estimand":
                found.update(f"estimand.{alias.name}" for alias in node.names)
    return found


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_modules_import_only_from_those_above(module: str) -> None:
    for name in imports_of(SOURCE / f"{module}.py"):
        if name.startswith("estimand."):
            assert ORDER.index(name.split(".")[1]) < ORDER.index(module), (module, name)


@pytest.mark.parametrize("module", ORDER)
def test_core_imports_are_few(module: str) -> None:
    for name in imports_of(SOURCE / f"{module}.py"):
        top = name.split(".")[0]
        allowed = CORE | EXTRAS.get(module, set())
        assert top in allowed or top in sys.stdlib_module_names, (module, name)


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


def test_files_are_short() -> None:
    for path in SOURCE.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 550, path.name


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
    report = Path(result.stdout.strip().splitlines()[-1].split(": ", 1)[1])
    assert report.is_relative_to(ROOT / "build")
    assert "<svg" in report.read_text()


@pytest.mark.parametrize("pattern", DEAR)
def test_dear_tests_exist(pattern: str) -> None:
    """A pattern that no test's name begins with would hide nothing and say so nowhere."""
    file, _, name = pattern.partition("::")
    defined = re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    function = re.compile(name.split(r"\[")[0])
    assert any(map(function.match, defined))
