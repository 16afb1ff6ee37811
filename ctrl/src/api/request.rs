//! What happens around every handler: request ids, time limit, error bodies, counting; and reading JSON bodies.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::header::{HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use felix_wire::control::ErrorBody;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::limits::REQUEST_TIMEOUT;
use crate::metrics::StatusLabel;
use crate::plane::Plane;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Deepest nesting of a body.
const NESTING_MAX: usize = 32;
/// Longest request id taken over from a caller.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Runs the handler and finishes its answer.
pub async fn finish(State(plane): State<Arc<Plane>>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let inflight = Inflight::begin(&plane);
    let mut response = match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timed_out().into_response(),
    };
    drop(inflight);
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let error = match response.extensions_mut().remove::<ApiError>() {
            Some(error) => error,
            None => ApiError::of_status(status),
        };
        if let Some(failure) = &error.store_failure {
            tracing::error!(error = %failure, request_id = id, "a request failed in the store");
            plane.note_store_failure(failure);
        }
        response = error_response(error, &id);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    plane.metrics.requests.get_or_create(&StatusLabel { status: status.as_u16() }).inc();
    response
}

fn error_response(error: ApiError, id: &str) -> Response {
    let body =
        ErrorBody { code: error.code.to_owned(), message: error.message, request_id: Some(id.to_owned()) };
    let mut response = (error.status, Json(body)).into_response();
    if error.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The caller's id if it is short and plain, else a random one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id)
            if (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) =>
        {
            id.to_owned()
        }
        _ => hex::encode(rand::random::<[u8; 12]>()),
    }
}

/// Counts a request while it runs, also when its caller goes away.
struct Inflight<'a>(&'a Plane);

impl<'a> Inflight<'a> {
    fn begin(plane: &'a Plane) -> Inflight<'a> {
        plane.metrics.inflight_requests.inc();
        Inflight(plane)
    }
}

impl Drop for Inflight<'_> {
    fn drop(&mut self) {
        self.0.metrics.inflight_requests.dec();
    }
}

/// A JSON body, whatever its content type says.
pub struct Document<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Document<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Document<T>, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
            match rejection.into_response().status() {
                StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(),
                _ => ApiError::invalid("the body could not be read"),
            }
        })?;
        if is_nested_too_deep(&bytes) {
            return Err(ApiError::invalid("invalid body: nested deeper than 32"));
        }
        serde_json::from_slice(&bytes).map(Document).map_err(|e| ApiError::invalid(describe(&e)))
    }
}

/// Whether brackets outside strings go deeper than [`NESTING_MAX`]; also true in members that would be ignored.
fn is_nested_too_deep(json: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return true;
        }
    }
    false
}

/// What is wrong with a body, without repeating any of it.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let at = format!(" at line {}, column {}", error.line(), error.column());
    let text = text.split(" at line ").next().unwrap_or_default();
    let said = if text.starts_with("missing field") || text.starts_with("duplicate field") {
        text.to_owned()
    } else {
        match text.rsplit_once(", expected ") {
            Some((_, expected)) => format!("another value than expected: {expected}"),
            None => "not a JSON document of this form".to_owned(),
        }
    };
    format!("invalid body: {said}{at}")
}

#[cfg(test)]
mod tests {
    use felix_wire::control::StreamCreate;

    use super::*;

    #[test]
    fn a_bad_body_is_described_without_repeating_it() {
        let describe_stream =
            |text: &str| describe(&serde_json::from_str::<StreamCreate>(text).expect_err("it is bad"));
        assert!(describe_stream("{}").contains("missing field `stream`"));
        let wrong = describe_stream(r#"{"stream":"s","kind":"Sekret"}"#);
        assert!(wrong.contains("`Queue`") && !wrong.contains("Sekret"), "{wrong}");
        let wrong = describe_stream(r#"{"stream":"s","shards":"Sekret"}"#);
        assert!(wrong.contains("u32") && !wrong.contains("Sekret"), "{wrong}");
        let wrong = describe_stream(r#"{"stream":Sekret"#);
        assert!(!wrong.contains("Sekret") && wrong.contains("line 1"), "{wrong}");
    }

    #[test]
    fn nesting_is_counted_outside_strings_only() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!is_nested_too_deep(nested(32).as_bytes()));
        assert!(is_nested_too_deep(nested(33).as_bytes()));
        let text = format!(r#"{{"a\"{}":"{}"}}"#, "[".repeat(50), "{".repeat(50));
        assert!(!is_nested_too_deep(text.as_bytes()));
        assert!(is_nested_too_deep(format!(r#"{{"a\\":{}}}"#, nested(40)).as_bytes()));
        assert!(!is_nested_too_deep("[],".repeat(100).as_bytes()));
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(value).unwrap());
            request_id(&headers)
        };
        assert_eq!(with("abc-1"), "abc-1");
        assert_ne!(with("a b"), "a b");
        assert_ne!(with(&"x".repeat(129)), "x".repeat(129));
        assert_eq!(request_id(&HeaderMap::new()).len(), 24);
    }
}
