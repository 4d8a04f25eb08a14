# Two commands matter: `make demo` runs the main job on bundled data, `make test` proves the code.
# Both set up everything they need in .venv* folders here.

PYTHON ?= python3
VENV   := .venv
LIGHT  := .venv-light
CLEAN  := .venv-clean
PIP    := -m pip --disable-pip-version-check --quiet
# Every core takes files of tests, whole ones, as their fixtures are costly; in order, or long tests of few come last.
SHARED := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test lint docs unit light wheel soak clean

demo: $(VENV)/train
	$(VENV)/bin/matryo demo

test: lint unit light wheel

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

unit: $(VENV)/dev
	$(VENV)/bin/python -m pytest $(SHARED)

# The numpy side where torch cannot be imported: what people with only vectors install.
light: $(LIGHT)/ready
	$(LIGHT)/bin/python -c "import importlib.util as u; assert u.find_spec('torch') is None, 'torch must be absent'"
	$(LIGHT)/bin/python -m pytest $(SHARED)

# The built wheel in an environment that has nothing else, used away from the sources.
wheel: $(VENV)/dev
	rm -rf dist $(CLEAN) && $(VENV)/bin/python -m build --wheel --outdir dist . > /dev/null
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/python $(PIP) install "$$(ls dist/matryo-*.whl)[images]"
	cd $(CLEAN) && bin/python ../scripts/check_wheel.py

# Hundreds of kills instead of fifty.
soak: $(VENV)/dev
	MATRYO_SOAK=300 $(VENV)/bin/python -m pytest tests/retrieve/store/test_store_kill.py tests/retrieve/store/test_store_model.py

docs: $(VENV)/dev
	$(VENV)/bin/python scripts/make_docs.py
	$(VENV)/bin/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) $(LIGHT) $(CLEAN) dist site

# --- environments, remade when pyproject.toml changes ---
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/train: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(PIP) install --editable ".[train,report]"
	touch $@

$(VENV)/dev: $(VENV)/train
	$(VENV)/bin/python $(PIP) install --editable ".[dev]"
	touch $@

$(LIGHT)/ready: pyproject.toml
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python $(PIP) install --editable ".[images,test]"
	touch $@
