# Needs Python 3.11 or newer and nothing else: Java and TLC come from the package index, a C++ compiler is used if there is one.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test test-long clean
install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard kernels/native/*)
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[spec,model,test]'
	touch $@

demo: install
	rm -rf .demo-trace
	$(BIN)/tidegate run --new-tokens 12 --oracle --trace .demo-trace
	$(BIN)/tidegate trace .demo-trace

test: install
	$(BIN)/python tests/run_parts.py

test-long: install
	$(BIN)/python tests/run_parts.py --long

clean:
	rm -rf $(VENV) .demo-trace .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
