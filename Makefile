# Two commands for a fresh machine: `make serve` and `make test`. The environment is made once, and again when
# pyproject.toml changes. PYTHON=python3.12 picks another Python, ARGS="…" passes options on.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: serve chat test check lint clean

serve: $(VENV)/.run
	$(VENV)/bin/radixlang serve --model-path default $(ARGS)

chat: $(VENV)/.run
	$(VENV)/bin/radixlang chat --model-path default $(ARGS)

# Both are run even if the first finds something: one run shows everything.
test: $(VENV)/.dev
	@status=0; scripts/check || status=1; scripts/test $(ARGS) || status=1; exit $$status

check: $(VENV)/.dev
	@scripts/check

lint: $(VENV)/.dev
	@scripts/lint

$(VENV)/.run: pyproject.toml scripts/setup
	@scripts/setup "$(PYTHON)" "$(VENV)" cpu,gguf
	@touch $@

$(VENV)/.dev: pyproject.toml scripts/setup
	@scripts/setup "$(PYTHON)" "$(VENV)" dev
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
