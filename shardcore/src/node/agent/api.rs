//! The control plane over HTTP: one function for each route a broker uses. Scope: per process, on the admin thread.
//! Owns: the connection pool and the credential.
//! Invariants: every call ends by its deadline; an answer is read only up to `ANSWER_BYTES_MAX`; a 401 is tried once
//! more with the token read again.
//! Not here: when to call, and what an answer means (`catalog`, `membership`, `keys`).

use std::time::Duration;

use felix_wire::control::{
    ErrorBody, Heartbeat, HeartbeatAnswer, Jwks, NodeView, Page, RegisterAnswer, RegisterNode, Snapshot,
};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;

use super::catalog::{Answer, FeedAnswer, Fetch, Kind};
use super::credential::Credential;
use super::feed::FeedItem;

/// Deadline of a call that does not wait for anything.
const CALL: Duration = Duration::from_secs(5);
/// A snapshot may be large.
const SNAPSHOT: Duration = Duration::from_secs(30);
/// Room for the server's answer after a long poll.
const POLL_SLACK: Duration = Duration::from_secs(10);
/// Largest answer taken, in bytes: a catalog of 100,000 streams is about 40 MB.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Nodes asked for at once, and pages read at most.
const NODES_PER_PAGE: usize = 1_000;
const NODE_PAGES_MAX: usize = 100;

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("control plane client: {0}")]
    Setup(String),
    #[error("no credential: {0}")]
    Credential(#[from] std::io::Error),
    #[error("control plane not reached: {0}")]
    Unreachable(String),
    #[error("control plane answered {status}: {message}")]
    Refused { status: u16, message: String },
    #[error("control plane's answer is not understood: {0}")]
    Answer(String),
}

impl ApiError {
    /// A short word for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            ApiError::Setup(_) | ApiError::Credential(_) => "credential",
            ApiError::Unreachable(_) => "unreachable",
            ApiError::Refused { status: 401 | 403, .. } => "unauthorized",
            ApiError::Refused { .. } => "refused",
            ApiError::Answer(_) => "answer",
        }
    }
}

/// The control plane.
pub struct ControlPlane {
    http: Client,
    base: String,
    credential: Credential,
}

