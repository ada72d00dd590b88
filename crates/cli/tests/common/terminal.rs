//! A terminal for a program that draws on one.

use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::process::{Child, Command, Stdio};

/// Starts a program on a new terminal, whose other side this is, and gives what it drew until it had taken the screen.
pub(crate) fn start(mut command: Command) -> (Child, OwnedFd, Vec<u8>) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    // On a terminal without size nothing is drawn.
    let size = Command::new("stty").args(["-F", &name, "rows", "50", "cols", "120"]).status();
    assert!(size.unwrap().success());
    let terminal = || File::options().read(true).write(true).open(&name).unwrap();
    let child = command.stdin(terminal()).stdout(terminal()).stderr(Stdio::null());
    let child = child.spawn().unwrap();
    let mut drawn = Vec::new();
    while !drawn.windows(6).any(|bytes| bytes == b"?1049h") {
        assert!(read(&master, &mut drawn), "it ended before it drew");
    }
    (child, master, drawn)
}

/// Adds what it drew since; false once no program has the terminal any more.
pub(crate) fn read(master: &OwnedFd, drawn: &mut Vec<u8>) -> bool {
    let mut more = [0; 4096];
    let count = rustix::io::read(master, &mut more).unwrap_or(0);
    drawn.extend_from_slice(&more[..count]);
    count != 0
}
