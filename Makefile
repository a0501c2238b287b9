# make demo | test | lint | benchmark | cuda-build | weights. The first call makes $(VENV) and installs all that is needed;
# later calls start at once. Name another torch or environment on the command line:
#   make demo TORCH=torch==2.11.0        make test VENV=~/my-venv
# The tests run on all cores. Options of pytest come after those given here:
#   make test PYTEST_ARGS="tests/test_nms.py -x"        make test PYTEST_ARGS="-n 0 -s" (in one process, showing output)
# A torch that can already be imported in $(VENV) is kept, whatever TORCH says.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CUDA_VENV ?= .venv-cuda
CUDA_TORCH ?= torch==2.14.1
CUDA_ARCHS ?= 8.0;9.0
PYTEST_ARGS ?=

PY := $(VENV)/bin/python
CUDA_PY := $(CUDA_VENV)/bin/python
BUILD_TOOLS := "setuptools>=64" wheel ninja "pybind11>=2.12"

PACKAGE := setup.py pyproject.toml MANIFEST.in
NATIVE := $(wildcard csrc/* csrc/cpu/* csrc/cuda/* python/bindings.cpp)
# Changes when another torch is installed by hand: then the ops are compiled again.
TORCH_VERSION = $(wildcard $(1)/lib/python*/site-packages/torch/version.py)

.PHONY: help demo test lint benchmark cuda-build weights clean
help:
	@echo "make demo        install into $(VENV), detect and match an image pair, write a picture"
	@echo "make test        run the tests"
	@echo "make lint        ruff and mypy"
	@echo "make benchmark   run python/benchmarks/bench_*.py"
	@echo "make cuda-build  compile the CUDA ops in $(CUDA_VENV) with a CUDA build of torch (no GPU needed, 5 GB)"
	@echo "make weights PHOTOS=FOLDER   train the bundled weights anew (hours); once more after an interruption to go on"

demo: $(VENV)/.disk_ops/package
	@$(VENV)/bin/disk-ops demo

test: $(VENV)/.disk_ops/package $(VENV)/.disk_ops/test
	@$(PY) -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.disk_ops/package $(VENV)/.disk_ops/lint
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

benchmark: $(VENV)/.disk_ops/package $(VENV)/.disk_ops/benchmark
	@for program in python/benchmarks/bench_*.py; do echo "== $$program"; $(PY) "$$program"; done

cuda-build: $(CUDA_VENV)/.disk_ops/package
	@$(CUDA_PY) python/check_cuda_build.py --archs "$(CUDA_ARCHS)" --log $(CUDA_VENV)/.disk_ops/build.log

# Both go on from photos-start by way of other trainings. $(call train,preset,folder,options)
train = $(VENV)/bin/disk-ops train $(1) --data "photos:$(PHOTOS)" -o runs/$(2) --resume $(3)
weights: $(VENV)/.disk_ops/package
	@[ -n "$(PHOTOS)" ] || { echo "name a folder of photographs: make weights PHOTOS=FOLDER" >&2; exit 2; }
	@$(call train,photos-start,start)
	@$(call train,photos-larger,larger,--set model.init=runs/start/last.safetensors)
	@$(call train,photos-zoomed,zoomed,--set model.init=runs/larger/last.safetensors)
	@$(call train,photos-general,general,--set model.init=runs/zoomed/last.safetensors \
		--export runs/general.safetensors --export-dtype float16)
	@$(call train,photos-turned,turned,--set model.init=runs/start/last.safetensors)
	@$(call train,photos-turned-larger,turned-larger,--set model.init=runs/turned/last.safetensors)
	@$(call train,photos-rotation,rotation,--set model.init=runs/turned-larger/last.safetensors \
		--export runs/rotation.safetensors --export-dtype float16)

clean:
	rm -rf build dist *.egg-info disk_ops/_C.*.so disk_ops/_build_info.json $(VENV)/.disk_ops $(CUDA_VENV)/.disk_ops

# ---- environments. A stamp file under <environment>/.disk_ops says that a step is done.

