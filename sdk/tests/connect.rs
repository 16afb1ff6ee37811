//! Connecting and authenticating against a scripted broker.

mod fake;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fake::{DEADLINE, FakeBroker, TOKEN};
use felix_sdk::{Client, Deadlines, Error, ErrorCode, KeyMapping, Start, StreamShards};

fn short() -> Deadlines {
    Deadlines { connect: Duration::from_millis(400), ..Deadlines::default() }
}

#[tokio::test]
async fn both_address_families_are_reached() {
    let v4 = FakeBroker::start(2).await;
    let shards = v4.connect().await.stream_shards("s").await.unwrap();
    assert_eq!(shards, StreamShards { shards: 2, mapping: KeyMapping::JumpHash });
    let v6 = FakeBroker::start_at(Ipv6Addr::LOCALHOST.into(), 1).await;
    assert_eq!(v6.connect().await.stream_shards("s").await.unwrap().shards, 1);
}

#[tokio::test]
async fn a_name_is_tried_in_both_families() {
    let broker = FakeBroker::start(1).await;
    let by_name = broker.client().broker(format!("localhost:{}", broker.addr.port()));
    assert_eq!(by_name.connect().await.unwrap().connection_count(), 1);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let broker = FakeBroker::start(1).await;
    let error = broker.client().server_name("elsewhere.example").connect().await.err().unwrap();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(broker.state.lock().auths.is_empty());
}

#[tokio::test]
async fn a_fixed_token_that_is_refused_is_an_authentication_error() {
    let broker = FakeBroker::start(1).await;
    let error = broker.client().token("bad").connect().await.err().unwrap();
    assert!(matches!(error, Error::Auth(_)), "{error:?}");
    assert_eq!(error.code(), Some(&ErrorCode::Unauthenticated));
    assert_eq!(broker.state.lock().auths, ["bad"]);
}

#[tokio::test]
async fn a_provider_is_asked_again_once_when_its_token_is_refused() {
    let broker = FakeBroker::start(1).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let client = broker.client().token_provider(move || {
        let call = counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(if call == 0 { "stale".to_owned() } else { TOKEN.to_owned() }) }
    });
    let client = client.connect().await.unwrap();
    assert_eq!(client.stream_shards("s").await.unwrap().shards, 1);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let state = broker.state.lock();
    assert_eq!(state.auths, ["stale", TOKEN, TOKEN]);
    assert_eq!(state.aims.len(), 1, "on the same connection");
}

#[tokio::test]
async fn a_provider_that_fails_is_told_as_such() {
    let broker = FakeBroker::start(1).await;
    let client = broker.client().token_provider(|| async { Err("no identity here".into()) });
    let error = client.connect().await.err().unwrap();
    assert!(matches!(&error, Error::Token { message } if message == "no identity here"), "{error:?}");
}

/// A token whose life ends `seconds` from now.
fn token_for(seconds: u64, tag: usize) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{},\"jti\":\"{tag}\"}}", now + seconds));
    format!("e30.{claims}.sig")
}

#[tokio::test]
async fn a_token_near_its_end_is_renewed_on_the_live_connection_by_itself() {
    let broker = FakeBroker::start(1).await;
    let tokens = [token_for(3, 0), token_for(1_000, 1)];
    broker.state.change(|s| s.tokens.extend(tokens.iter().cloned()));
    let newer = tokens[1].clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let client = broker.client().token_provider(move || {
        let token = tokens[calls.fetch_add(1, Ordering::SeqCst).min(1)].clone();
        async move { Ok(token) }
    });
    let client = client.connect().await.unwrap();
    let _events = client.subscribe("s").open().await.unwrap();
    broker.state.when("the newer token", |s| s.auths.contains(&newer).then_some(())).await;
    assert_eq!(broker.state.lock().aims.len(), 1, "presented on the connection that was there");
}

#[tokio::test]
async fn an_expired_subscription_goes_on_with_a_newer_token() {
    let broker = FakeBroker::start(1).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    let client = broker.client().token_file(&path).connect().await.unwrap();
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    // The broker ends what the old token opened, as when it expires, and takes only the newer one.
    broker.state.change(|s| {
        s.tokens = ["newer".to_owned()].into();
        s.ending = Some((s.next_id + 1, fake::Ending::Moved));
        s.records[0].push("after".into());
    });
    broker.state.when("the old token is refused", |s| (s.auths.len() > 4).then_some(())).await;
    std::fs::write(&path, "newer").unwrap();
    let event = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(&event.payload[..], b"after");
}

#[tokio::test]
async fn the_next_broker_is_used_when_the_first_is_away_or_drains() {
    let mut first = FakeBroker::start(1).await;
    let second = first.sibling(7);
    let client = first.client().broker(second.addr.to_string()).deadlines(short()).connect().await.unwrap();
    assert_eq!(client.stream_shards("s").await.unwrap().shards, 1);
    first.state.change(|s| s.draining = true);
    // The refusal names the reason; whoever retries is on the other broker.
    let publisher = client.publisher("s").open().await.unwrap();
    assert_eq!(publisher.shard_count(), 7);
    first.stop().await;
    let late = first.client().broker(second.addr.to_string()).deadlines(short()).connect().await.unwrap();
    assert_eq!(late.stream_shards("s").await.unwrap().shards, 7);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_anything_is_dialled() {
    let config = |result: Result<Client, Error>| matches!(result, Err(Error::Config { .. }));
    let base = || Client::builder().tenant("t").token("x").broker("localhost:1");
    assert!(config(Client::builder().tenant("t").token("x").connect().await));
    assert!(config(Client::builder().broker("localhost:1").token("x").connect().await));
    assert!(config(Client::builder().broker("localhost:1").tenant("t").connect().await));
    assert!(config(base().broker("no-port").connect().await));
    assert!(config(base().ca_file("/nonexistent").connect().await));
}

#[tokio::test]
async fn a_stream_without_a_namespace_needs_a_default_one() {
    let broker = FakeBroker::start(1).await;
    let with_default = broker.connect().await;
    assert!(with_default.stream_shards("s").await.is_ok());
    let without = broker.client_without_namespace().connect().await.unwrap();
    assert!(matches!(without.stream_shards("s").await, Err(Error::Config { .. })));
    assert!(without.stream_shards(("other", "s")).await.is_ok());
}

#[tokio::test]
async fn a_closed_client_ends_everything_made_from_it() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let mut events = client.subscribe("s").open().await.unwrap();
    client.close().await;
    broker.state.when("the close is seen", |s| (s.open_connections == 0).then_some(())).await;
    let ended = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap_err();
    assert!(ended.ends_shard(), "{ended:?}");
    let receipt = publisher.send("late", None).await.unwrap();
    let error = tokio::time::timeout(DEADLINE, receipt).await.unwrap().unwrap_err();
    assert_eq!(error, felix_sdk::PublishError::Unavailable(Error::Closed));
    assert_eq!(client.topology().await, Err(Error::Closed));
}

#[tokio::test]
async fn owners_are_told_with_their_cores() {
    let broker = FakeBroker::start(3).await;
    broker.state.change(|s| s.cores = Some(2));
    let client = broker.connect().await;
    let owners = client.shard_owners("s").await.unwrap();
    let cores: Vec<_> = owners.iter().map(|owner| owner.core.map(|core| core.get())).collect();
    assert_eq!(cores, [Some(0), Some(1), Some(0)]);
    assert!(client.topology().await.unwrap().is_empty());
}
