# `make` alone lists what there is to make. Nothing is installed outside .venv.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run up test chaos lint format docs clean

PYTHON = python3
FILE = docs/example.jsonl
MODEL =
# Results of the example go where git ignores them; those of any other file go next to it.
OUT = $(if $(filter docs/example.jsonl,$(FILE)),example.results.jsonl)
# A file's tests stay on one process, so that those of a real engine share it.
PYTEST_ARGS = -n 2 --dist loadfile

SECONDS = 600
SEED = 1

HARDWARE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
PIP := .venv/bin/python -m pip -qq --disable-pip-version-check
# Stamps: written last, so that an install that was broken off starts again.
ENGINE := .venv/.installed-$(HARDWARE)
TOOLS := .venv/.installed-dev
BROWSER := .venv/.found-browser

help: ## Show this list
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Example: make run FILE=prompts.jsonl MODEL=Qwen/Qwen2.5-0.5B-Instruct OUT=answers.csv"

run: $(ENGINE) ## Run the requests of FILE (an example if not named) on MODEL, results to OUT
	@.venv/bin/gristmill run '$(FILE)' $(if $(OUT),-o '$(OUT)') $(if $(MODEL),-m '$(MODEL)')

up: $(ENGINE) ## Start everything on this machine: pages, APIs, workers, an engine (MODEL), Flower
	@.venv/bin/gristmill up $(if $(MODEL),-m '$(MODEL)')

test: lint $(BROWSER) ## Run all checks and tests; PYTEST_ARGS='...' chooses others
	@HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 .venv/bin/python -m pytest $(PYTEST_ARGS)

chaos: $(TOOLS) ## Break a whole mill for SECONDS by the schedule of SEED, on both databases
	@.venv/bin/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED)

lint: $(TOOLS) ## Check style and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

format: $(TOOLS) ## Format the code, and mend what can be mended by rule
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

docs: $(ENGINE) ## Write docs/configuration.md from the settings
	.venv/bin/python docs/generate.py

clean: ## Remove .venv and caches; data and results stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Gristmill needs Python 3.11, 3.12 or 3.13; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install one and name it: make run PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv

# Official vLLM and its CPU build are the same package under two names: one environment holds one of them.
$(ENGINE): pyproject.toml | .venv/bin/pip
	@test -z "$(filter-out $(ENGINE) $(TOOLS),$(wildcard .venv/.installed-*))" || { \
	  echo "The environment in .venv is for other hardware: run 'make clean', then this again."; exit 1; }
	@rm -f $(ENGINE)
	@echo "Installing Gristmill and vLLM ($(HARDWARE)) into .venv: several GB, a few minutes, once."
	@$(install-$(HARDWARE))
	@echo "Checking that vLLM can be imported."
	@.venv/bin/python -c 'import vllm, vllm.v1.engine.async_llm' >.venv/import.log 2>&1 || { \
	  tail -n 5 .venv/import.log; echo "vLLM is installed but cannot be imported: the lines above say why,"; \
	  echo ".venv/import.log has all. Often a mixture of builds: 'make clean', then this again."; exit 1; }
	@touch $(ENGINE)

$(TOOLS): pyproject.toml $(ENGINE)
	@echo "Installing the tools for checks and tests into .venv: about a minute, once."
	@$(PIP) install -e '.[dev]'
	@touch $(TOOLS)

# The tests of the pages need a Chromium: one that is here, else the system's, else Playwright's own.
$(BROWSER): $(TOOLS)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name >/dev/null 2>&1 && exec touch $(BROWSER); done; \
	echo "Getting Chromium for the tests of the pages: about a minute, once."; \
	as_root=; test "$$(id -u)" = 0 || as_root="sudo -n"; \
	{ $$as_root apt-get install -yq chromium || { $$as_root apt-get update -q && $$as_root apt-get install -yq chromium; } || \
	  .venv/bin/playwright install --with-deps chromium || .venv/bin/playwright install chromium; } >.venv/browser.log 2>&1 || { \
	  tail -n 5 .venv/browser.log; echo "No Chromium: install one, then this again. .venv/browser.log has all."; exit 1; }; \
	touch $(BROWSER)

install-gpu = $(PIP) install -e '.[gpu]'

# The CPU build wants a torch that is not in every package index. torchvision and its kind come from another
# build than torch, unless one is lucky, and `import vllm` then dies; models for text need none of them.
define install-cpu
$(PIP) install -e '.[cpu]' >.venv/pip.log 2>&1 || { \
  echo "The package index alone does not do (torch for CPUs?): trying PyTorch's own as well."; \
  $(PIP) install --extra-index-url https://download.pytorch.org/whl/cpu -e '.[cpu]' || { \
    echo "The install failed. The first attempt, without PyTorch's index: .venv/pip.log"; exit 1; }; }; \
$(PIP) uninstall --yes torchvision torchaudio torchcodec >/dev/null 2>&1
endef
