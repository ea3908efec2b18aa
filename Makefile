PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Silences a notice about mkdocs 2, which has no plugins: pyproject.toml keeps mkdocs below it.
export NO_MKDOCS_2_WARNING := 1
STAMP := $(VENV)/.installed

.PHONY: install demo test test-slow test-pymc test-oldest test-newest test-wheel wheel lint types docs printed pictures screenshots benchmarks calibrate peers evidence experiments experiments-quick clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: install
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# PyMC, in an environment of its own.
PYMC_VENV := .venv-pymc
PYMC_STAMP := $(PYMC_VENV)/.installed

$(PYMC_STAMP): pyproject.toml constraints.txt tests/pymc/constraints.txt
	test -x $(PYMC_VENV)/bin/python || $(PYTHON) -m venv $(PYMC_VENV)
	$(PYMC_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(PYMC_VENV)/bin/python -m pip install --quiet --constraint constraints.txt \
		--constraint tests/pymc/constraints.txt --editable '.[all,pymc]' \
		hypothesis pytest pytest-xdist scipy
	touch $(PYMC_STAMP)

test-pymc: $(PYMC_STAMP)
	$(PYMC_VENV)/bin/python -m pytest -n 2 --dist worksteal tests/pymc

# Both ends of the ranges of jax and numpyro that are supported, each in an environment of its own.
SMOKE := tests/test_smoke.py tests/trust tests/view/test_text.py tests/view/test_remedies.py

define SMOKE_TEST
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --upgrade pip
	$(1)/bin/python -m pip install --quiet --upgrade $(2) '.[tables]' pytest hypothesis
	$(1)/bin/python -m pytest -m "not slow" $(SMOKE)
endef

test-oldest:
	$(call SMOKE_TEST,.venv-oldest,--constraint tests/oldest.txt)

test-newest:
	$(call SMOKE_TEST,.venv-newest)

wheel: $(STAMP)
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .

# The wheel in a clean environment, without extras, away from this folder.
test-wheel: wheel
	rm -rf build/clean && $(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --constraint constraints.txt build/wheel/*.whl
	cd build/clean && bin/estimand --version && bin/estimand example tail-probability \
		&& bin/estimand run tail_probability.py:program
	rm -rf build/clean

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

docs: install
	$(BIN)/mkdocs build --strict
	@echo 'Serve it: python3 -m http.server --directory build/site'

# What the code of pages prints, written into them anew: make printed PAGES="README.md"
PAGES ?=
printed: install
	$(BIN)/python -m docs.printed $(PAGES)

# These two need Chromium, and say so. The first draws the pictures of docs/images anew, the second
# shows the site and reports at two widths, light, dark and printed, in build/screenshots.
pictures: install
	$(BIN)/python -m docs.pictures

screenshots: docs
	$(BIN)/python -m docs.screenshots

benchmarks: install
	$(BIN)/python -m benchmarks.run

# About two hours on two cores; it can be interrupted and goes on: make calibrate PROCESSES=8
PROCESSES ?= 2
calibrate: install
	$(BIN)/python -m benchmarks.calibration --processes=$(PROCESSES)
	$(BIN)/python -m benchmarks.calibration --write

# Other libraries, in an environment of their own: make peers PEERS="--quick --processes=2"
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed

$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/peers/constraints.txt
	test -x $(PEERS_VENV)/bin/python || $(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt \
		--constraint benchmarks/peers/constraints.txt --editable '.[peers]'
	touch $(PEERS_STAMP)

peers: $(PEERS_STAMP)
	$(PEERS_VENV)/bin/python -m benchmarks.run peers $(PEERS)

evidence: $(PEERS_STAMP)
	$(PEERS_VENV)/bin/python -m benchmarks.run evidence $(PEERS)

experiments: install
	$(BIN)/python -m experiments.run_all

experiments-quick: install
	$(BIN)/python -m experiments.run_all --quick

clean:
	rm -rf $(VENV) $(PEERS_VENV) $(PYMC_VENV) .venv-oldest .venv-newest build *.egg-info src/*.egg-info
