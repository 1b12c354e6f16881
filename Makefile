# `make demo` and `make test` are each the only command needed on a fresh Debian 12 or 13 with Rust (rustup).

# What compiling needs, and what running needs besides: the latter is installed while the former is at work.
BUILD_PACKAGES := clang libbpf-dev libelf-dev zlib1g-dev pkg-config gcc libc6-dev make
RUN_PACKAGES := qemu-system-x86 bochs bochsbios vgabios bochs-term busybox-static kmod xz-utils e2fsprogs libquantum-dev libsqlite3-dev \
                mmdebstrap genext2fs uidmap curl procps iproute2 socat
BOOT_PACKAGES := gcc make grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools ovmf
MUSL := x86_64-unknown-linux-musl
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
VMSCOPE := $(TARGET_DIR)/debug/vmscope

# Without what only debuggers read: it is part of every guest's image, which guests unpack under emulation.
BUILD_GUEST := CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_STRIP=debuginfo \
               cargo build --locked -p vmscope-guest --target $(MUSL)
# Experiments are compiled by who runs them.
TESTED := --locked --workspace --exclude experiments
# With an example, cargo takes in what tests need, too: the libraries are those that the tests have, not built again.
PROGRAMS := cargo build $(TESTED) --bins --example hostile_names
E2E = cargo test $(TESTED) --test e2e -- --tier
STEP := .ci/step
# Programs that the server talks to in tests.
OUTSIDE_PACKAGES := prometheus prometheus-alertmanager
# Servers, clients and witnesses of `make experiments ONLY=S1-split`.
SPLIT_PACKAGES := tshark tcpdump nginx-light postgresql mariadb-server python3 python3-psycopg python3-pymysql iproute2 curl
# What building guests' kernels needs.
KERNEL_PACKAGES := flex bison bc gcc make libelf-dev libssl-dev xz-utils
INSTALL := .ci/deps $(MUSL) $(RUN_PACKAGES) $(BOOT_PACKAGES) linux-perf $(OUTSIDE_PACKAGES)
# In CI a test that is skipped although the machine could run it fails.
export CI

# The runtime of instrumented programs writes an unused profile.
FUZZ := RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/.ci/instrument LLVM_PROFILE_FILE=/dev/null \
        cargo run --locked -q -p fuzz --example fuzz --

SPARK := $(abspath $(TARGET_DIR))/tools/spark
SUMS := $(abspath $(TARGET_DIR))/tools/sums
S3_SERVER := $(abspath $(TARGET_DIR))/tools/versitygw
OTELCOL := $(abspath $(TARGET_DIR))/tools/otelcol/otelcol

