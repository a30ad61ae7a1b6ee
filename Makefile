# The commands that README, CONTRIBUTING and .ci/run call.
PYTHON ?= python3
VENV ?= .venv
# torch first and by version: a plain range may pull a CUDA build of several GB where none is needed.
# On a machine with a GPU: make install TORCH=torch. PyPI's own build for Linux is a CUDA one; without a
# GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu spares it.
INSTALLED := $(shell cat $(VENV)/.installed 2>/dev/null)
TORCH ?= $(or $(INSTALLED),torch==2.13.0)
TORCH_INDEX ?=
# Another PyTorch than is there begins anew: to pip any build of a version is as good as any other.
ANEW := $(if $(INSTALLED),$(if $(filter-out $(INSTALLED),$(TORCH)),anew))
BIN := $(VENV)/bin
OUT ?= demo-out
PYTEST_OPTIONS ?=

.PHONY: anew install demo test test-all lint types package bench docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(ANEW)
	$(PYTHON) -m venv $(if $(ANEW),--clear) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH_INDEX:%=--index-url %) "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	echo "$(TORCH)" > $@

# The main job, without a GPU: everything it prints and draws is simulated.
demo: install
	$(BIN)/clockwright trace gpt3-xl --gpu sim:rtx3080ti -o $(OUT)/trace
	$(BIN)/clockwright optimize $(OUT)/trace -o $(OUT)/schedule.json --max-slowdown 0.6%
	$(BIN)/clockwright replay $(OUT)/schedule.json --trace $(OUT)/trace --gpu sim:rtx3080ti -o $(OUT)/replay.json
	$(BIN)/clockwright pareto $(OUT)/trace -o $(OUT)/pareto.png
	$(BIN)/clockwright plot $(OUT)/schedule.json --trace $(OUT)/trace -o $(OUT)/timeline.png
	$(BIN)/clockwright report $(OUT)/schedule.json

test: install
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_OPTIONS)

test-all: install
	$(BIN)/python -m pytest -n 2 $(PYTEST_OPTIONS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy src/clockwright

package: install
	$(BIN)/python tests/check_package.py

bench: install
	$(BIN)/python -m benchmarks $(BENCH)

docs: install
	$(BIN)/python docs/make_reference.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info $(OUT)
