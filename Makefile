# Two commands matter: `make demo` runs the main job on bundled data, `make test` proves the code.
# Both set up everything they need in .venv* folders here.

PYTHON  ?= python3
VENV    := .venv
LIGHT   := .venv-light
CLEAN   := .venv-clean
# Bytecode is made where it is imported: of most that is installed it never is.
INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile
# Every core takes files of tests, whole ones, as their fixtures are costly; in order, or long tests of few come last.
SHARED  := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test lint docs unit light wheel soak clean

demo: $(VENV)/train
	$(VENV)/bin/matryo demo

# Side by side, as setting up, type checking and many tests keep one core waiting; each is shown when it ends.
GROUPED := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
test:
	$(MAKE) --no-print-directory --jobs=3 $(GROUPED) unit light lint wheel

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# The cores are taken by processes: threads within them would wait for each other.
unit light: export OMP_NUM_THREADS := 1

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
	$(CLEAN)/bin/python $(INSTALL) "$$(ls dist/matryo-*.whl)[images]"
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
	$(VENV)/bin/python $(INSTALL) --editable ".[train,report]"
	touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python $(INSTALL) --editable ".[dev]"
	touch $(VENV)/train $@

$(LIGHT)/ready: pyproject.toml
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python $(INSTALL) --editable ".[images,test]"
	touch $@
