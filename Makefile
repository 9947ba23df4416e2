# Two commands do all the set-up on a fresh machine: `make run` and `make test`.
# Needs Python 3.11 or newer with venv, and `ld` (binutils) to build the kernels ahead of time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TEST_WORKERS ?= 4
QUICK_WORKERS ?= 3
GUEST_WORKERS ?= 3
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --require-hashes --no-deps

# Bytecode is kept: some hundred processes of the tests would each compile all of what they import.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run dev test guests quick lint soak bench reference docs table lock clean kernels demo vocabularies arm64 release

help: ## Show the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }

# The locked packages and none but them (pip on its own weighs what the index has of late, and ends where that is
# not locked), then the project itself without touching the index again.
$(VENV)/.server: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing the locked packages into $(VENV)"
	@$(PIP) --progress-bar on -q -r requirements.lock
	@$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/.server
	@echo "installing the locked development packages into $(VENV)"
	@$(PIP) --progress-bar on -q -r requirements-dev.lock
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

dev: $(VENV)/.dev ## Install the locked packages of tests and benchmarks

demo: | $(VENV)/bin/python ## Fetch the demo model, by its pinned hash
	@$(BIN)/python examples/fetch_demo.py build/models

kernels: $(VENV)/.server ## Build the kernels ahead of time for this CPU (again only when their sources changed)
	@$(BIN)/appliance kernels build --if-stale

run: $(VENV)/.server demo kernels ## Check the example policy, boot by it and serve the demo model on loopback
	$(BIN)/appliance check examples/demo.hcl
	@echo "the audit log (JSON lines, standard output of the service) goes to build/audit.jsonl"
	$(BIN)/appliance serve examples/demo.hcl --models build/models >> build/audit.jsonl

vocabularies: | $(VENV)/bin/python
	@$(BIN)/python tests/support/fetch_llama_vocab.py
	@$(BIN)/python tests/support/fetch_llama_samplers.py
	@$(BIN)/python tests/support/fetch_kubevirt_schema.py
	@$(BIN)/python tests/support/fetch_kubernetes_schema.py
	@$(BIN)/python tests/support/fetch_openai_schema.py
	@$(BIN)/python tests/support/fetch_axe.py
	@$(BIN)/python tests/support/fetch_json_schema_tests.py
	@$(BIN)/python tests/support/fetch_tool_corpus.py
	@$(BIN)/python tests/support/fetch_real_models.py

arm64: $(VENV)/.dev
	@$(BIN)/python -m tests.support.arm64

lint: $(VENV)/.dev ## Style, types and the import layers
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples/plain_engine.py examples/broker examples/witness release
	$(BIN)/lint-imports

quick: $(VENV)/.dev demo kernels lint ## Style, types, contracts and the tests that are quick: about three minutes
	$(BIN)/pytest -n $(QUICK_WORKERS) --no-loadscope-reorder --quick -q

# With COVERAGE=1, as CI has it, the lines that tests reach are counted, too: it takes a fifth more.
test: $(VENV)/.dev demo kernels vocabularies lint ## Everything that a change can break in a process
	$(BIN)/pytest -n $(TEST_WORKERS) --no-loadscope-reorder -q $(if $(COVERAGE),--cov --cov-report=term --cov-fail-under=85)

guests: $(VENV)/.dev demo kernels arm64 ## What needs an image, emulated machines, docker or kernels of another target
	$(BIN)/pytest -n $(GUEST_WORKERS) --no-loadscope-reorder -q -m 'guests and not soak'

soak: $(VENV)/.dev demo kernels vocabularies arm64 ## Long fuzzing, load, client libraries (by npm, too) and mutation testing (hours)
	$(BIN)/python -m tests.soak

bench: $(VENV)/.dev demo kernels ## Side by side with llama.cpp, interleaved, in one run
	$(BIN)/python -m benchmarks

reference: $(VENV)/.dev ## Write again what types state: the open schema's table, the references of the policy and the API
	$(BIN)/appliance schema --format table > appliance/policy/schema/schema_2.json
	$(BIN)/appliance schema > docs/reference/policy.md
	$(BIN)/appliance schema --version 1 > docs/reference/policy-schema-1.md
	$(BIN)/python -m appliance.service.openapi > appliance/service/openapi.json
	$(BIN)/python -m appliance.manual.forms > build/forms.json
	mv build/forms.json appliance/manual/forms.json
	$(BIN)/python -m appliance.manual.codes > docs/reference/errors.md
	$(BIN)/python docs/site/endpoints.py
	$(BIN)/python docs/site/families.py

docs: $(VENV)/.dev ## Build the documentation site in build/site; a dead link fails
	@$(BIN)/python docs/site/build.py

# KEY: the releaser's. MEASUREMENTS: of the released image, signed by KEY. LOG: the release log that goes on.
# build/release must not exist, or be empty.
release: $(VENV)/.dev kernels ## Make a release's files in build/release, by KEY=builder.pem (REHEARSE=1: as a rehearsal)
	@test -n "$(KEY)" || { echo "name the releaser's key: make release KEY=builder.pem" >&2; exit 2; }
	@$(BIN)/python -m release build/release --key $(KEY) $(if $(MEASUREMENTS),--measurements $(MEASUREMENTS)) \
	  $(if $(LOG),--log $(LOG)) $(if $(REHEARSE),--rehearse)

table: $(VENV)/.dev ## Write again the parse table of the locked python-hcl2
	$(BIN)/python -m appliance.policy.hcl.tabulate > build/table.json
	mv build/table.json appliance/policy/hcl/table.json

lock: ## Resolve the lock files again (needs uv)
	uv pip compile -q --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --extra image pyproject.toml -o requirements-image.lock
	uv pip compile -q --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --extra server pyproject.toml -o requirements.lock
	uv pip compile -q --universal --generate-hashes --no-header --no-annotate --python-version 3.11 --extra dev pyproject.toml -o requirements-dev.lock

clean: ## Remove compiled kernels and what tests wrote; models, images and the virtual environment stay
	rm -rf appliance/kernels/prebuilt build/tests htmlcov .coverage .coverage.*
