# Everything sets itself up: a virtual environment, dependencies, and what the tests need of Java (kept in .cache).
PYTHON ?= python3
VENV   ?= .venv
SECONDS ?= 60
FUZZ_TARGETS = key_metadata stream damaged_stream encryption_keys keystore

.PHONY: demo test test-containers lint bench fuzz clean

demo: $(VENV)/.installed                 ## the main job on an embedded default: no server, no cloud account
	@$(VENV)/bin/python -m examples.tables

test: $(VENV)/.installed-test            ## all tests, those against Iceberg Java and real servers too
	@nice $(VENV)/bin/python -m integration.tools &
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

test-containers: $(VENV)/.installed-test ## the tests of integration/ against the servers of docker-compose.yml
	@mkdir -p /tmp/pyiceberg-encryption/s3 /tmp/pyiceberg-encryption/rest /tmp/pyiceberg-encryption/hive
	UID=$$(id -u) docker compose up --detach --wait
	set -a && . integration/containers.env && $(VENV)/bin/python -m pytest integration

lint: $(VENV)/.installed-lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.installed-test           ## speed, beside Iceberg Java, bare AES-GCM, plain PyIceberg and Spark
	$(VENV)/bin/python -m benchmarks.streams
	$(VENV)/bin/python -m benchmarks.tables
	$(VENV)/bin/python -m benchmarks.spark

fuzz: $(VENV)/.installed-fuzz            ## each parser and the reader, for SECONDS each
	@mkdir -p .cache/fuzz
	@for target in $(FUZZ_TARGETS); do \
		$(VENV)/bin/python -m fuzz $$target -max_total_time=$(SECONDS) -rss_limit_mb=1024 -timeout=10 \
			-artifact_prefix=.cache/fuzz/ > .cache/fuzz/$$target.log 2>&1 \
			&& echo "$$target: $$(tail -n 1 .cache/fuzz/$$target.log)" \
			|| { tail -n 40 .cache/fuzz/$$target.log; exit 1; }; \
	done

clean:
	rm -rf $(VENV) .cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable '.[sql-sqlite]'
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable . --group $*
	@touch $@
