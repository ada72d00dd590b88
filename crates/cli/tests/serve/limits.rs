//! Clients that take without end: others are answered all the same, and the server stays small.

use super::server::Server;
use super::vm::wait_for;
use instep_madehost::skip;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const EVENTS: &[u8] = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn half_a_request_is_not_waited_for() {
    if !skip::may_take_long() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let mut half = server.connect();
    half.write_all(b"GET / HTTP/1.1\r\nHost: loc").unwrap();
    let began = Instant::now();
    assert_eq!(server.get("/").status, 200, "others are answered meanwhile");
    let mut answer = Vec::new();
    let _ = half.read_to_end(&mut answer);
    assert!(began.elapsed() < Duration::from_secs(30), "it was ended by the server");
    // Bytes that drip in do not lengthen it.
    let (mut slow, began) = (server.connect(), Instant::now());
    while slow.write_all(b"G").is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "it goes on");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn header_without_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let long = "x".repeat(60_000);
    let many = "X-A: b\r\n".repeat(500);
    for request in [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ] {
        let status = server.send(&request).status;
        // 0: the connection was closed in the middle of what is sent.
        assert!([0, 400, 414, 431].contains(&status), "{status}");
    }
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn thousand_connections_do_no_harm() {
    if !instep_madehost::skip::may_take_long() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let idle: Vec<TcpStream> = (0..1000).map(|_| server.connect()).collect();
    let began = Instant::now();
    assert_eq!(server.get("/").status, 200);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let most: u64 = server.status("VmHWM").trim_end_matches(" kB").parse().unwrap();
    assert!(most < 64 << 10, "{most} kB");
    drop(idle);
    wait_for("the end of the connections", || server.descriptors() < 20);
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn readers_of_events_are_bounded_and_make_room_when_they_go() {
    if !skip::may_take_long() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let status = |stream: &mut TcpStream| {
        let mut bytes = [0; 12];
        stream.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[9..]).into_owned()
    };
    let reader = || {
        let mut stream = server.connect();
        stream.write_all(EVENTS).unwrap();
        let status = status(&mut stream);
        (stream, status)
    };
    let readers: Vec<_> = (0..70).map(|_| reader()).collect();
    let taken = readers.iter().filter(|(_, status)| status == "200").count();
    assert_eq!(taken, 64);
    assert!(readers.iter().skip(64).all(|(_, status)| status == "503"));
    assert_eq!(server.get("/state.json").status, 200, "the page asks by itself then");
    drop(readers);
    wait_for("room", || reader().1 == "200");
}

#[test]
fn reader_that_takes_nothing_is_left() {
    if !skip::may_take_long() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    // More than the kernel keeps for a reader.
    let mut big = File::create(state.join("history.json")).unwrap();
    big.write_all(format!("\"{}\"", "x".repeat(15 << 20)).as_bytes()).unwrap();
    drop(big);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(&state, open).unwrap();
    let server = Server::start(&state);
    assert!(server.get("/state.json").body.len() > 15 << 20, "one that reads has all of it");
    let before = server.descriptors();
    let mut lazy: Vec<TcpStream> = (0..20).map(|_| server.connect()).collect();
    for stream in &mut lazy {
        stream.write_all(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    wait_for("the connections", || server.descriptors() >= before + 20);
    for stream in &mut lazy {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    let most: u64 = server.status("VmHWM").trim_end_matches(" kB").parse().unwrap();
    assert!(most < 120 << 10, "all share what is shown: {most} kB");
    wait_for("the end of the connections", || server.descriptors() <= before);
}