# Packages are of this profile's programs: release or dev.
PROFILE := release
PROFILE_DIR := $(TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
VERSION := $(shell sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: ui test-ui test-built-ui bench-ui steps-ui ui-tools packages fleet-demo fuzz fuzz-all mutants help demo test test-all smoke steps-test steps-test-all steps-smoke check build-tests e2e bench bench-trace \
        experiments s3 s3-server otel spark ten-million odd-queries overhead programs boot build build-host deps

help:
	@echo 'make demo          record and report three guests on a virtual KVM host (about 3 minutes once built and downloaded)'
	@echo 'make fleet-demo    a server, two virtual hosts with agents, and what vmscope query finds (about 5 minutes once built)'
	@echo 'make smoke         while you work: lints, unit tests, one recording of a guest (2 minutes once built)'
	@echo 'make test          what CI runs: lints, unit tests, an end-to-end test of each behaviour (more than an hour from nothing on two cores)'
	@echo 'make test-all      the same with further machines, and how exact figures are'
	@echo 'make check         format, lints and unit tests only; installs nothing, needs no root'
	@echo 'make e2e           end-to-end tests only [ONLY=trace_guest]'
	@echo 'make bench         benchmarks: print figures, assert nothing'
	@echo 'make bench-trace   what tracing an event costs, beside ftrace and perf; writes target/bench-trace.json (as root)'
	@echo 'make experiments   the slow experiments [ONLY=S0.1]; writes results to target/figures, in the form of docs/figures'
	@echo 'make overhead      instructions per sample, against perf and the checked-in figures; writes target/overhead.json, target/figures/overhead.toml'
	@echo 'make fuzz          mutated bytes for a parser: TARGET=rings [SECONDS=600]; TARGET= lists the targets'
	@echo 'make mutants       what mutants of recordings cost vmscope: memory, time, exit codes [COUNT=100000]'
	@echo 'make odd-queries   generated queries to a running server: outcomes, memory, what is left [COUNT=10000]'
	@echo 'make boot          the self-booting micro-benchmark: an ELF and an ISO, into $(TARGET_DIR)/boot'
	@echo 'make packages      Debian packages: vmscope with the agent, its lab, layout, server and guest programs; into $(TARGET_DIR)/packages'
	@echo 'make ui            the web page, into ui/dist, from where the next build of the server takes it'
	@echo 'make test-ui       its tests, in a browser and with a real server (3 minutes once built) [QUICK=1]'
	@echo 'make bench-ui      what the page takes with 200 hosts and a day; writes target/bench-ui.json (30 minutes)'
	@echo 'make build         the programs, into $(TARGET_DIR)'

demo: build-host
	rm -rf $(TARGET_DIR)/demo
	$(VMSCOPE) demo -o $(TARGET_DIR)/demo

fleet-demo: build-host
	$(PROGRAMS)
	deploy/fleet-demo $(TARGET_DIR)/debug $(TARGET_DIR)/fleet-demo

# Each ends with a table of what took how long.
test test-all smoke:
	@.ci/table $(MAKE) --no-print-directory steps-$@

# First, so that the server is built once, with it.
steps-ui:
	@$(STEP) 'build: web page' $(MAKE) --no-print-directory ui

steps-test: steps-ui build-tests check
	@$(STEP) 'web page' $(MAKE) --no-print-directory test-built-ui QUICK=1
	@$(STEP) 'end-to-end tests' $(E2E) main

steps-test-all: steps-ui build-tests check
	@$(STEP) 'end-to-end tests' $(E2E) all
	@$(STEP) 'lints of the experiments' cargo clippy --locked --workspace --all-targets -- -D warnings
	@$(STEP) 'exact figures' $(MAKE) --no-print-directory experiments ONLY='S0.2 S0.4 S0.5 S0.6 S0.7 exits quota'
	@$(STEP) 'web page' $(MAKE) --no-print-directory test-built-ui
	@$(STEP) 'S3 service' $(MAKE) --no-print-directory s3
	@$(STEP) 'OpenTelemetry collector' $(MAKE) --no-print-directory otel
	@$(STEP) 'fuzzing' $(MAKE) --no-print-directory fuzz-all SECONDS=60

steps-smoke: build-tests check
	@$(STEP) 'end-to-end tests' $(E2E) smoke

# With --workspace everywhere features are the same everywhere: nothing is compiled twice.
# It installs nothing and needs no root: tests that lack a program are skipped, but not in CI.
check:
	@.ci/deps --dry $(MUSL) $(BUILD_PACKAGES)
	@$(STEP) 'format' cargo fmt --check
	@$(STEP) 'lints' cargo clippy $(TESTED) --all-targets -- -D warnings
	@$(STEP) 'boot image, unit tests' $(MAKE) --no-print-directory -C boot test TARGET_DIR=$(abspath $(TARGET_DIR))
	@$(STEP) 'unit tests' .ci/beside "cargo test $(TESTED) --test '[a-c]*' -- --nocapture" \
		"cargo test $(TESTED) --lib --bins --test '[!a-c]*' -- --nocapture"

build-tests: deps
	@$(STEP) 'build: programs and tests (packages beside it)' .ci/beside '$(INSTALL)' \
		'cargo test $(TESTED) --lib --bins --tests --no-run && $(PROGRAMS)'
	@$(STEP) 'build: guest command' env $(BUILD_GUEST)
	@$(STEP) 'build: boot image' $(MAKE) --no-print-directory boot

e2e: build-tests
	$(E2E) main $(ONLY)

bench: programs
	cargo bench --locked -p recording -p analysis -p trace-analysis
	$(TARGET_DIR)/debug/measure --build

bench-trace: build
	@.ci/deps $(MUSL) linux-perf
	cargo run --locked -q --release -p tracer --example bench_trace -- $(VMSCOPE) $(TARGET_DIR)/bench-trace.json

# The figures of a server are those of optimised programs.
experiments: programs
	$(if $(filter-out S0.11 S0.12 S0.13,$(ONLY)),,cargo build --locked --release --workspace --bins --example multiply)
	$(if $(filter-out storm-s3,$(ONLY)),,$(MAKE) --no-print-directory s3-server)
	$(if $(filter-out S1-split,$(ONLY)),,@.ci/deps $(MUSL) $(SPLIT_PACKAGES))
	$(if $(filter-out S1-timer,$(ONLY)),,@.ci/deps $(MUSL) $(KERNEL_PACKAGES))
	VMSCOPE_S3_SERVER=$(S3_SERVER) $(TARGET_DIR)/debug/experiments $(if $(ONLY),--only $(ONLY))

# The server over a real S3 service, a program of Go: everything that takes part is killed meanwhile.
s3: s3-server build-tests
	VMSCOPE_S3_SERVER=$(S3_SERVER) cargo test $(TESTED) --test fleet -- --nocapture an_s3_service

s3-server: deps
	@command -v go >/dev/null || .ci/deps $(MUSL) golang-go ca-certificates
	@test -x $(S3_SERVER) || GOBIN=$(dir $(S3_SERVER)) go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

# Profiles to a real OpenTelemetry collector, which is built from Go modules.
otel: deps
	@command -v go >/dev/null || .ci/deps $(MUSL) golang-go ca-certificates
	@test -x $(OTELCOL) || { mkdir -p $(dir $(S3_SERVER)) && cd $(dir $(S3_SERVER)) && \
		GOBIN=$(dir $(S3_SERVER)) go install go.opentelemetry.io/collector/cmd/builder@v0.165.0 && \
		./builder --config $(CURDIR)/tests/interop/otelcol.yaml; }
	VMSCOPE_OTELCOL=$(OTELCOL) cargo test $(TESTED) --test otlp -- --nocapture

# Spark over the server's store, with executors that are killed in JOBS jobs.
spark: deps
	@.ci/deps $(MUSL) default-jre-headless python3-venv
	@test -x $(SPARK)/bin/spark-submit || { python3 -m venv $(SPARK) && $(SPARK)/bin/pip install -q pyspark==4.0.1 pyarrow pandas; }
	VMSCOPE_SPARK_PYTHON=$(SPARK)/bin/python VMSCOPE_SPARK_JOBS=$(or $(JOBS),10) \
		cargo test $(TESTED) --test spark -- --nocapture

# How long queries over ten million rows take, and the same sums by DuckDB and pandas.
ten-million: deps
	@.ci/deps $(MUSL) python3-venv
	@test -x $(SUMS)/bin/pip || python3 -m venv $(SUMS)
	@$(SUMS)/bin/pip install -q duckdb==1.4.2 pandas pyarrow
	cargo build --locked --release --workspace --bins --example ten_million
	VMSCOPE_SUMS_PYTHON=$(SUMS)/bin/python $(TARGET_DIR)/release/examples/ten_million $(ROWS)

# COUNT generated queries to a running server: what becomes of them, and what is left.
odd-queries: deps
	VMSCOPE_ODD_QUERIES=$(or $(COUNT),10000) cargo test $(TESTED) --test odd_queries -- --nocapture

overhead: programs
	$(TARGET_DIR)/debug/overhead $(if $(UPDATE),--update)

# With the experiments, and the floor that vmscope's cost is compared with.
programs: deps
	@.ci/beside '.ci/deps $(MUSL) $(RUN_PACKAGES) linux-perf' \
		'cargo build --locked --workspace --bins --example floor --example replay_faults --example hostile_peer && $(BUILD_GUEST)'

fuzz: deps
	$(FUZZ) $(TARGET) $(or $(SECONDS),600)

# Mutants of recordings and traces for the programs that read them: peak memory, CPU time, exit codes.
mutants: deps
	VMSCOPE_MUTANTS=$(or $(COUNT),100000) cargo test --locked -p vmscope --test bounded -- --nocapture mutants

# Each target for so long.
fuzz-all:
	@set -e; targets=$$($(FUZZ) --list); for target in $$targets; do $(FUZZ) $$target $(or $(SECONDS),600); done

# The web page. Node is needed to build it, not to run the server.
ui: ui-tools
	npm --prefix ui run -s build

# Types, functions, and the page in Chromium with a server that has real windows.
test-ui: ui test-built-ui

# Building the page again would build the server again.
test-built-ui:
	npm --prefix ui run -s lint
	npm --prefix ui run -s unit
	$(PROGRAMS)
	@.ci/deps $(MUSL) chromium fonts-dejavu-core
	cd ui && VMSCOPE_PROGRAMS=$(abspath $(TARGET_DIR))/debug npx playwright test $(if $(QUICK),--grep @quick) $(ONLY)

# What the page takes with 200 hosts for a day: time until it is drawn, brushing, memory.
bench-ui: ui
	cargo build --locked --release --workspace --bins --example fleet_days
	@.ci/deps $(MUSL) chromium fonts-dejavu-core
	cd ui && VMSCOPE_PROGRAMS=$(abspath $(TARGET_DIR))/release VMSCOPE_BENCH_FILE=$(abspath $(TARGET_DIR))/bench-ui.json \
		npx playwright test --config bench/playwright.config.ts

ui-tools: deps
	@command -v npm >/dev/null || .ci/deps $(MUSL) nodejs npm
	npm --prefix ui ci --silent --no-audit --no-fund

# Debian packages of the host's programs and agent, the server with its web page, and the guest.
packages: deps ui
	cargo build --locked --profile $(PROFILE) -p vmscope -p vmscope-ask -p vmscope-lab -p vmscope-layout -p vmscope-server
	cargo build --locked --profile $(PROFILE) -p vmscope-guest --target $(MUSL)
	for program in vmscope vmscope-ask vmscope-lab vmscope-layout vmscope-server; do \
		$(PROFILE_DIR)/$$program manuals $(PROFILE_DIR)/manuals/$$program || exit; done
	cargo run --locked -q --profile $(PROFILE) -p vmscope-guest --features manuals -- manuals $(PROFILE_DIR)/manuals/vmscope-guest
	deploy/packages/build $(VERSION) $(PROFILE_DIR) $(subst $(TARGET_DIR),$(TARGET_DIR)/$(MUSL),$(PROFILE_DIR))/vmscope-guest \
		$(TARGET_DIR)/packages

boot:
	@.ci/deps $(MUSL) $(BOOT_PACKAGES)
	@$(MAKE) --no-print-directory -C boot TARGET_DIR=$(abspath $(TARGET_DIR))

build: build-host
	@$(BUILD_GUEST)

# Without the program for guests.
build-host: deps
	@.ci/beside '.ci/deps $(MUSL) $(RUN_PACKAGES)' 'cargo build --locked -p vmscope -p vmscope-ask -p vmscope-lab -p vmscope-layout'

deps:
	@.ci/deps $(MUSL) $(BUILD_PACKAGES)
