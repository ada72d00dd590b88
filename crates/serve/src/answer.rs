//! The answer to a request: who may ask, for what, and the headers that a browser needs to be strict.

use crate::address::is_local;
use crate::body::Body;
use crate::files::Shown;
use crate::past::{NoAnswer, Past};
use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use instep_report::html::STYLE;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Readers of events at the same time.
const MOST_READERS: usize = 64;
const PAGE: &str = include_str!("page.html");
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Headers of every answer. What is shown changes, and is nobody else's to embed.
const STRICT: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];
/// What pages may do, but for the script and the style of ours.
const NOTHING: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Answers requests from what is shown.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    shown: watch::Receiver<Arc<Shown>>,
    readers: Arc<Semaphore>,
    past: Arc<Past>,
}

impl Server {
    pub(crate) fn new(shown: watch::Receiver<Arc<Shown>>, past: PathBuf) -> Self {
        let (readers, past) = (Arc::new(Semaphore::new(MOST_READERS)), Arc::new(Past::new(past)));
        Self { shown, readers, past }
    }

    /// The answer to one request, whose body nobody reads.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        let mut response = self.content(request);
        let headers = response.headers_mut();
        for (name, value) in STRICT {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers
            .entry("content-security-policy")
            .or_insert_with(|| HeaderValue::from_static(NOTHING));
        response
    }

    fn content<B>(&self, request: &Request<B>) -> Response<Body> {
        if !is_for_us(request) {
            let said = "this server answers requests for localhost, 127.0.0.1 and [::1] only\n";
            return plain(StatusCode::FORBIDDEN, said);
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refused =
                plain(StatusCode::METHOD_NOT_ALLOWED, "nothing can be changed here: use GET\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let shown = Arc::clone(&self.shown.borrow());
        match request.uri().path() {
            "/" => page(),
            "/state.json" => typed(JSON, Body::of(shown.document.clone())),
            "/day.json" => of_past(self.past.day()),
            "/moment.json" => of_past(self.past.moment(request.uri().query())),
            "/metrics" => match &shown.metrics {
                Ok(text) => typed(METRICS, Body::of(text.clone())),
                Err(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
            },
            "/events" => self.events(request.method() == Method::HEAD),
            _ => plain(
                StatusCode::NOT_FOUND,
                "there is /, /state.json, /day.json, /moment.json?at=TIME, /metrics and /events\n",
            ),
        }
    }

    fn events(&self, is_head: bool) -> Response<Body> {
        const EVENTS: &str = "text/event-stream";
        if is_head {
            return typed(EVENTS, Body::Whole(None));
        }
        match Arc::clone(&self.readers).try_acquire_owned() {
            Ok(permit) => typed(EVENTS, Body::events(self.shown.clone(), permit)),
            Err(_) => busy("too many read events; ask later\n", "30"),
        }
    }
}

/// Whether its `Host`, of which there must be one, and the host of its target, if that has one, are this machine.
fn is_for_us<B>(request: &Request<B>) -> bool {
    let target = request.uri().authority().is_none_or(|authority| is_local(authority.as_str()));
    target && host_of(request.headers()).is_some_and(is_local)
}

fn host_of(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

fn typed(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = typed(TEXT, Body::of(text.to_owned()));
    *response.status_mut() = status;
    response
}

fn busy(text: &str, seconds: &'static str) -> Response<Body> {
    let mut busy = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    busy.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    busy
}

fn of_past(found: Result<Bytes, NoAnswer>) -> Response<Body> {
    match found {
        Ok(document) => typed(JSON, Body::of(document)),
        Err(NoAnswer::None(why)) => plain(StatusCode::NOT_FOUND, &why),
        Err(NoAnswer::Busy) => busy("the history is being looked up for others; ask again\n", "1"),
        Err(NoAnswer::Unclear) => plain(
            StatusCode::BAD_REQUEST,
            "a moment is asked for with at=TIME or after=TIME, in milliseconds since 1970\n",
        ),
    }
}

/// The page. Only a script and a style with a number that nobody can guess are run and used.
fn page() -> Response<Body> {
    let Some(nonce) = nonce() else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the system gives no random numbers\n");
    };
    let policy = format!(
        "{NOTHING}; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"
    );
    let page = PAGE.replacen("/*STYLE*/", STYLE, 1).replace("NONCE", &nonce);
    let mut response = typed(HTML, Body::of(page));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert("content-security-policy", policy);
    }
    response
}

fn nonce() -> Option<String> {
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    let mut text = String::new();
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    (got == bytes.len()).then_some(text)
}