# $(call make_venv,environment): one that exists is used as it is.
define make_venv
@if [ ! -x $(1)/bin/python ]; then \
    $(PYTHON) -c 'import sys; sys.exit("disk_ops needs Python 3.10 or later" if sys.version_info < (3, 10) else 0)'; \
    echo "making $(1)"; $(PYTHON) -m venv $(1); \
fi
@mkdir -p $(1)/.disk_ops
endef

# $(call install_torch,environment,requirement): only where there is none.
define install_torch
@if $(1)/bin/python -c 'import torch' 2> $(1)/.disk_ops/torch.log; then \
    echo "keeping torch $$($(1)/bin/python -c 'import torch; print(torch.__version__)' 2> /dev/null) in $(1)"; \
elif $(1)/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then \
    cat $(1)/.disk_ops/torch.log; echo "the torch in $(1) can't be imported: see above"; exit 1; \
else \
    echo "installing $(2) into $(1)"; $(1)/bin/python -m pip install -q "$(2)"; \
fi
@$(1)/bin/python -m pip install -q $(BUILD_TOOLS)
endef

# $(call install_package,environment,pip arguments): shows the line that says what was built, and all if it fails.
define install_package
@echo "installing disk_ops into $(1)"
@$(1)/bin/python -m pip install --no-build-isolation -v $(2) > $(1)/.disk_ops/build.log 2>&1 \
    || { cat $(1)/.disk_ops/build.log; exit 1; }
@sed -n 's/^ *\(disk_ops: \)/\1/p' $(1)/.disk_ops/build.log
endef

$(VENV)/.disk_ops/torch:
	$(call make_venv,$(VENV))
	$(call install_torch,$(VENV),$(TORCH))
	@touch $@

$(VENV)/.disk_ops/package: $(VENV)/.disk_ops/torch $(PACKAGE) $(NATIVE) $(call TORCH_VERSION,$(VENV))
	$(call install_package,$(VENV),-e .)
	@touch $@

# The packages of an extra of pyproject.toml: test, lint or benchmark.
$(VENV)/.disk_ops/test $(VENV)/.disk_ops/lint $(VENV)/.disk_ops/benchmark: $(VENV)/.disk_ops/%: pyproject.toml | $(VENV)/.disk_ops/package
	@$(PY) -c "from importlib.metadata import requires; \
	    print('\n'.join(r.split(';')[0] for r in requires('disk_ops') or [] if 'extra ==' in r and '$*' in r.split(';')[1]))" \
	    > $(VENV)/.disk_ops/$*.txt
	@echo "installing what '$*' needs: $$(paste -sd ' ' $(VENV)/.disk_ops/$*.txt)"
	@$(PY) -m pip install -q -r $(VENV)/.disk_ops/$*.txt
	@touch $@

$(CUDA_VENV)/.disk_ops/torch:
	@if [ -z "$${CUDA_HOME:-}" ] && ! command -v nvcc > /dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then \
	    echo "cuda-build needs a CUDA toolkit: nvcc on PATH, or CUDA_HOME"; exit 1; fi
	$(call make_venv,$(CUDA_VENV))
	$(call install_torch,$(CUDA_VENV),$(CUDA_TORCH))
	@touch $@

# Installed as users do it, not as an editable: the library of $(VENV) beside the sources stays as it is.
$(CUDA_VENV)/.disk_ops/package: export DISK_OPS_CUDA := 1
$(CUDA_VENV)/.disk_ops/package: export TORCH_CUDA_ARCH_LIST := $(CUDA_ARCHS)
$(CUDA_VENV)/.disk_ops/package: export NVCC_APPEND_FLAGS := -Xptxas -v -Werror all-warnings
$(CUDA_VENV)/.disk_ops/package: $(CUDA_VENV)/.disk_ops/torch $(PACKAGE) $(NATIVE) $(shell find disk_ops -name '*.py') \
        $(call TORCH_VERSION,$(CUDA_VENV))
	@rm -rf build/torch-*/lib.*
	$(call install_package,$(CUDA_VENV),.)
	@touch $@
