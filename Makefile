# make test      everything: lint, types, tests on the newest and the oldest supported drivers, bite
# make demo      the guard at work, with real processes
# make unit      what needs no server, in seconds
# make faults    the long runs with random faults
# make bite      the safety tests against a naive lock: each must fail
# make bench     what it costs, beside the peers

PYTHON ?= python3
VENV   := .venv
OLD    := .venv-oldest
BIN    := $(VENV)/bin

.PHONY: test unit lint types tests oldest bite faults demo bench clean

test: lint types tests bite oldest

# Set up once; again only when pyproject.toml has changed.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[redis,postgresql]' --group lint --group test --group servers
	$(BIN)/python -m tests.servers.setup
	@touch $@

$(OLD)/.ready: pyproject.toml
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --upgrade pip
	$(OLD)/bin/python -m pip install --quiet -e . --group test --group servers \
		'redis==5.0.*' 'psycopg[binary]==3.1.*'
	@touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

tests: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/unit

oldest: $(OLD)/.ready
	$(OLD)/bin/python -m pytest -q -n 2 tests/stores

bite: $(VENV)/.ready
	$(BIN)/python -m pytest -q --bite -m safety tests

faults: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -m faults --timeout 1800

demo: $(VENV)/.ready
	$(BIN)/python -m taskguard.demo

bench: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --group peers
	$(BIN)/python benchmarks/locks.py

clean:
	rm -rf $(VENV) $(OLD) .pytest_cache .mypy_cache .ruff_cache dist
