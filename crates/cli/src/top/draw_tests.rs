//! Golden renders in `golden/`, of made hosts on an in-memory terminal: the text, below it a letter for
//! how each cell is drawn, and what the letters mean. `INSTEP_GOLDEN=write cargo test -p instep-cli top`
//! writes them anew; look at what changed before keeping it.

use super::super::frame::tests::{frame, vm};
use super::super::state::Key;
use super::*;
use crate::golden::golden;
use instep_core::units::Milli;
use instep_madehost::HostSpec;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};

fn buffer(frame: &Frame, state: &State, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|screen| draw(screen, frame, state)).unwrap();
    terminal.backend().buffer().clone()
}

fn render(frame: &Frame, state: &State, width: u16, height: u16) -> String {
    super::super::text_of(&buffer(frame, state, width, height))
}

/// How a cell that shows something differs from plain text; nothing where it does not.
fn style_of(cell: &Cell) -> String {
    let filled = cell.bg != Color::Reset || cell.modifier.contains(Modifier::REVERSED);
    let mut said = Vec::new();
    if cell.symbol() == " " && !filled {
        return String::new();
    }
    if cell.fg != Color::Reset {
        said.push(cell.fg.to_string());
    }
    if cell.bg != Color::Reset {
        said.push(format!("on {}", cell.bg));
    }
    if !cell.modifier.is_empty() {
        said.push(format!("{:?}", cell.modifier).to_lowercase());
    }
    said.join(" ")
}

/// A buffer's text, its cells' looks as letters in the order in which they appear, and the letters.
fn drawn(buffer: &Buffer) -> String {
    let mut looks: Vec<String> = Vec::new();
    let mut letter = |cell: &Cell| {
        let look = style_of(cell);
        if look.is_empty() {
            return ' ';
        }
        let known = looks.iter().position(|known| *known == look);
        let place = known.unwrap_or_else(|| {
            looks.push(look);
            looks.len() - 1
        });
        ('A'..='Z').chain('a'..='z').nth(place).expect("fewer looks than letters")
    };
    let width = usize::from(buffer.area.width).max(1);
    let mut text = super::super::text_of(buffer) + "\n";
    for row in buffer.content().chunks(width) {
        let letters: String = row.iter().map(&mut letter).collect();
        text.push_str(letters.trim_end());
        text.push('\n');
    }
    for (letter, look) in ('A'..='Z').chain('a'..='z').zip(&looks) {
        let _ = write!(text, "\n{letter} {look}");
    }
    text + "\n"
}

fn held(name: &str, buffer: &Buffer) {
    golden(&format!("src/top/golden/{name}"), &drawn(buffer));
}

/// Two CPUs, two VMs, one of which is stacked.
fn small() -> Frame {
    let mut idle = vm("idle", 0, &[1], 1);
    idle.vcpus[0].steal = Milli(0);
    frame(HostSpec::new(1, 2), vec![vm("spins", 0, &[0, 0], 700), idle], &[3, 2])
}

/// 256 CPUs: 4 nodes of 32 cores with two threads, four caches a node, and 18 VMs.
fn large() -> Frame {
    let mut host = HostSpec::new(4, 32).threads(2);
    host.llcs_per_node = 4;
    let mut vms = Vec::new();
    for number in 0..16u32 {
        let first = number * 16;
        let step = if number % 4 == 3 { 1 } else { 2 };
        let cpus: Vec<u32> = (0..8).map(|vcpu| first + vcpu * step).collect();
        vms.push(vm(
            &format!("tenant-{number:02}"),
            number / 4,
            &cpus,
            900 - u64::from(number) * 20,
        ));
    }
    vms.push(vm("database-with-a-very-long-name-of-a-customer", 0, &[40, 40, 300 % 256, 200], 990));
    vms.push(vm("web", 3, &[255, 0], 350));
    let blocks: Vec<u64> = (0..18).map(|number| if number % 3 == 0 { 4000 } else { 10 }).collect();
    frame(host, vms, &blocks)
}

/// The same, as a moment of the history.
fn past(mut frame: Frame) -> Frame {
    let verdict = "to node 0: saves 0.41 CPUs: its vCPUs wait for each other; \u{1b}[2J".to_owned();
    frame.past = Some(Past {
        at_ms: 1_764_161_234_567,
        changes: vec!["spins: vcpu_affinity 0-1, done: it was stacked".to_owned(); 3],
        verdicts: vec![verdict; frame.vms.len()],
    });
    frame
}

#[test]
fn moment_of_the_history_at_80x24() {
    held("past-80x24.txt", &buffer(&past(small()), &State::replaying(), 80, 24));
    let text = render(&past(large()), &State::replaying(), 80, 24);
    assert!(text.starts_with("2025-11-26 12:47:14 UTC  18 VMs, 134 vCPUs on 256 CPUs"), "{text}");
    let far = Past { at_ms: u64::MAX, ..Past::default() };
    let text = render(&Frame { past: Some(far), ..small() }, &State::replaying(), 80, 24);
    assert!(text.starts_with("9999-12-31 23:59:59 UTC"), "{text}");
}

#[test]
fn help_in_the_history_fits_80x24() {
    let mut state = State::replaying();
    state.key(Key::Char('?'), &small());
    let text = render(&past(small()), &state, 80, 24);
    assert!(HELP_PAST.iter().all(|line| text.contains(line.trim_end())), "{text}");
    assert!(HELP[..HELP.len() - 4].iter().all(|line| text.contains(line.trim_end())), "{text}");
    assert!(HELP[HELP.len() - 4..HELP.len() - 1].iter().all(|line| !text.contains(line)), "{text}");
}

