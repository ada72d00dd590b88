# Commands for a fresh machine: `make demo`, `make test`, `make deb` and `make rpm`. Each installs what it needs
# (apt, as root or with sudo), says so, and does its work. Everything else is cargo's.

.PHONY: deb demo rpm test
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin

# Builds Instep, with the kernel scheduler where that can be built, and shows it on an emulated NUMA host with
# real KVM guests.
demo:
	@scripts/install-deps.sh demo
	@scripts/demo.sh

# Every test and check.
test:
	@scripts/install-deps.sh test
	@scripts/test.sh

# The Debian packages of instep and instep-lab, in target/package/deb.
deb:
	@scripts/install-deps.sh deb
	@cargo xtask deb

# The RPM packages of instep and instep-lab, in target/package/rpm.
rpm:
	@scripts/install-deps.sh rpm
	@cargo xtask rpm
