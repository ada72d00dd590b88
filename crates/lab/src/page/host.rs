//! One moment of a host as HTML: nodes, in them cores, in them threads with the vCPUs that are
//! there, and each node's memory by guest.
//!
//! Boxes that wrap, not a picture: it is read on narrow screens, too, and by screen readers.

use super::Colours;
use crate::host::machine::HostMachine;
use crate::records::cpus_in_words;
use crate::scenario::evidence::{GuestSeen, LabObservation};
use crate::scenario::report::LabReport;
use instep_report::html::escaped;
use std::fmt::Write as _;

/// Bytes that a full bar of memory stands for, the same in all moments.
#[derive(Clone, Copy)]
pub(super) struct Scale(u64);

impl Scale {
    /// The most that guests have on one node at any moment.
    pub(super) fn of(report: &LabReport) -> Self {
        let on_node = |seen: &LabObservation| {
            let node = |node| seen.guests.iter().map(|guest| on(guest, node)).sum::<u64>();
            (0..report.host.nodes).map(node).max().unwrap_or(0)
        };
        Self(report.observations.values().map(on_node).max().unwrap_or(0).max(1))
    }

    /// The part of a bar, in per cent.
    fn percent(self, bytes: u64) -> f64 {
        bytes as f64 * 100.0 / self.0 as f64
    }
}

fn on(guest: &GuestSeen, node: u32) -> u64 {
    guest.memory_bytes_by_node.get(node as usize).copied().unwrap_or(0)
}

pub(super) fn draw(
    host: &HostMachine,
    seen: &LabObservation,
    colours: &Colours,
    scale: Scale,
) -> String {
    let mut html = String::from("<div class=\"host\">\n");
    for node in 0..host.nodes {
        let _ = writeln!(html, "<div class=\"node\">\n<h3>node {node}</h3>\n<div class=\"cores\">");
        let (first, last) = host.node_cpus(node);
        let mut cpu = first;
        while cpu <= last {
            let next = cpu + host.threads.max(1);
            let _ = writeln!(
                html,
                "<div class=\"core\"><h4>core {}</h4>",
                host.core_of(cpu) / host.threads.max(1)
            );
            for cpu in cpu..next.min(last + 1) {
                html.push_str(&thread(cpu, seen, colours));
            }
            html.push_str("</div>\n");
            cpu = next;
        }
        html.push_str("</div>\n");
        html.push_str(&memory(node, seen, colours, scale));
        html.push_str("</div>\n");
    }
    html.push_str("</div>\n");
    html.push_str(&allowed(seen));
    html
}

/// A hardware thread and the vCPUs that ran there last.
fn thread(cpu: u32, seen: &LabObservation, colours: &Colours) -> String {
    let mut html = format!("<div class=\"thread\"><span class=\"cpu\">CPU {cpu}</span>");
    let mut empty = true;
    for guest in &seen.guests {
        for vcpu in guest.vcpus().filter(|vcpu| vcpu.cpu == cpu) {
            empty = false;
            let _ = write!(
                html,
                "<span class=\"vcpu {}\" title=\"may use {}\">{} {}</span>",
                colours.class(&guest.name),
                cpus_in_words(&vcpu.allowed),
                escaped(&guest.name),
                vcpu.vcpu.unwrap_or(0)
            );
        }
    }
    if !seen.online.is_empty() && !seen.online.contains(&cpu) {
        html.push_str("<span class=\"none\">offline</span>");
    } else if empty {
        html.push_str("<span class=\"none\">no vCPU</span>");
    }
    html.push_str("</div>\n");
    html
}

/// A node's memory by guest: a bar, and the same in words.
fn memory(node: u32, seen: &LabObservation, colours: &Colours, scale: Scale) -> String {
    let mut bar = String::new();
    let mut words = Vec::new();
    for guest in &seen.guests {
        let bytes = on(guest, node);
        if bytes >> 20 == 0 {
            continue;
        }
        let away = !guest.nodes.contains(&node);
        let _ = write!(
            bar,
            "<span class=\"{}{}\" style=\"width:{:.1}%\"></span>",
            colours.class(&guest.name),
            if away { " away" } else { "" },
            scale.percent(bytes)
        );
        words.push(format!(
            "{} {} MiB{}",
            escaped(&guest.name),
            bytes >> 20,
            if away { " (away from its vCPUs)" } else { "" }
        ));
    }
    let words = if words.is_empty() { "none of a guest".to_owned() } else { words.join(", ") };
    format!(
        "<div class=\"memory\"><div class=\"bar\" aria-hidden=\"true\">{bar}</div>\
         <p>memory: {words}</p></div>\n"
    )
}

/// What each guest's vCPUs may use, in words.
fn allowed(seen: &LabObservation) -> String {
    let mut html = String::from("<ul class=\"allowed\">\n");
    for guest in &seen.guests {
        let mut parts: Vec<String> = Vec::new();
        for vcpu in guest.vcpus() {
            let index = vcpu.vcpu.unwrap_or(0);
            parts.push(format!("vCPU {index} may use {}", cpus_in_words(&vcpu.allowed)));
        }
        let _ = writeln!(
            html,
            "<li><b>{}</b>: {}; {:.0} % of its memory is on their node{}</li>",
            escaped(&guest.name),
            parts.join(", "),
            guest.memory_home * 100.0,
            if guest.nodes.len() == 1 { "" } else { "s" }
        );
    }
    html.push_str("</ul>\n");
    html
}
