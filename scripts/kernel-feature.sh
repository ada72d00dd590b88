# Sourced by scripts that build Instep: with the kernel scheduler where this machine can build it.
#
# Sets `kernel` to the arguments for cargo and BPF_CLANG to the clang; where that cannot be, `kernel` is empty, and one
# line on standard error says what is missing and what installs it.
kernel=()
if clang=$(cargo xtask bpf-clang); then
    export BPF_CLANG=$clang
    kernel=(--features instep-cli/kernel)
fi
