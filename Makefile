PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-slow lint types benchmarks experiments experiments-quick clean

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

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

benchmarks: install
	$(BIN)/python benchmarks/run.py

experiments: install
	$(BIN)/python -m experiments.run_all

experiments-quick: install
	$(BIN)/python -m experiments.run_all --quick

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info
