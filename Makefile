# Everything runs in a virtual environment in the tree, made on first use. Needs Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
EPOCHS ?= 28

.PHONY: help demo test test-slow test-integrations torture torture-process check format coverage journeys bench claims check-plans headlines map \
  clean pages
help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ownpace needs Python 3.11 or later; say which: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/ready  ## four algorithms on four processes of different pace, each beside its prediction
	$(BIN)/ownpace compare --engine both --algorithms sync,balanced,pace,stride --fleet examples/laptop.toml --lr 0.02 \
	  --momentum 0.9 --epochs $(EPOCHS) --target 0.96 --out runs/demo --overwrite

test-slow: .venv/ready  ## the tests that take long
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

# In an environment of its own: the frameworks are not needed for anything else.
.venv-integrations/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lightning,hf]'
	@touch $@

test-integrations: .venv-integrations/ready  ## those of Lightning, Fabric, Transformers and Accelerate
	.venv-integrations/bin/python -m pytest -q -n 2 -m slow tests/integrations

test: check  ## checks and all tests but the slow ones
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

# One seed alone says what it draws: make torture SEED=4711.
SEEDS ?= 10000
torture: .venv/ready  ## fleets, algorithms and faults drawn from 10,000 seeds, in virtual time; SEED=4711 replays one
	$(BIN)/python -m ownpace.testing.torture $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# A seed with SEED=7 is that of kills; for cuts: python -m ownpace.testing.torture_process --links --seed 7.
KILLS ?= 50
torture-process: .venv/ready  ## nodes killed and stopped at random moments on real processes; links cut, if you are root
	$(BIN)/python -m ownpace.testing.torture_process $(if $(SEED),--seed $(SEED),--links --kills $(KILLS))

format: .venv/ready  ## put the code into shape
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Absolute, because forked processes write next to it and tests change the working directory.
# Its loops have DataLoader workers, which end when coverage patches the processes that they are forked from.
NOT_MEASURED := --deselect tests/process/test_drop_in_ranks.py::test_samples_are_handed_out_as_documented
coverage: export COVERAGE_FILE = $(CURDIR)/.coverage
coverage: .venv/ready  ## lines of src that the tests reach, in all processes that they start
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 -m "not slow" $(NOT_MEASURED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: .venv/ready  ## lint, format, types, import contracts, spelling, figures of the source
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > .venv/contracts.txt || { cat .venv/contracts.txt; exit 1; }
	$(BIN)/codespell src docs benchmarks scripts *.md
	$(BIN)/python scripts/figures.py --strict

journeys: .venv/ready  ## the files one has to open to follow a run, and one step of the drop-in
	$(BIN)/python scripts/journeys.py

bench: .venv/ready  ## the figures of docs/results, about twenty minutes on a machine that does nothing else
	$(BIN)/python benchmarks/clocks.py
	$(BIN)/python benchmarks/timing_only.py
	$(BIN)/python benchmarks/real_gradients.py
	$(BIN)/python benchmarks/agreement.py
	$(BIN)/python benchmarks/against_ddp.py
	$(BIN)/python benchmarks/servers.py
	$(BIN)/python benchmarks/sites.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/bookkeeping.py --workers 2,4,8

check-plans: .venv/ready  ## plans against measurements (docs/results/planning.md): a quarter of an hour; kept in runs/
	$(BIN)/python benchmarks/check_plans.py

claims: .venv/ready  ## the races of docs/results/claims.md: hours on a small machine; what was run before is kept in runs/
	cd benchmarks && ../$(BIN)/python -m claims

headlines: .venv/ready  ## docs/results/headlines.md: each paper's claim again; hours, a GPU helps; goes on where it was
	cd benchmarks && ../$(BIN)/python -m headlines

map: .venv/ready  ## docs/results/map.md: which algorithm is first where; hours on a small machine, goes on where it was
	cd benchmarks && ../$(BIN)/python -m maps

bench-peers: .venv/ready  ## a race with DDP, torchft and hivemind: TORCHFT= and HIVEMIND= name their Pythons; needs root and a quiet machine
	$(BIN)/python benchmarks/bench_peers.py $(if $(TORCHFT),--torchft $(TORCHFT)) $(if $(HIVEMIND),--hivemind $(HIVEMIND))

pages: .venv/ready  ## write what documentation pages take from the modules
	$(BIN)/python scripts/pages.py

clean:  ## remove the environment and all results
	rm -rf .venv .venv-integrations runs .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
