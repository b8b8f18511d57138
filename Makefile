# Every target does its own set-up: an environment in .venv with the locked dependencies and this project in it.

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# What an environment was made for: another Python, or a folder that was moved or copied, makes it useless.
WHAT_IT_IS = $(BIN)/python -c 'import sys; print(sys.version_info[:2], sys.prefix)' 2>/dev/null
$(shell test "$$($(WHAT_IT_IS))" = "$$(cat .venv/made-for 2>/dev/null)" || rm -f .venv/made-for .venv/ready)

.DELETE_ON_ERROR:
.PHONY: demo test test-fast bench check format lock clean soak

demo: .venv/ready
	@$(BIN)/coordinator demo audit

test: .venv/ready
	@$(BIN)/pytest -n 2

test-fast: .venv/ready
	@$(BIN)/pytest -n 2 -m "not slow"

# Many seeds of the simulator; SOAK_SEEDS=FIRST:LAST plays others. Each that goes wrong says how to play it again.
SOAK_SEEDS ?= 0:20000
soak: .venv/ready
	@$(BIN)/python -m tests.simulation --seeds $(SOAK_SEEDS) --processes 2

# Options of the bench go into BENCH_FLAGS; `make bench BENCH_FLAGS=--help` shows them.
bench: .venv/ready
	@$(BIN)/python -m bench $(BENCH_FLAGS)

check: .venv/ready
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/ready
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Keeps what is locked where it still fits; `make lock LOCK_FLAGS=--upgrade` takes the newest of everything.
lock: build/lock/bin/uv
	@build/lock/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-header $(LOCK_FLAGS) \
		--output-file requirements/dev.txt --quiet

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: .venv/made-for requirements/dev.txt pyproject.toml
	@echo "installing the locked dependencies into .venv"
	@$(PIP) install --no-deps --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/made-for:
	@$(need-python)
	@echo "making .venv with $(PYTHON)"
	@$(PYTHON) -m venv --clear .venv
	@$(WHAT_IT_IS) > $@

build/lock/bin/uv:
	@$(need-python)
	@$(PYTHON) -m venv --clear build/lock
	@build/lock/bin/python -m pip --disable-pip-version-check -qq install uv

define need-python
test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none was found. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
endef
