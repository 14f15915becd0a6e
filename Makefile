# Everything here works from a fresh clone with nothing but Python 3.11 (or newer), make and git.
# The set-up is two plain lines (see README.md); make only remembers whether they were done.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := .venv-engines
RELEASE := .venv-release
DOCS := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help demo test check bench torture soak engines requirements browser docs build reproducible package-check sbom supply-chain advisories release-check lock clean

help:
	@echo "make demo          see it work: a pipeline is killed and finishes, others count (half a minute)"
	@echo "make test          everything that must hold: check, tests, coverage, clean install"
	@echo "make check         lint, format and types only"
	@echo "make bench         side-by-side benchmarks"
	@echo "make torture       long property campaigns"
	@echo "make soak          kill workers on STORE=sqlite (postgresql, nats) for MINUTES=60, with WORK=calls (fleet)"
	@echo "make engines       steps inside Celery, Dramatiq, Dask, Ray, Prefect, Dagster (installs them apart)"
	@echo "make requirements  which requirements the last test run showed"
	@echo "make browser       install Debian's chromium, with which the dashboard is tested"
	@echo "make docs          the site of the documentation, in build/site/"
	@echo "make build         the wheel and the source archive, in dist/"
	@echo "make reproducible  build the last commit twice and compare the bytes"
	@echo "make package-check what the files in dist/ hold, and every extra in an empty environment (minutes)"
	@echo "make sbom          SBOMs, licences and manifest of the wheel, in releases/VERSION/"
	@echo "make supply-chain  are images, actions and dependencies pinned, and as in the SBOM?"
	@echo "make advisories    known advisories about the dependencies (asks the index unless ADVISORIES=file)"
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

# The tests of the dashboard look at it in a real browser. Where it cannot be installed they are skipped, and
# say so, so that this never fails.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || \
	if command -v apt-get >/dev/null 2>&1 && { [ "$$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then \
	  as=; [ "$$(id -u)" = 0 ] || as=sudo; echo "installing chromium for the tests of the dashboard"; \
	  $$as apt-get update -qq >/dev/null 2>&1; \
	  $$as apt-get install -y -qq chromium >/dev/null 2>&1 || echo "chromium could not be installed"; \
	else echo "no chromium: the tests of the dashboard in a browser are skipped (apt install chromium)"; fi

test: $(VENV)/.dev browser
	@$(BIN)/python tools/run_tests.py

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
	@$(BIN)/oncemore check supply-chain .
	@$(BIN)/oncemore check supply-chain requirements/runtime.txt --sbom releases/*/sbom.spdx.json

ADVISORIES ?= build/advisories.json
# pip-audit ends with 1 if it found something; the check below reports it.
build/advisories.json: $(RELEASE)/.ready requirements/runtime.txt
	@mkdir -p build
	-$(RELEASE)/bin/pip-audit --require-hashes -r requirements/runtime.txt --format json --output $@

advisories: $(VENV)/.dev $(ADVISORIES)
	@$(BIN)/oncemore check supply-chain requirements --advisories $(ADVISORIES)

release-check:
	@$(PYTHON) tools/release_check.py

COMPILE := .tools/bin/uv pip compile --universal --generate-hashes --no-header --no-annotate -c constraints.txt
lock:
	$(PYTHON) -m pip install --quiet --target .tools uv
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) requirements/release.in -o requirements/release.txt
	$(COMPILE) pyproject.toml requirements/docs.in -o requirements/docs.txt

clean:
	rm -rf $(VENV) $(ENGINES) $(RELEASE) $(DOCS) build dist releases .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .requirements-run.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
