//! Which requests are answered, on which addresses, and with which rights.

use super::common::{Started, binary, instep};
use super::server::{Answer, Server, free_port};
use super::vm::wait_for;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

#[test]
fn address_that_other_machines_reach_is_refused() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let ran = instep(&["serve", "--listen", address]).expect(2);
        ran.says(&["can be reached from other machines", "127.0.0.1:PORT", "ssh -L"]);
    }
    instep(&["serve", "--listen", "localhost"]).expect(2).says(&["is no address with a port"]);
}

#[test]
fn port_in_use_is_reported_with_a_way_out() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    instep(&["serve", "--listen", &address]).expect(2).says(&["cannot listen on", "--listen"]);
}

#[test]
fn only_requests_for_this_host_that_change_nothing_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: localhost", 200),
        ("GET / HTTP/1.1\r\nHost: [::1]:9877", 200),
        ("HEAD / HTTP/1.1\r\nHost: 127.0.0.1:9877", 200),
        ("HEAD /events HTTP/1.1\r\nHost: localhost", 200),
        ("GET / HTTP/1.1\r\nHost: evil.example", 403),
        ("GET / HTTP/1.1\r\nHost: localhost.evil.example:9877", 403),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 403),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost", 403),
        ("GET / HTTP/1.0", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", 405),
        ("PUT /state.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost", 405),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost", 404),
        ("GET /state.json/ HTTP/1.1\r\nHost: localhost", 404),
        ("nonsense", 400),
    ] {
        let answer = server.send(&format!("{request}\r\n\r\n"));
        assert_eq!(answer.status, status, "{request}: {}\n{}", answer.head, answer.body);
        if status == 405 {
            assert!(answer.head.contains("allow: get, head"), "{}", answer.head);
        }
        if request.starts_with("HEAD") {
            assert_eq!(answer.body, "");
        }
    }
}

#[test]
fn page_may_load_nothing_from_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let page = server.get("/");
    for header in [
        "content-security-policy: default-src 'none'",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: same-origin",
        "cache-control: no-store",
    ] {
        assert!(page.head.contains(header), "{header} in {}", page.head);
    }
    let nonce = page.head.split_once("script-src 'nonce-").unwrap().1.split_once('\'').unwrap().0;
    assert_eq!(page.body.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "script and style");
    assert!(!server.get("/").head.contains(nonce), "each page has a number of its own");
    let text = page.body.replace("http://www.w3.org/2000/svg", "the name of SVG");
    for asks in ["http:", "https:", "src=", "@import", "innerHTML", "style=\""] {
        assert!(!text.contains(asks), "{asks}");
    }
}

#[test]
fn what_is_lacking_is_reported_with_the_command_that_helps() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    let shown = server.shown();
    let lacking = shown["lacking"][0].to_string();
    assert!(lacking.contains("host.json") && lacking.contains("systemctl start instep"), "{shown}");
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 503, "Prometheus is to see that there is no run");
    assert!(metrics.body.contains("systemctl start instep"), "{}", metrics.body);
}

#[test]
fn server_has_no_privileges() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("state"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&server.status(set), 16), Ok(0), "{set}");
    }
    assert_eq!(server.status("NoNewPrivs"), "1");
    assert_eq!(server.status("Threads"), "1", "another thread would have rights of its own");
    if rustix::process::geteuid().is_root() {
        for ids in ["Uid", "Gid"] {
            assert!(server.status(ids).split_whitespace().all(|id| id == "65534"), "{ids}");
        }
        assert_eq!(server.status("Groups"), "");
    }
}

#[test]
fn unix_socket_is_for_its_group_and_one_that_was_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    let serve = || {
        let mut command = binary(env!("CARGO_BIN_EXE_instep"));
        command.arg("serve").arg("--unix").arg(&socket).arg("--state-dir").arg(dir.path());
        command
    };
    let first = Started::new(&mut serve());
    wait_for("the socket", || first.text("err").contains("serves the socket"));
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    assert_eq!(over(&socket).status, 200);
    Started::new(&mut serve()).end().expect(2).says(&["cannot listen on", "--unix"]);
    drop(first);
    assert!(socket.exists(), "it was killed");
    let second = Started::new(&mut serve());
    wait_for("the socket", || second.text("err").contains("serves the socket"));
    assert_eq!(over(&socket).status, 200);
    // What is no socket is nobody's to remove.
    let file = dir.path().join("file");
    fs::write(&file, "kept").unwrap();
    let mut command = binary(env!("CARGO_BIN_EXE_instep"));
    Started::new(command.arg("serve").arg("--unix").arg(&file)).end().expect(2);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

/// The page over this socket.
fn over(socket: &Path) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Answer::parse(&answer)
}
