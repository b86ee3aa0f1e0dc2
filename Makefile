# Two commands: `make quickstart` shows what this is; `make test` proves that it works.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Bytecode is written for what is imported, when it is imported: compiling all of torch takes a minute.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
export PYTHONDONTWRITEBYTECODE :=

# Two single-thread workers beat one with two threads on tensors this small.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: quickstart test test-portable test-slow test-tools lint types format clean

quickstart: $(VENV)/.core
	$(BIN)/mue quickstart

test: $(VENV)/.dev lint types
	$(PYTEST) -m "not slow"

# The numerical tests as other machines would compute them, and with other random numbers.
test-portable: $(VENV)/.dev
	$(BIN)/python tests/portable.py

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow

# What else needs tools: exports read back with those they are for, data through its optional libraries. --no-deps keeps
# torch as it is.
test-tools: $(VENV)/.dev
	$(PIP) --no-deps -r tests/tools.txt
	$(PYTEST) -m tools --with-tools $$(grep -rl --include='test_*.py' 'mark\.tools' tests)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[torch]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
