# On a fresh machine with Python and make: `make demo` or `make test` sets everything up first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test test-slow test-processors check format docs results bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(READY)  ## the environment in .venv (done by the others when needed)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)  ## compare four methods on synthetic endoscopy, in minutes
	$(BIN)/endocil demo

# Many processes: without bytecode each would compile everything again.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
# Two tests at a time: a second thread of numpy's only waits for the first.
test test-slow: export OPENBLAS_NUM_THREADS := 1

test: $(READY)  ## the tests, in minutes; at the end, what was skipped and why
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs -m "not slow"

test-slow: $(READY)  ## the tests that take long: Ray, several processes, the browser, UMAP, the compiler
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs -m slow

test-processors: $(READY)  ## the numerical tests with other processors' instructions and threads; WAYS="avx2-2 own-4" for some
	$(BIN)/python tests/processors.py $(WAYS)

check: $(READY)  ## format, lint, types, imports between subpackages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## put every file into the common format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## write the reference pages again and build the site into site/; a broken link fails
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, warnings would not fail

results: $(READY)  ## write the pages and plots of the results again from the ledger
	$(BIN)/endocil ledger insert README.md docs/results.md
	$(BIN)/endocil ledger plot -o docs/images/results.svg --force
	-$(BIN)/endocil ledger plot --which ranks -o docs/images/ranks.svg --force  # says so where there are too few data sets
	$(BIN)/python -m reproduction -o docs/results/README.md --insert docs/results.md

bench: $(READY)  ## speed as one table of ratios; ARGS="--quick" takes minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench.py $(ARGS)

clean:  ## remove the environment and caches (runs stay)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache dist site
