//! Requests to the control plane over HTTP, blocking. Scope: per command.
//! Owns: addresses, the bearer token, paging, and what an answer means for the exit status (control-plane-api 1.2, 13.2).
//! Invariants: a write that may have happened is never reported as refused; `busy` alone is tried again.
//! Not here: the documents (`felix_wire::control`).

use std::time::Duration;

use felix_wire::control::{ErrorBody, Page};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Method;
use ureq::{Agent, Timeout};

use super::failure::{Failure, Kind, Outcome};
use super::settings::{Secret, Settings};

/// Connecting to the API (control-plane-api 13.1).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One request from its start to the end of its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// An answer larger than this is not one.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Waits before a request that was answered `busy` is sent again (control-plane-api 1.2).
const BUSY_PAUSES: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1)];
/// Entries of one page.
const PAGE_LIMIT: &str = "limit=1000";
const BOOTSTRAP_HEADER: &str = "X-Felix-Bootstrap-Token";

/// How requests prove who sends them.
#[derive(Clone, Debug)]
enum Credential {
    None,
    Bearer(Secret),
    Bootstrap(Secret),
}

/// One control plane, or its bootstrap listener.
#[derive(Clone, Debug)]
pub struct Api {
    agent: Agent,
    base: String,
    credential: Credential,
}

/// A success: whether something was made, and the document.
#[derive(Debug)]
pub struct Answer<T> {
    pub created: bool,
    pub document: T,
}

impl Api {
    /// The API that the settings name.
    ///
    /// # Errors
    /// `Usage` when they name none, or one that is not plain HTTP.
    pub fn of(settings: &Settings) -> Outcome<Api> {
        let credential = settings.controlplane_token().cloned().map_or(Credential::None, Credential::Bearer);
        Api::new(settings.controlplane_url()?, credential)
    }

    /// The API at `url` with a bearer token.
    ///
    /// # Errors
    /// `Usage` when it is not plain HTTP.
    pub fn bearer(url: &str, token: Secret) -> Outcome<Api> {
        Api::new(url, Credential::Bearer(token))
    }

    /// The bootstrap listener at `url`.
    ///
    /// # Errors
    /// `Usage` when it is not plain HTTP.
    pub fn bootstrap(url: &str, secret: Secret) -> Outcome<Api> {
        Api::new(url, Credential::Bootstrap(secret))
    }

