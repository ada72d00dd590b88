//! `instep serve` as clients meet it, good ones and bad ones: the real program, real runs, a real Prometheus and a real
//! browser.
#![cfg(test)]

mod browser;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/mod.rs"]
mod common;
mod limits;
mod live;
mod page;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../agent/prometheus.rs"]
mod prometheus;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/browser.rs"]
mod rendering;
mod requests;
mod server;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../agent/vm.rs"]
mod vm;
