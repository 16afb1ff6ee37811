//! The metrics listener: `/metrics`, `/live`, `/ready`. Scope: per process, on the admin thread.
//! Invariants: `/live` looks at nothing outside the process; `/ready` is 200 only while traffic may come; there is no
//! authentication, so nothing here changes anything.
//! Not here: what is counted.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::metrics::{CONTENT_TYPE, Metrics};
use super::status::{NodeStatus, Readiness};

struct App {
    metrics: Metrics,
    status: Arc<NodeStatus>,
}

/// Serves until `end` is sent or dropped; open requests are answered first.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    status: Arc<NodeStatus>,
    end: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/live", get(async || "live\n"))
        .route("/ready", get(show_ready))
        .with_state(Arc::new(App { metrics, status }));
    let ended = async {
        let _ = end.await;
    };
    axum::serve(listener, app).with_graceful_shutdown(ended).await
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

    #[tokio::test]
    async fn the_three_routes_answer_and_readiness_follows_the_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let status = Arc::new(NodeStatus::new(1));
        let (end, ended) = oneshot::channel();
        let metrics = Metrics::new(Vec::new(), Arc::clone(&status));
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
        server.await.unwrap().unwrap();
    }
}
