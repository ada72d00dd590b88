# Two commands for a fresh machine: `make demo` and `make test`. Each installs what it needs
# (apt, as root or with sudo), says so, and does its work. Everything else is cargo's.

.PHONY: demo test
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin

# Builds Instep and shows it on an emulated NUMA host with real KVM guests.
demo:
	@scripts/install-deps.sh demo
	@echo "==> building (the first time takes some minutes)"
	@cargo build --release --package instep-cli
	@echo "==> instep demo"
	@cargo run --quiet --release --package instep-cli -- demo

# Every test and check.
test:
	@scripts/install-deps.sh test
	@scripts/test.sh
