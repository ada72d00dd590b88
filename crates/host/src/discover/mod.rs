//! The VMs of a host: which processes they are, which threads their vCPUs, what they use.
