//! The topology of a host from sysfs.