    fn new(url: &str, credential: Credential) -> Outcome<Api> {
        if !url.starts_with("http://") {
            return Err(Failure::usage(format!(
                "`{url}` is not supported: the control plane is reached by http://"
            )));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build()
            .new_agent();
        Ok(Api { agent, base: url.trim_end_matches('/').to_owned(), credential })
    }

    /// # Errors
    /// `NotFound`, `Refused`, `Unreachable`.
    pub fn get<T: DeserializeOwned>(&self, segments: &[&str]) -> Outcome<T> {
        let body = self.exchange(&Method::GET, &path(segments), None)?.1;
        document(&body)
    }

    /// All pages of a listing. `query` is empty or `name=value` pairs, already encoded.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub fn list<T: DeserializeOwned>(&self, segments: &[&str], query: &str) -> Outcome<Vec<T>> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut target = format!("{}?{PAGE_LIMIT}", path(segments));
            for part in [query, &cursor] {
                if !part.is_empty() {
                    target.push('&');
                    target.push_str(part);
                }
            }
            let page: Page<T> = document(&self.exchange(&Method::GET, &target, None)?.1)?;
            items.extend(page.items);
            match page.next_cursor.filter(|next| !next.is_empty()) {
                Some(next) => cursor = format!("cursor={}", encode(&next)),
                None => return Ok(items),
            }
        }
    }

    /// # Errors
    /// As [`Api::get`], and `OutcomeUnknown`.
    pub fn post<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Outcome<Answer<T>> {
        let (status, answer) = self.exchange(&Method::POST, &path(segments), Some(json(body)?))?;
        Ok(Answer { created: status == 201, document: document(&answer)? })
    }

    /// A POST without a body.
    ///
    /// # Errors
    /// As [`Api::post`].
    pub fn post_empty<T: DeserializeOwned>(&self, segments: &[&str]) -> Outcome<T> {
        document(&self.exchange(&Method::POST, &path(segments), None)?.1)
    }

    /// # Errors
    /// As [`Api::post`].
    pub fn patch<T: DeserializeOwned>(&self, segments: &[&str], body: &impl Serialize) -> Outcome<T> {
        document(&self.exchange(&Method::PATCH, &path(segments), Some(json(body)?))?.1)
    }

    /// # Errors
    /// As [`Api::post`].
    pub fn delete(&self, segments: &[&str]) -> Outcome {
        self.exchange(&Method::DELETE, &path(segments), None).map(drop)
    }

    fn exchange(&self, method: &Method, target: &str, body: Option<Vec<u8>>) -> Outcome<(u16, Vec<u8>)> {
        let mut pauses = BUSY_PAUSES.into_iter();
        loop {
            let (status, answer) = self.send(method, target, body.clone())?;
            if (200..300).contains(&status) {
                return Ok((status, answer));
            }
            let error = serde_json::from_slice::<ErrorBody>(&answer).ok();
            if error.as_ref().is_some_and(|error| error.code == "busy")
                && let Some(pause) = pauses.next()
            {
                std::thread::sleep(pause);
                continue;
            }
            return Err(refused(method, status, error, &answer));
        }
    }

    fn send(&self, method: &Method, target: &str, body: Option<Vec<u8>>) -> Outcome<(u16, Vec<u8>)> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{target}", self.base));
        request = match &self.credential {
            Credential::None => request,
            Credential::Bearer(secret) => {
                request.header("Authorization", format!("Bearer {}", secret.read()?))
            }
            Credential::Bootstrap(secret) => request.header(BOOTSTRAP_HEADER, secret.read()?),
        };
        let wrong = |error: ureq::http::Error| Failure::usage(format!("{}: {error}", self.base));
        let sent = match body {
            Some(body) => {
                let request = request.header("Content-Type", "application/json").body(body).map_err(wrong)?;
                self.agent.run(request)
            }
            None => self.agent.run(request.body(()).map_err(wrong)?),
        };
        let mut response = sent.map_err(|error| self.unanswered(method, &error))?;
        let answer = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.unanswered(method, &error))?;
        Ok((response.status().as_u16(), answer))
    }

    /// No answer: nothing was sent, or a write may have been applied.
    fn unanswered(&self, method: &Method, error: &ureq::Error) -> Failure {
        let never_sent = match error {
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                return Failure::usage(format!("{}: {error}", self.base));
            }
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => true,
            ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
            _ => false,
        };
        let kind =
            if never_sent || *method == Method::GET { Kind::Unreachable } else { Kind::OutcomeUnknown };
        Failure::new(kind, format!("no answer from the control plane at {}: {error}", self.base))
    }
}

fn refused(method: &Method, status: u16, error: Option<ErrorBody>, answer: &[u8]) -> Failure {
    let code = error.as_ref().map(|error| error.code.as_str()).unwrap_or_default();
    let kind = match (status, code) {
        (404, _) => Kind::NotFound,
        // The write may have happened (control-plane-api 1.2).
        (503, "unavailable") | (500, _) if *method != Method::GET => Kind::OutcomeUnknown,
        _ => Kind::Refused,
    };
    let message = match &error {
        Some(error) => error.message.clone(),
        None => String::from_utf8_lossy(answer).trim().chars().take(400).collect(),
    };
    let message = if message.is_empty() { format!("the control plane answered {status}") } else { message };
    Failure::new(kind, message)
}

fn json(body: &impl Serialize) -> Outcome<Vec<u8>> {
    serde_json::to_vec(body).map_err(|error| Failure::other(error.to_string()))
}

fn document<T: DeserializeOwned>(answer: &[u8]) -> Outcome<T> {
    serde_json::from_slice(answer).map_err(|error| {
        Failure::new(Kind::Refused, format!("the control plane's answer is not understood: {error}"))
    })
}

/// `/` and each segment, percent-encoded (control-plane-api 1.1).
fn path(segments: &[&str]) -> String {
    segments.iter().flat_map(|segment| ["/".to_owned(), encode(segment)]).collect()
}

/// Everything but the unreserved characters becomes `%XX`.
pub fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a String takes everything");
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
