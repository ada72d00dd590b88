//! Images, QEMU and consoles: small real VMs for the demo and the tests.
