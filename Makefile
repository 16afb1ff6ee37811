# `make demo` builds everything and runs the main job; `make test` installs what the tests need and passes them.

CARGO ?= cargo
# Where the programs are. Another folder than the default is taken as it is, nothing is built for it.
BIN ?= target/release
FEATURES := felix-sdk/cli
# Tests have the clients of what the bench compares with.
TEST_FEATURES := $(FEATURES),felix-bench/peers
SERVERS := -p felix-ctrl -p felix-shardcore -p felix-sdk

.PHONY: demo build test

demo:
ifeq ($(BIN),target/release)
demo: build
endif
demo:
	$(BIN)/felix dev --demo --port 0 --data-dir target/felix-demo

build:
	$(CARGO) build --release $(SERVERS) --features $(FEATURES)

# The tests start the programs, so these are built first.
test:
	.ci/tools
	$(CARGO) build --profile ci --workspace --features $(TEST_FEATURES) --bins
	$(CARGO) nextest run --no-fail-fast --cargo-profile ci --workspace --features $(TEST_FEATURES)
	.venv/bin/python -m pytest -q -p no:cacheprovider bench/tests/python
