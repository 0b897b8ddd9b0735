# Everything a person types is here. `make demo` and `make test` set up what they need themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-long lint lock clean

$(VENV)/.run: requirements/run.txt pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "python 3.11, 3.12 or 3.13 is needed, this is %d.%d; set PYTHON=" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/test.txt
	touch $@

demo: $(VENV)/.run
	$(BIN)/ops sandbox up
	$(BIN)/ops deploy --profile eagle3-2step
	$(BIN)/ops status

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest

lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url pyproject.toml requirements/build.in --all-extras -o requirements/run.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --group test -c requirements/run.txt -o requirements/test.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
