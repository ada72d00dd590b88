//! Actions to the host: journal first, then system calls, then what came of them.
