# make train   sets up .venv with what training needs, trains quad_hover, evaluates it, says where everything is
# make test    sets up .venv with what the tests need, runs linter, type checker and tests (tests/stages.py)
# make test-all  everything, what takes minutes or the network included
# make fuzz    FUZZ=10000 mutated files, logs and requests of each kind: about an hour
# make release the wheel of the last commit, its bill of materials and their SHA-256, into dist/; reproducible
# make docs   README and docs/ as a site with search and interfaces: build/site/index.html
# make cluster-demo  three seeds of quad_hover on two Ray nodes of this machine: docs/cluster.md
# make lock    requirements/*.lock anew from constraints.txt; needs the network
# make bench   what is not yet measured by this code on this machine; hours. BENCH="--only tracking --again", BENCH=--quick
# make sbom | lint | clean
#
# PYTHON=... chooses the interpreter: 3.11 or newer. Python 3.11 is tried first: every dependency has a wheel for it.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: train test test-all fuzz lint bench cluster-demo docs release sbom lock clean

train: .venv/train.installed
	@$(BIN)/python -m policies.train task=quad_hover
	@echo
	@echo "its contract and provenance:  $(BIN)/python -m deploy.inspect policy=FILE"
	@echo "fly it in another simulator:  $(BIN)/python -m policies.evaluate policy=FILE engine=mujoco"
	@echo "learning curves:              $(BIN)/tensorboard --logdir runs"

test: lint
	@$(BIN)/python tests/stages.py

test-all: lint
	@$(BIN)/python tests/stages.py all

FUZZ ?= 10000
fuzz: .venv/test.installed
	FUZZ=$(FUZZ) $(BIN)/python -m pytest -m "" tests/fuzz

lint: .venv/test.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test.installed
	@$(BIN)/python tests/benchmarks/bench.py $(BENCH)

cluster-demo: .venv/cluster.installed
	@set -e; out=build/cluster-demo/$$(date +%Y-%m-%d_%H-%M-%S); \
	$(BIN)/python -m policies.train -m task=quad_hover quality=quick seed=0,1,2 report=false cluster=ray:2 out=$$out; \
	$(BIN)/python -m policies.evaluate policy=$$out/seed=2/policy.onnx episodes=200

docs: .venv/docs.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "open build/site/index.html"

release sbom: .venv/test.installed
	@$(BIN)/python release/build.py dist

lock: .venv/test.installed
	@$(BIN)/python release/lock.py

clean:
	rm -rf .venv build dist *.egg-info .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer with the venv module was found; name one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/train.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what training needs into .venv ..."
	@$(INSTALL) ".[train]"
	@touch $@

.venv/cluster.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what a cluster needs into .venv ..."
	@$(INSTALL) ".[cluster]"
	@touch .venv/train.installed $@

.venv/docs.installed: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) ".[docs]"
	@touch $@

.venv/test.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing what the tests need into .venv ..."
	@$(INSTALL) ".[test]"
	@touch .venv/train.installed .venv/docs.installed $@
