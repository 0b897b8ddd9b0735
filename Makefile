# Everything a person types is here. `make demo` and `make test` set up what they need themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest

.PHONY: demo docs test test-unit test-long test-engine-cpu test-engine-gpu lint lab lab-down lock clean

$(VENV)/.run: requirements/run.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "python 3.11, 3.12 or 3.13 is needed, this is %d.%d; set PYTHON=" % v)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	$(PIP) --require-hashes -r requirements/test.txt
	touch $@

demo: $(VENV)/.run
	$(BIN)/ops sandbox up
	$(BIN)/ops deploy --profile eagle3-2step
	$(BIN)/ops status

# The pages that are made from the code.
docs: $(VENV)/.run
	$(BIN)/python -m typer ops.cli.app utils docs --name ops --title "The commands" --output docs/commands.md
	$(BIN)/python -m ops.config.reference docs/profiles.md

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Most tests wait more than they work, so three files at a time; what measures speed runs alone.
test: lint
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not timing and not long and not engine and not gpu"
	$(PYTEST) -m "timing and not long and not engine and not gpu"

test-unit: $(VENV)/.test
	$(PYTEST) -n 2 tests/unit

test-long: lint
	$(PYTEST) -m "long or engine"

test-engine-cpu: $(VENV)/.test
	OPS_REQUIRE_ENGINE=1 $(PYTEST) -m engine tests/engine

test-engine-gpu: $(VENV)/.test
	OPS_REQUIRE_ENGINE=1 $(PYTEST) -m gpu tests/engine

# Hosts that really reboot: needs root on Debian or Ubuntu; says in one line why when it cannot.
lab: $(VENV)/.test
	$(BIN)/python -m tests.lab up

lab-down:
	$(BIN)/python -m tests.lab down

# `git diff requirements` shows what moved.
lock: $(VENV)/.run
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url pyproject.toml requirements/build.in --all-extras -o requirements/run.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --group test -c requirements/run.txt -o requirements/test.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
