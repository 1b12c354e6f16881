# `make demo` and `make test` are each the only command needed on a fresh Debian 12 or 13 with Rust (rustup).

PACKAGES := clang libbpf-dev libelf-dev zlib1g-dev pkg-config gcc libc6-dev make \
            qemu-system-x86 busybox-static kmod xz-utils e2fsprogs libquantum-dev \
            mmdebstrap genext2fs uidmap
BOOT_PACKAGES := gcc make grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools ovmf
MUSL := x86_64-unknown-linux-musl
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
VMSCOPE := $(TARGET_DIR)/debug/vmscope

.PHONY: help demo test check e2e bench bench-trace experiments overhead floor boot build deps

help:
	@echo 'make demo          record and report three guests on a virtual KVM host (about 3 minutes once built and downloaded)'
	@echo 'make test          every test'
	@echo 'make check         format, lints and unit tests only'
	@echo 'make bench         benchmarks: print figures, assert nothing'
	@echo 'make bench-trace   what tracing an event costs, beside ftrace and perf; writes target/bench-trace.json (as root)'
	@echo 'make experiments   the slow experiments [ONLY=S0.1]; writes target/experiments.json'
	@echo 'make overhead      instructions per sample, against perf and the checked-in figures; writes target/overhead.json'
	@echo 'make boot          the self-booting micro-benchmark: an ELF and an ISO, into $(TARGET_DIR)/boot'
	@echo 'make build         the programs, into $(TARGET_DIR)'

demo: build
	rm -rf $(TARGET_DIR)/demo
	$(VMSCOPE) demo -o $(TARGET_DIR)/demo

test: check e2e

check: build
	@$(MAKE) --no-print-directory -C boot test TARGET_DIR=$(abspath $(TARGET_DIR))
	cargo fmt --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	.ci/report-skipped cargo test --locked --workspace --exclude acceptance -- --nocapture
	.ci/report-skipped cargo test --locked -p guest --all-features -- --nocapture

e2e: build boot
	@.ci/deps $(MUSL) linux-perf
	.ci/report-skipped cargo test --locked -p acceptance -- --nocapture --test-threads=1

bench: build
	cargo bench --locked -p recording -p analysis -p trace-analysis
	cargo run --locked -q -p acceptance --bin measure -- --build

bench-trace: build
	@.ci/deps $(MUSL) $(PACKAGES) linux-perf
	cargo run --locked -q --release -p tracer --example bench_trace -- $(VMSCOPE) $(TARGET_DIR)/bench-trace.json

experiments: build floor
	cargo run --locked -q -p acceptance --bin experiments -- $(if $(ONLY),--only $(ONLY))

overhead: build floor
	cargo run --locked -q -p acceptance --bin overhead -- $(if $(UPDATE),--update)

# What vmscope's cost is compared with.
floor:
	@.ci/deps $(MUSL) linux-perf
	cargo build --locked -p probes --example floor

boot:
	@.ci/deps $(MUSL) $(BOOT_PACKAGES)
	@$(MAKE) --no-print-directory -C boot TARGET_DIR=$(abspath $(TARGET_DIR))

build: deps
	cargo build --locked --workspace --bins
	cargo build --locked -p vmscope-guest --target $(MUSL)

deps:
	@.ci/deps $(MUSL) $(PACKAGES)
