# make lab    everything set up, and JupyterLab open at the tour
# make test   everything set up, then lint, types, layers and every test
# make demo   the tour run without a browser and written as one HTML file
# make bench  what nbinspect costs, against a plain run and against other tools
#
# Variables: PYTHON (a Python 3.11 or newer), ARGS (more options for the program that is run), JOBS
# (how many processes run the tests; each has a browser and kernels of its own).

PYTHON ?= python3
ARGS ?=
JOBS ?= 2

venv := $(CURDIR)/.venv
bin := .venv/bin
python := $(bin)/python
install := $(python) -m pip install --quiet -c constraints.txt
compiled := $(wildcard nbinspect/gradients/_kernels*.[ch])
tour := notebooks/tour.ipynb
html := build/tour.html

# A virtual environment that was copied here, or whose Python has gone, is made anew.
sound := $(shell grep -qF "$(venv)" .venv/pyvenv.cfg 2>/dev/null && $(python) -c 'import pip' 2>/dev/null && echo yes)
ifneq ($(sound),yes)
$(shell rm -f .venv/.made)
endif

.PHONY: help lab test lint demo bench clean

help:
	@sed -n 's/^# //p' Makefile | head -4

lab: .venv/.lab
	$(python) -m jupyterlab $(tour) $(ARGS)

# In the order of the folders: by itself xdist leaves for last the files of few tests, of which those
# in a browser take longest, and one process would wait for the other.
test: lint
	$(python) -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/.test
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(bin)/lint-imports --no-cache

demo: .venv/.lab
	@mkdir -p $(dir $(html))
	$(python) -m nbconvert --execute --to html --embed-images \
	    --ExecutePreprocessor.store_widget_state=False \
	    --TemplateExporter.extra_template_basedirs=notebooks --template offline \
	    --output-dir $(dir $(html)) --output $(notdir $(html)) $(ARGS) $(tour)
	@echo "The tour is in $(html)."

bench: .venv/.bench
	$(python) -m benchmarks $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info nbinspect/gradients/_kernels.*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Each stamp is written last, so that a broken-off installation is taken up again.
.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "nbinspect needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear "$(venv)"
	@touch $@

.venv/.lab .venv/.test .venv/.bench: .venv/.%: .venv/.made pyproject.toml constraints.txt $(compiled)
	@echo "Installing nbinspect[$*] into .venv; the first time takes minutes."
	$(install) -e '.[$*]'
	@touch $@
