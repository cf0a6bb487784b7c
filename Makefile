# Every target makes .venv and installs what it needs, once (again when pyproject.toml or the C
# extension changes).
#   make PYTHON=python3.13 test     choose the interpreter .venv is made with
#   make test ARGS="-k node -x"     pass arguments on

PYTHON ?=
ARGS   ?=
VENV   := .venv
TORCH  := .venv-torch
DOCS   := .venv-docs
BIN    := $(VENV)/bin
PARALLEL := -q -n auto --dist loadfile  # tests/parallel.py says what goes where
QUICK  := tests/core tests/graph tests/kernel tests/functional/test_surface.py tests/test_layers.py
PURE   := tests/core tests/graph/ir tests/tensor tests/test_jit.py tests/test_state.py
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# Jobs of processes and browsers depend on the machine's load: a failure is printed, and must not
# happen again when the tests that failed run once more.
twice = $(BIN)/python -m pytest -q $(1) || \
  { echo "once more, those that failed:"; $(BIN)/python -m pytest -q --lf --lfnf=none $(1); }

.DEFAULT_GOAL := help
.PHONY: help demo test quick test-pure test-llvmlite test-triton test-distributed test-browser test-torch \
  docs check format bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed  ## train a small network on handwritten digits
	@$(BIN)/python -m fulgurite train digits $(ARGS)

test: $(VENV)/.installed-dev  ## run the tests, on every device, with all cores
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

quick: $(VENV)/.installed-dev  ## two minutes of them: the compiler, and every function once
	@$(BIN)/python -m pytest $(PARALLEL) --device cpu --hypothesis-profile fast $(QUICK) $(ARGS)

test-pure: $(VENV)/.installed-dev  ## run the heart of it without the C extension
	@FULGURITE_EXTENSION=0 $(BIN)/python -m pytest $(PARALLEL) $(PURE) $(ARGS)

test-llvmlite: $(VENV)/.installed-dev  ## run native code with the oldest and the newest llvmlite
	@$(BIN)/python -m tests.llvmlite $(ARGS)

test-triton: $(VENV)/.installed-dev  ## compile a GPU's kernels of two training steps with the oldest Triton
	@$(BIN)/python -m tests.triton $(ARGS)

test-distributed: $(VENV)/.installed-dev  ## launch jobs of several ranks on this machine
	@$(call twice,-m slow tests/distributed $(ARGS))

test-browser: $(VENV)/.installed-dev  ## look at generated pages, where a Chromium is installed
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then \
	  $(PIP) 'playwright>=1.40' && { $(call twice,-m browser tests/look tests/serve $(ARGS)); }; \
	else echo "no Chromium is installed: pages are not looked at"; fi

test-torch: $(TORCH)/.installed  ## run models of torch, in an environment with torch
	@$(TORCH)/bin/python -m pytest -q --device cpu tests/torch $(ARGS)
	@$(TORCH)/bin/python -m fulgurite.torch.conformance --sample --train --least 0.8

docs: $(DOCS)/.installed  ## build the site into site/, with its gallery, and check every link
	@rm -rf build/gallery && $(DOCS)/bin/python docs/tools/gallery.py build/gallery
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet
	@$(DOCS)/bin/python docs/tools/check.py site

check: $(VENV)/.installed-dev  ## lint, format check and types: what CI runs before the tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict fulgurite tests

format: $(VENV)/.installed-dev  ## rewrite the sources as check wants them
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed  ## time everything, beside the peers that are installed
	@for name in cpu cold replay overhead core schedule; do \
	  $(BIN)/python bench/$$name.py --save $(ARGS) || exit 1; \
	done

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) $(TORCH) $(DOCS) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter that is new enough; a failed attempt leaves no half-made .venv behind.
$(BIN)/python:
	@set -e; \
	for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Making $(VENV) with $$($$python --version)"; \
	    $$python -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    echo "'$$python -m venv' failed: on Debian and Ubuntu, install python3-venv." >&2; exit 1; \
	  fi; \
	done; \
	echo "No Python 3.11 or newer found$(if $(PYTHON), as '$(PYTHON)'): install one," \
	  "or say which: make PYTHON=/path/to/python3" >&2; exit 1

# torch 2.13 and what models are made with; a library without a wheel here is left out of the judge
$(TORCH)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing torch and libraries of models into $(TORCH) (once, a few minutes)"
	@test -x $(TORCH)/bin/python || $(BIN)/python -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test,torch]' torch==2.13.0 expecttest openai
	@for name in torchvision timm transformers lightning gguf sentencepiece; do \
	  $(TORCH)/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 $$name \
	    || echo "there is no $$name here: its models are left out"; \
	done
	@touch $@

$(DOCS)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing fulgurite and what builds its site into $(DOCS) (once)"
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[docs]' \
	  || { echo "make docs: the extra 'docs' of pyproject.toml could not be installed (is there a network?)," \
	  "so the site was not built" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: pyproject.toml fulgurite/core/_fast.c | $(BIN)/python
	@echo "Installing fulgurite into $(VENV) (once)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml fulgurite/core/_fast.c | $(BIN)/python
	@echo "Installing fulgurite and its test tools into $(VENV) (once, a minute or so)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
