# make setup   prepare .venv (the other targets do it by themselves)
# make demo    the whole system at work on real data; ARGS="--records 20000 --keep" for a short one
#              (--secure: with TLS, certificates and rights)
# make test    all tests; ARGS="tests/unit -k batch" for some
# make test-clients  Kafka's clients that are programs of their own (kcat, kafkajs, librdkafka's tests)
# make soak   the simulator until stopped; ARGS="--first-seed 100000 --nodes 5"
# make torture  real processes, hurt for ARGS="--rounds 60" rounds under load; needs root
# make bench   what a cluster does on this machine; ARGS="append --sizes 1024 --plot bench.png"
# make lint    what CI checks before the tests
# make docs    the documentation as a site in build/site; fails on a dead link

SETUP_DONE := .venv/.setup-done
DOCS_DONE := .venv/.docs-done

.PHONY: setup demo test test-clients soak torture bench lint docs
.DEFAULT_GOAL := setup

setup: $(SETUP_DONE)
	@:

$(SETUP_DONE): pyproject.toml requirements.lock requirements-jre.lock scripts/setup.sh
	@sh scripts/setup.sh $@

demo: setup
	@.venv/bin/quorumlog demo $(ARGS)

test: setup
	@sh scripts/test.sh $(ARGS)

test-clients: setup
	@sh scripts/test-clients.sh $(ARGS)

soak: setup
	@.venv/bin/quorumlog simulate --seeds 0 --seconds 60 $(ARGS)

torture: setup
	@.venv/bin/python tests/torture/rounds.py $(ARGS)

bench: setup
	@.venv/bin/quorumlog bench $(ARGS)

lint: setup
	@.venv/bin/ruff check src tests examples benchmarks scripts
	@.venv/bin/ruff format --check src tests examples benchmarks scripts
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

docs: $(DOCS_DONE)
	@sh scripts/mermaid.sh
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "docs: build/site/index.html"

$(DOCS_DONE): $(SETUP_DONE) requirements-docs.lock
	@sh scripts/setup.sh $@ requirements-docs.lock
