# Every target sets up .venv by itself when pyproject.toml or constraints.txt changed.
#
#   PYTHON=python3.12    the interpreter for .venv (3.11 or newer)
#   TORCH_PIP_ARGS=...   extra arguments for installing torch, such as the --index-url of a build
#                        without CUDA (2 GB smaller) that PyTorch's installation page names

PYTHON ?= python3
TORCH_PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-slurm demo-kubernetes demo-money test test-all stress check lint types imports sizes pins pages audit sbom browser slurm kubernetes format docs reference dist bench faults fuzz clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## create .venv with everything in it (the other targets do it for you)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "Headway needs Python 3.11 or newer, and there is no '$(PYTHON)'. Install it, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Headway needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot create virtual environments. Install its venv package (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH_PIP_ARGS) $(TORCH)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train four real jobs on this machine: resize live, kill, pause, drain (a minute or two)
	$(BIN)/python -m examples.demo

demo-slurm: $(READY) slurm  ## train one job on four nodes of a real Slurm that lose one to another user (as root, two minutes)
	$(BIN)/python -m benchmarks.slurm_demo

demo-kubernetes: $(READY) kubernetes  ## train one job on two nodes of a real control plane, which lose one to a higher class (as root, two minutes)
	$(BIN)/python -m benchmarks.kubernetes_demo

demo-money: $(READY)  ## rent machines of this host under a budget, lose two of them, and read the bill (a few minutes)
	$(BIN)/python -m examples.demo_money

test: $(READY) browser slurm kubernetes  ## run the gate: all tests but the slow ones (about 10 minutes on two cores)
	$(BIN)/python -m tools.gate

test-all: $(READY) browser slurm kubernetes  ## run every test (about 40 minutes on two cores)
	$(BIN)/python -m tools.gate --all

stress: $(READY)  ## run a test N times beside busy cores, and keep its first failure (TEST=tests/...::test_name N=50)
	$(BIN)/python -m tools.stress $(TEST) --times $(or $(N),50)

browser:  ## install Chromium for the tests of the pages, where this may install packages (Debian, as root)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || echo "NO BROWSER: THE PAGES WILL NOT BE TESTED. Install Chromium (Debian: apt install chromium)." >&2

slurm:  ## install Slurm for the tests of its provider, where this may install packages (Debian, as root)
	@command -v slurmctld >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins >/dev/null 2>&1; } || echo "NO SLURM: ITS PROVIDER WILL NOT BE TESTED. Install slurmctld and slurmd (Debian: apt install slurmctld slurmd slurm-client)." >&2

CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kube-scheduler kubectl
kubernetes:  ## say what the tests of the provider for Kubernetes lack, and where it comes from
	@missing=""; for one in $(CONTROL_PLANE); do PATH="$$KUBEBUILDER_ASSETS:$$PATH" command -v $$one >/dev/null || missing="$$missing $$one"; done; \
	test "$$(id -u)" = 0 || missing="$$missing root"; \
	test -z "$$missing" || echo "NO CONTROL PLANE OF KUBERNETES: ITS PROVIDER WILL NOT BE TESTED. Missing:$$missing. Set KUBEBUILDER_ASSETS to a folder with the programs: etcd is Debian's etcd-server, the others are in a release's kubernetes-server-linux-amd64.tar.gz (1.20 was tried; the binaries of setup-envtest have no scheduler and no controllers)." >&2

check: $(READY)  ## lint, types, import rules, sizes, pins, generated pages, known vulnerabilities
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target lint types imports sizes pins pages audit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

sizes: $(READY)
	$(BIN)/python tools/check_sizes.py

pins: $(READY)
	$(BIN)/python tools/check_pins.py

pages: $(READY)
	$(BIN)/python -m tools.reference --check

audit: $(READY)  ## look up what is installed in a database of known vulnerabilities
	$(BIN)/python -m tools.audit

sbom: $(READY)  ## write dist/sbom.json: what is installed, in CycloneDX
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml -o dist/sbom.json $(BIN)/python

format: $(READY)  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) reference  ## build the documentation's site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(READY)  ## rewrite the pages of docs/reference that follow from the code
	$(BIN)/python -m tools.reference

dist: $(READY)  ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation --outdir dist

bench: $(READY)  ## run every benchmark; each prints one JSON object (QUICK=1: seconds each, to see that they work)
	@names=$$($(BIN)/python -c 'from benchmarks.arguments import names; print(*names())') || exit 1; \
	for name in $$names; do \
		echo "== $$name" >&2; \
		$(BIN)/python -m benchmarks.$$name --json $(if $(QUICK),--quick) || exit 1; \
	done

faults: $(READY)  ## break a cluster for a minute, and check that nothing is lost (docs/reliability.md)
	$(BIN)/python -m benchmarks.faults --seed $${SEED:-1} --minutes $${MINUTES:-1}

fuzz: $(READY)  ## send made-up input to a service and its parsers (MINUTES=10), and keep what fails in KEEP
	$(BIN)/python -m benchmarks.fuzz --json --seed $${SEED:-1} --minutes $${MINUTES:-10} --keep $${KEEP:-build/fuzz}

clean:  ## remove .venv, caches and build products (data of `headway up` stays)
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist demo-result.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