impl ControlPlane {
    /// A client for `url`. `ca_pem` replaces the system's authorities.
    ///
    /// # Errors
    /// A certificate authority that does not parse, or no usable TLS setup.
    pub fn new(url: &str, ca_pem: Option<&[u8]>, credential: Credential) -> Result<ControlPlane, ApiError> {
        let setup = |error: reqwest::Error| ApiError::Setup(describe(&error));
        let mut builder = Client::builder()
            .connect_timeout(CALL)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .pool_max_idle_per_host(8)
            .user_agent(concat!("felix-broker/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = ca_pem {
            builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(pem).map_err(setup)?);
        } else if url.starts_with("http://") {
            // No TLS, so a machine without certificate authorities is fine.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(setup)?;
        Ok(ControlPlane { http, base: url.trim_end_matches('/').to_owned(), credential })
    }

    /// Seconds since 1970 when the credential ends, if it says so.
    pub fn credential_expires_at(&self) -> Option<u64> {
        self.credential.expires_at()
    }

    /// `POST /v1/nodes`.
    ///
    /// # Errors
    /// As every call here: not reached, refused, or not understood.
    pub async fn register(&self, node: &RegisterNode) -> Result<RegisterAnswer, ApiError> {
        self.call(CALL, || Ok(self.request(Method::POST, "/v1/nodes").json(node))).await
    }

    /// `POST /v1/nodes/{id}/heartbeat`.
    ///
    /// # Errors
    /// As `register`; 404 and 409 mean that this registration is over.
    pub async fn heartbeat(&self, node_id: &str, heartbeat: &Heartbeat) -> Result<HeartbeatAnswer, ApiError> {
        // A node id needs no escaping in a path.
        let path = format!("/v1/nodes/{node_id}/heartbeat");
        self.call(CALL, || Ok(self.request(Method::POST, &path).json(heartbeat))).await
    }

    /// The key set of a tenant; the route asks for no credential.
    ///
    /// # Errors
    /// As `register`.
    pub async fn jwks(&self, tenant: &str) -> Result<Jwks, ApiError> {
        let mut url = reqwest::Url::parse(&self.base).map_err(|e| ApiError::Setup(e.to_string()))?;
        url.path_segments_mut()
            .map_err(|()| ApiError::Setup("the control plane's address has no path".to_owned()))?
            .pop_if_empty()
            .extend(["v1", "tenants", tenant, ".well-known", "jwks.json"]);
        let answer = self.http.get(url).timeout(CALL).send().await;
        read(answer.map_err(unreachable)?).await
    }

    /// Asks what the catalog wants to know. A failure is an answer too.
    pub async fn fetch(&self, fetch: Fetch) -> Result<Answer, ApiError> {
        Ok(match fetch.kind() {
            Kind::Tenants => Answer::Tenants(self.feed("tenants", fetch).await?),
            Kind::Namespaces => Answer::Namespaces(self.feed("namespaces", fetch).await?),
            Kind::Caches => Answer::Caches(self.feed("caches", fetch).await?),
            Kind::Streams => Answer::Streams(self.feed("streams", fetch).await?),
            Kind::Assignments => Answer::Assignments(self.feed("shard-assignments", fetch).await?),
            Kind::Nodes => Answer::Nodes(self.nodes().await?),
        })
    }

    async fn feed<T>(&self, name: &str, fetch: Fetch) -> Result<FeedAnswer<T>, ApiError>
    where
        T: FeedItem + DeserializeOwned,
        T::Change: DeserializeOwned,
    {
        let Fetch::Changes { since, wait, .. } = fetch else {
            let path = format!("/v1/{name}/snapshot");
            let snapshot: Snapshot<T> = self.call(SNAPSHOT, || Ok(self.request(Method::GET, &path))).await?;
            return Ok(FeedAnswer::Snapshot(snapshot));
        };
        let mut path = format!("/v1/{name}/changes?since={since}");
        if !wait.is_zero() {
            path.push_str(&format!("&wait_ms={}", wait.as_millis()));
        }
        let changes = self.call(wait + POLL_SLACK, || Ok(self.request(Method::GET, &path))).await?;
        Ok(FeedAnswer::Changes { since, changes })
    }

    async fn nodes(&self) -> Result<Vec<NodeView>, ApiError> {
        let mut nodes = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..NODE_PAGES_MAX {
            let mut url = reqwest::Url::parse(&format!("{}/v1/nodes?limit={NODES_PER_PAGE}", self.base))
                .map_err(|e| ApiError::Setup(e.to_string()))?;
            if let Some(cursor) = &cursor {
                url.query_pairs_mut().append_pair("cursor", cursor);
            }
            let page: Page<NodeView> = self.call(CALL, || Ok(self.http.get(url.clone()))).await?;
            nodes.extend(page.items);
            cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
            if cursor.is_none() {
                break;
            }
        }
        Ok(nodes)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// Sends with the credential; once more with the token read again when it is not taken.
    async fn call<T: DeserializeOwned>(
        &self,
        deadline: Duration,
        request: impl Fn() -> Result<RequestBuilder, ApiError>,
    ) -> Result<T, ApiError> {
        let send = async |token: &str| {
            let request = request()?.bearer_auth(token).timeout(deadline);
            request.send().await.map_err(unreachable)
        };
        let token = self.credential.bearer()?;
        let mut answer = send(&token).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            let renewed = self.credential.bearer()?;
            if renewed != token {
                answer = send(&renewed).await?;
            }
        }
        read(answer).await
    }
}

/// Reads an answer of bounded size.
async fn read<T: DeserializeOwned>(mut answer: reqwest::Response) -> Result<T, ApiError> {
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(ApiError::Answer(format!("larger than {ANSWER_BYTES_MAX} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    if !status.is_success() {
        let message =
            serde_json::from_slice::<ErrorBody>(&body).map_or_else(|_| String::new(), |e| e.message);
        return Err(ApiError::Refused { status: status.as_u16(), message });
    }
    serde_json::from_slice(&body).map_err(|error| ApiError::Answer(error.to_string()))
}

fn unreachable(error: reqwest::Error) -> ApiError {
    ApiError::Unreachable(describe(&error))
}

/// The innermost reason: the outer ones only repeat the address.
fn describe(error: &reqwest::Error) -> String {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason.to_string()
}
