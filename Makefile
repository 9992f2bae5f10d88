# One command per chore. Each makes the Python environment first if it is not there (scripts/setup.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help run test test-unit test-integration test-engines soak lint format python

PYTHON = $$(scripts/setup.sh)
SUITES = $(wildcard tests/unit tests/integration tests/engines)
TYPED = $(wildcard sightline_types.py app deployments router processors simulation)

help:
	@echo "make run [CONFIG=file.yaml] [ONCE=1]  serve on 127.0.0.1:8000 and show that routing works"
	@echo "make test                             every test, real engines included"
	@echo "make test-unit | test-integration | test-engines"
	@echo "make soak                             the long forms: 20 million operations, ten kills under load, other"
	@echo "                                      examples of every property"
	@echo "make lint | format                    ruff and mypy --strict | ruff's formatter"
	@echo "make -s python                        the path of the environment's interpreter"

run:
	@py=$(PYTHON); exec "$$py" -m app demo $(if $(CONFIG),--config $(CONFIG)) $(if $(filter-out 0 no false,$(ONCE)),--once)

test:
	@py=$(PYTHON); exec "$$py" -m pytest $(SUITES)

test-unit test-integration test-engines: test-%:
	@py=$(PYTHON); exec "$$py" -m pytest tests/$*

soak:
	@py=$(PYTHON); "$$py" -m pytest tests/soak && "$$py" -m pytest tests/unit --hypothesis-profile=searching

lint:
	@py=$(PYTHON); "$$py" -m ruff check . && "$$py" -m ruff format --check . && "$$py" -m mypy $(TYPED)

format:
	@py=$(PYTHON); "$$py" -m ruff check --fix-only . && "$$py" -m ruff format .

python:
	@scripts/setup.sh
