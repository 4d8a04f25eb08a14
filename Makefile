# `make demo` trains and reports on the bundled data; `make test` runs every check.
# Both create the environments they need in .venv* folders.

PYTHON  ?= python3
VENV    := .venv
LIGHT   := .venv-light
CLEAN   := .venv-clean
LOWEST  := .venv-lowest
NEWEST  := .venv-newest
# --no-compile: most installed modules are never imported, so compiling all of them ahead is slower.
INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile --constraint constraints.txt
# Warnings of our own compilers are errors; those of a user's compiler are not.
CORE    := -C cmake.define.MATRYO_WERROR=ON -C build-dir=build/core
# Whole test files per core, as fixtures are costly; in the given order, or files with few long tests would run last.
SHARED  := -n auto --dist loadfile --no-loadscope-reorder -o tmp_path_retention_policy=failed

.PHONY: demo test lint docs unit light wheel soak sanitize neon explorer clients engines ray lowest newest audit clean

demo: $(VENV)/train
	$(VENV)/bin/matryo demo

# In parallel, because set-up, type checks and many tests use one core. Each target's output is printed when it ends.
GROUPED := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
test:
	$(MAKE) --no-print-directory --jobs=3 $(GROUPED) unit light lint wheel

lint: $(VENV)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/clang-format --dry-run --Werror src/core/*
	$(VENV)/bin/mypy

# Test processes already occupy the cores; threads within them would only compete.
unit light: export OMP_NUM_THREADS := 1
# Temporary files in memory where 4 GB are free, because each test that makes files durable waits for the disk.
unit light: export PYTEST_DEBUG_TEMPROOT := $(shell \
  test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 2>/dev/null && echo /dev/shm)

unit: $(VENV)/dev
	$(VENV)/bin/python -m pytest $(SHARED)

# The base installation on a machine without torch and without a C++ compiler: numpy searches.
light: export MATRYO_ISA := numpy
light: $(LIGHT)/ready
	$(LIGHT)/bin/python -c "import importlib.util as u; assert not u.find_spec('torch') and not u.find_spec('matryo._core')"
	$(LIGHT)/bin/python -m pytest $(SHARED)

# The built wheel in an empty environment, outside the source tree.
wheel: $(VENV)/dev
	rm -rf dist $(CLEAN) && MATRYO_REQUIRE_CORE=1 $(VENV)/bin/python -m build --no-isolation --wheel $(CORE) --outdir dist . > /dev/null
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/python $(INSTALL) "$$(ls dist/matryo-*.whl)[images]"
	cd $(CLEAN) && bin/python ../scripts/check_wheel.py

# Every attack of tests/hostile/attacks, for about 20 minutes; SOAK="--only kill_index --scale 0.1" for a short run.
soak: $(VENV)/dev
	$(VENV)/bin/python scripts/soak.py $(SOAK)

# The tests of search with sanitizers: addresses and undefined behaviour, then threads. Random calls follow, for FUZZ seconds.
FUZZ     ?= 120
PRELOAD   = LD_PRELOAD="$$($(CXX) -print-file-name=$(1).so) $$($(CXX) -print-file-name=libstdc++.so)"
ADDRESS   = $(call PRELOAD,libasan) ASAN_OPTIONS=detect_leaks=0 .venv-address/bin/python
THREAD    = $(call PRELOAD,libtsan) .venv-thread/bin/python
SEARCH   := tests/retrieve tests/evaluation/knn tests/data/images/test_crops.py tests/hostile/test_exact.py tests/hostile/test_damaged_guides.py
sanitize: export OMP_NUM_THREADS := 1
sanitize: .venv-address/ready .venv-thread/ready
	$(ADDRESS) -m pytest $(SEARCH)
	$(THREAD) -m pytest tests/retrieve/engines/test_core.py tests/evaluation/knn
	$(ADDRESS) scripts/fuzz_core.py --seconds $(FUZZ)

# The products of codes, compiled for aarch64 and run in an emulator (Debian: g++-aarch64-linux-gnu, qemu-user).
neon:
	mkdir -p build
	aarch64-linux-gnu-g++ -std=c++20 -O3 -Wall -Wextra -Werror -static -DMATRYO_ISA=baseline -Isrc/core \
	  scripts/check_products.cpp -o build/check_products
	qemu-aarch64 build/check_products

# The pages in a real browser, which is installed where it is missing; `make test` skips these tests without one.
BROWSER := chromium chromium-browser google-chrome google-chrome-stable chrome
explorer: $(VENV)/dev
	@for name in $(BROWSER); do command -v $$name && exit; done; apt-get install --yes --no-install-recommends chromium
	$(VENV)/bin/python -m pytest tests/serve/test_explorer.py tests/serve/test_explorer_page.py
	$(VENV)/bin/python -m pytest tests/report/test_report_browser.py

# Generated requests against the description of the API, and the clients of openai (npm), langchain, llama-index, litellm.
# The vector stores of langchain and llama-index, also by the standard tests of langchain.
clients: $(VENV)/dev
	$(PYTHON) -m venv .venv-clients
	CXX=no-compiler .venv-clients/bin/python $(INSTALL) --config-settings=build-dir=build/clients schemathesis \
	  langchain-openai llama-index-embeddings-openai-like litellm langchain-tests hypothesis \
	  --editable ".[langchain,llama-index]"
	.venv-clients/bin/python -m pytest tests/integrations src/matryo/integrations -o filterwarnings=default -o asyncio_mode=auto
	cd .venv-clients && npm install --silent --no-save openai
	$(VENV)/bin/python scripts/check_clients.py .venv-clients

# Plans on every database that can be installed here, each by the same tests.
engines: $(VENV)/dev
	$(VENV)/bin/python $(INSTALL) "chdb-core>=26" "qdrant-edge-py>=0.9"
	MATRYO_ENGINES=all $(VENV)/bin/python -m pytest tests/engines src/matryo/engines

# Jobs on local clusters of Ray, with machines that are killed, S3 from moto, and the recipe for Spark where it is
# installed (SPARK=pyspark installs it: 460 MB; needs Java). They see the packages of the development environment.
RAY   := .venv-ray
SPARK ?=
ray: $(VENV)/dev
	$(PYTHON) -m venv $(RAY)
	$(VENV)/bin/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	  > "$$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/dev.pth"
	$(RAY)/bin/python $(INSTALL) "ray>=2.50" s3fs "moto[server]" $(SPARK)
	$(RAY)/bin/python -m pytest tests/ray src/matryo/ray -o filterwarnings=default

# The tests with the lowest version of each dependency that pyproject.toml allows, and with the newest one.
# EXTRAS="all" also tests PyTorch. Warnings are no errors here: old and new packages deprecate each other.
EXTRAS  ?= images,report,graph,arrow,frames,serve,completion
RELAXED := -o filterwarnings=default --deselect tests/test_docs.py::test_the_site_builds
lowest newest: export OMP_NUM_THREADS := 1
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) scripts/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip --quiet install --constraint $(LOWEST)/constraints.txt --editable ".[$(EXTRAS),test]"
	$(LOWEST)/bin/python -m pytest $(SHARED) $(RELAXED)

newest:
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip --quiet install --upgrade --pre --editable ".[$(EXTRAS),test]"
	$(NEWEST)/bin/python -m pytest $(SHARED) $(RELAXED)

# Published advisories about the installed versions; needs the network.
audit: $(VENV)/dev
	$(VENV)/bin/python -m pip --quiet install pip-audit
	$(VENV)/bin/python -m pip_audit --local --skip-editable

docs: $(VENV)/dev
	$(VENV)/bin/python scripts/make_docs.py
	$(VENV)/bin/zensical build --strict
	@echo "site/index.html"

clean:
	rm -rf $(VENV) $(LIGHT) $(CLEAN) $(LOWEST) $(NEWEST) $(RAY) .venv-address .venv-thread build dist site

# --- environments, updated when pyproject.toml, constraints.txt or the compiled core changes ---
BUILT := CMakeLists.txt $(wildcard src/core/*)
# What pyproject.toml requires for a build is installed first and pip's isolation is off: the core of later builds, and
# that of the wheel, is then compiled only where its sources changed. The light installation is built in isolation.
TO_BUILD := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/requires.txt: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -c '$(TO_BUILD)' > $@.part
	$(VENV)/bin/python $(INSTALL) cmake ninja --requirement $@.part
	mv $@.part $@

$(VENV)/train: $(VENV)/requires.txt pyproject.toml constraints.txt $(BUILT)
	$(VENV)/bin/python $(INSTALL) --no-build-isolation $(CORE) --editable ".[train]"
	touch $@

$(VENV)/dev: $(VENV)/requires.txt pyproject.toml constraints.txt $(BUILT)
	MATRYO_REQUIRE_CORE=1 $(VENV)/bin/python $(INSTALL) --no-build-isolation $(CORE) --editable ".[dev]"
	touch $(VENV)/train $@

# The core with sanitizers: .venv-address/ready, .venv-thread/ready.
.venv-address/ready: KIND := address,undefined
.venv-thread/ready: KIND := thread
.venv-%/ready: pyproject.toml constraints.txt $(BUILT)
	$(PYTHON) -m venv .venv-$*
	MATRYO_REQUIRE_CORE=1 .venv-$*/bin/python $(INSTALL) --config-settings=cmake.define.MATRYO_SANITIZE=$(KIND) \
	  --config-settings=install.strip=false --config-settings=build-dir=build/$* --editable ".[images,test]"
	touch $@

$(LIGHT)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIGHT)
	CXX=no-compiler $(LIGHT)/bin/python $(INSTALL) --config-settings=build-dir=build/light --editable ".[images,serve,test]"
	touch $@
