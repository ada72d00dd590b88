//! A headless Chromium that a test drives while its page lives, by the DevTools protocol over pipes.

use super::vm::PATIENCE;
use instep_madehost::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A browser with one page; it ends with the test.
pub(crate) struct Browser {
    child: Child,
    requests: File,
    answers: Receiver<Value>,
    /// The page's session; empty before there is one.
    session: String,
    count: u64,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // On this request the browser ends its own processes, too; if it were killed, they would go on.
        let _ = write_message(&mut self.requests, &json!({"id": 0, "method": "Browser.close"}));
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A message ends with a zero byte.
fn write_message(pipe: &mut File, message: &Value) -> std::io::Result<()> {
    pipe.write_all(message.to_string().as_bytes())?;
    pipe.write_all(b"\0")
}

impl Browser {
    /// Opens this address; `None`, with a note, where there is no Chromium. Its files are in `dir`.
    pub(crate) fn open(dir: &Path, address: &str) -> Option<Self> {
        let opened = Self::open_by("chromium", dir, address);
        let browser =
            opened.unwrap_or_else(|why| panic!("chromium is here and does not work: {why}"));
        if browser.is_none() {
            skip::note("no chromium here: what the page shows is not looked at");
        }
        browser
    }

    /// The same by the browser of this name; `None` where there is none.
    fn open_by(program: &str, dir: &Path, address: &str) -> Result<Option<Self>, String> {
        let pipe = |name: &str| {
            let path = dir.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            // Both ways, so that opening waits for nobody.
            let open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            (path, open)
        };
        let ((to, requests), (from, answers)) = (pipe("requests"), pipe("answers"));
        let script = "exec timeout 120 \"$3\" --headless --no-sandbox --disable-gpu --remote-debugging-pipe \
            --user-data-dir=\"$2\" about:blank 3<\"$0\" 4>\"$1\"";
        let mut start = Command::new("sh");
        start.args(["-c", script]).args([to, from, dir.join("profile")]).arg(program);
        let errors = dir.join("errors");
        start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
        let child = start.spawn().unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, requests, answers: receiver, session: String::new(), count: 0 };
        let target = match browser.ask("Target.createTarget", json!({"url": address})) {
            Ok(target) => target,
            // What timeout(1) says of a program that it does not find.
            Err(_) if browser.exit_status() == Some(127) => return Ok(None),
            Err(why) => {
                let said = std::fs::read_to_string(&errors).unwrap_or_default();
                return Err(format!("{why}, exit status {:?}: {said}", browser.exit_status()));
            }
        };
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.does("Target.attachToTarget", attach);
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        Ok(Some(browser))
    }

    /// The exit status of a browser that has ended by itself.
    fn exit_status(&mut self) -> Option<i32> {
        self.child.try_wait().ok()??.code()
    }

    /// What it answers to a method; an error is its own, or that it ended or says nothing.
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.count += 1;
        let mut message = json!({"id": self.count, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        write_message(&mut self.requests, &message).map_err(|error| error.to_string())?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let Ok(mut answer) = self.answers.recv_timeout(Duration::from_millis(200)) else {
                continue;
            };
            if answer["id"] == self.count {
                let error = answer["error"].is_object().then(|| answer["error"].to_string());
                return error.map_or_else(|| Ok(answer["result"].take()), Err);
            }
        }
        Err("no answer".to_owned())
    }

    fn does(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.does("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// What the page shows as text; nothing while it is being loaded.
    pub(crate) fn text(&mut self) -> String {
        let params = json!({"expression": "document.body.innerText", "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", params).unwrap_or_default();
        answer["result"]["value"].as_str().unwrap_or_default().to_owned()
    }

    /// Makes its window so wide.
    pub(crate) fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
        self.does("Emulation.setDeviceMetricsOverride", size);
    }
}

#[test]
fn browser_that_fails_is_not_taken_for_an_absent_one() {
    let open = |program: &str| {
        let dir = tempfile::tempdir().unwrap();
        Browser::open_by(program, dir.path(), "about:blank").map(|browser| browser.is_some())
    };
    assert_eq!(open("no-such-browser"), Ok(false));
    assert!(open("false").unwrap_err().contains("exit status Some(1)"));
}