#[test]
fn two_cpus_at_80x24() {
    held("small-80x24.txt", &buffer(&small(), &State::default(), 80, 24));
}

#[test]
fn two_hundred_and_fifty_six_cpus_at_80x24() {
    held("large-80x24.txt", &buffer(&large(), &State::default(), 80, 24));
}

#[test]
fn a_wide_screen_shows_nodes_and_vcpus_side_by_side() {
    let mut state = State::default();
    let large = large();
    (0..3).for_each(|_| state.key(Key::Down, &large));
    held("large-200x50.txt", &buffer(&large, &state, 200, 50));
}

#[test]
fn two_cpus_on_a_wide_screen() {
    held("small-200x50.txt", &buffer(&small(), &State::default(), 200, 50));
}

#[test]
fn a_golden_render_tells_another_colour_of_a_single_cell() {
    let mut cells = buffer(&small(), &State::default(), 80, 24);
    let before = drawn(&cells);
    let letter = cells.content.iter_mut().find(|cell| cell.symbol() == "!").unwrap();
    letter.bg = Color::Indexed(161);
    assert_ne!(drawn(&cells), before);
}

#[test]
fn a_small_screen_shows_whole_columns_that_matter_most() {
    let buffer = buffer(&small(), &State::default(), 40, 10);
    let text = super::super::text_of(&buffer);
    let head = text.lines().find(|line| line.contains("VM ")).unwrap();
    for column in ["used", "steal", "co-run", "stk"] {
        assert!(head.contains(column), "{text}");
    }
    held("small-40x10.txt", &buffer);
}

#[test]
fn the_vcpus_of_a_vm_at_80x24() {
    let mut state = State::default();
    state.key(Key::Enter, &small());
    held("vcpus-80x24.txt", &buffer(&small(), &state, 80, 24));
}

#[test]
fn the_vcpus_of_a_vm_of_256_cpus_at_80x24_can_all_be_seen() {
    let (mut state, mut large) = (State::default(), large());
    let vcpu = large.vms[0].vcpus[0].clone();
    let more = (8..40).map(|index| super::super::frame::VcpuRow { index, ..vcpu.clone() });
    large.vms[0].vcpus.extend(more);
    state.key(Key::Enter, &large);
    state.selected = Some(large.vms[0].id);
    held("large-vcpus-80x24.txt", &buffer(&large, &state, 80, 24));
    let mut seen = std::collections::BTreeSet::new();
    for page in 0..10 {
        let text = render(&large, &state, 80, 24);
        if page == 3 {
            held("large-vcpus-on-80x24.txt", &buffer(&large, &state, 80, 24));
        }
        let rows = text.lines().filter_map(|line| line.strip_prefix('\u{2502}'));
        seen.extend(rows.filter_map(|row| row.split_whitespace().next()?.parse::<u32>().ok()));
        state.key(Key::PageDown, &large);
    }
    assert_eq!(seen.into_iter().collect::<Vec<u32>>(), (0..40).collect::<Vec<u32>>());
}

#[test]
fn the_help_fits_80x24() {
    let mut state = State::default();
    state.key(Key::Char('?'), &small());
    let buffer = buffer(&small(), &state, 80, 24);
    let text = super::super::text_of(&buffer);
    assert!(HELP.iter().all(|line| text.contains(line.trim_end())), "{text}");
    held("help-80x24.txt", &buffer);
}

#[test]
fn stacking_is_red_and_each_vm_has_its_colour() {
    let buffer = buffer(&small(), &State::default(), 80, 24);
    let cell = buffer.content().iter().find(|cell| cell.symbol() == "!").unwrap();
    assert_eq!(cell.bg, Color::Indexed(160));
    let colours: std::collections::BTreeSet<String> =
        (0..12).map(|place| format!("{:?}", map::colour(place))).collect();
    assert_eq!(colours.len(), 12);
}

#[test]
fn pause_filter_and_sort_are_reported() {
    let frame = small();
    let mut state = State::default();
    ['p', 's', 'r', '/', 'x'].iter().for_each(|c| state.key(Key::Char(*c), &frame));
    let text = render(&frame, &state, 80, 24);
    assert!(text.contains("PAUSED") && text.contains("filter: x_"), "{text}");
    assert!(text.contains("no VM's name contains the filter"), "{text}");
    state.key(Key::Enter, &frame);
    let text = render(&frame, &state, 80, 24);
    assert!(text.contains("sort: steal reversed") && text.contains("filter: x"), "{text}");
}

#[test]
fn a_hostile_name_cannot_move_the_cursor_and_no_size_panics() {
    let mut large = large();
    large.vms[0].name = "a\x1b[2J\r\n\u{202e}".to_owned();
    for (width, height) in [(1, 1), (5, 3), (20, 6), (40, 10), (79, 200), (300, 4)] {
        for keys in ["", "v", "?", "m", "/"] {
            let mut state = State::default();
            keys.chars().for_each(|c| state.key(Key::Char(c), &large));
            let text = render(&large, &state, width, height);
            assert!(!text.contains('\x1b'), "{width}x{height}");
            let mut state = State::replaying();
            keys.chars().for_each(|c| state.key(Key::Char(c), &large));
            let text = render(&past(large.clone()), &state, width, height);
            assert!(!text.contains('\x1b'), "{width}x{height}");
        }
    }
    let _ = render(&Frame::default(), &State::default(), 80, 24);
}
