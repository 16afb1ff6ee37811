//! The metrics listener: `/metrics`, `/live`, `/ready`. Scope: per process, on the admin thread.
//! Invariants: `/live` looks at nothing outside the process; `/ready` is 200 only while traffic may come; there is no
//! authentication, so nothing here changes anything, and connections are few and short.
//! Not here: what is counted.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::metrics::{CONTENT_TYPE, Metrics};
use super::status::{NodeStatus, Readiness};

/// Connections open at once; one more waits to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take for a request head, also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is closed at this age, so that one that does not read its answers holds no slot for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept (no file descriptor left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct App {
    metrics: Metrics,
    status: Arc<NodeStatus>,
}

/// Serves until `end` is sent or dropped; open requests are answered first.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    status: Arc<NodeStatus>,
    end: oneshot::Receiver<()>,
) {
    let app = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/live", get(async || "live\n"))
        .route("/ready", get(show_ready))
        .with_state(Arc::new(App { metrics, status }));
    serve_bounded(listener, app, CONNECTIONS_MAX, end).await;
}

async fn serve_bounded(
    listener: TcpListener,
    app: Router,
    connections_max: usize,
    mut end: oneshot::Receiver<()>,
) {
    let slots = Arc::new(Semaphore::new(connections_max));
    let connections = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            _ = &mut end => break,
        };
        let Some((stream, slot)) = accepted else { continue };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A connection that breaks is the client's business.
            let _ = tokio::time::timeout(CONNECTION_AGE_MAX, connection).await;
            drop(slot);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// The next connection once there is a slot for it. None after a failure, which may pass.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::warn!(%error, "a connection to the metrics listener was not accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn show_metrics(State(app): State<Arc<App>>) -> Response {
    match app.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn show_ready(State(app): State<Arc<App>>) -> Response {
    match app.status.readiness() {
        Readiness::Ready => "ready\n".into_response(),
        Readiness::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response(),
        Readiness::Starting(missing) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tenants::SharedTenants;

    #[tokio::test]
    async fn the_three_routes_answer_and_readiness_follows_the_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let status = Arc::new(NodeStatus::new(1));
        let (end, ended) = oneshot::channel();
        let metrics = Metrics::new(Vec::new(), Arc::clone(&status), SharedTenants::new(1, 1));
        let server = tokio::spawn(serve(listener, metrics, Arc::clone(&status), ended));
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        let get = async |path: &str| {
            let answer = client.get(format!("{base}{path}")).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!(get("/live").await.0, 200);
        assert_eq!(get("/ready").await, (503, "cores are starting\n".to_owned()));
        status.core_ready();
        status.set_synced();
        status.set_registered();
        assert_eq!(get("/ready").await.0, 200);
        assert!(get("/metrics").await.1.contains("felix_ready_state 1"));
        status.set_draining();
        assert_eq!(get("/ready").await, (503, "draining\n".to_owned()));
        drop(client);
        end.send(()).unwrap();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_over_the_bound_is_served_once_another_has_ended() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let app = Router::new().route("/live", get(async || "live\n"));
        let server = tokio::spawn(serve_bounded(listener, app, 2, ended));
        let ask = async |stream: &mut TcpStream| {
            stream.write_all(b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut answer = [0; 15];
            let read = stream.read_exact(&mut answer);
            let read = tokio::time::timeout(Duration::from_millis(300), read).await;
            read.is_ok_and(|n| n.is_ok() && answer == *b"HTTP/1.1 200 OK")
        };
        let mut held = TcpStream::connect(addr).await.unwrap();
        let mut other = TcpStream::connect(addr).await.unwrap();
        assert!(ask(&mut held).await && ask(&mut other).await);
        let mut third = TcpStream::connect(addr).await.unwrap();
        assert!(!ask(&mut third).await, "served beside two others");
        drop(held);
        let mut answer = [0; 15];
        let read = tokio::time::timeout(Duration::from_secs(10), third.read_exact(&mut answer)).await;
        assert!(read.is_ok_and(|n| n.is_ok()) && answer == *b"HTTP/1.1 200 OK");
        drop((other, third));
        end.send(()).unwrap();
        server.await.unwrap();
    }
}
