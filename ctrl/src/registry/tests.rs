use std::sync::Arc;

use super::*;
use crate::ledger::Ledger;
use crate::store::MemoryStore;

fn world() -> Arc<Ledger> {
    Arc::new(Ledger::open(Arc::new(MemoryStore::default()), 10, 1).unwrap())
}

fn request(node_id: &str, addr: &str) -> RegisterNode {
    RegisterNode {
        node_id: node_id.into(),
        spec: NodeSpec {
            advertise_addr: addr.into(),
            client_addr: Some("broker.example:5000".into()),
            kafka_addr: None,
            region: "local".into(),
            zone: None,
            labels: BTreeMap::new(),
            capacity: Capacity::default(),
        },
        features: vec!["majority_ack".into()],
    }
}

async fn run<T: Send + 'static>(
    ledger: &Arc<Ledger>,
    decide: impl Fn(&mut Tx<'_>) -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, RegistryError> {
    ledger.write(decide).await
}

async fn join(ledger: &Arc<Ledger>, node_id: &str, addr: &str) -> Result<Node, RegistryError> {
    let body = request(node_id, addr);
    run(ledger, move |tx| register(tx, &body, 5)).await
}

#[tokio::test]
async fn every_registration_is_live_with_the_next_incarnation() {
    let ledger = world();
    assert_eq!(join(&ledger, "a", "127.0.0.1:1").await.unwrap().status.incarnation, 1);
    for end in [drain, deregister] {
        run(&ledger, move |tx| end(tx, "a")).await.unwrap();
        let again = join(&ledger, "a", "127.0.0.1:2").await.unwrap();
        assert_eq!(again.status.lifecycle, Lifecycle::Live);
        assert_eq!(again.spec.advertise_addr, "127.0.0.1:2");
    }
    let node = ledger.get::<Node>(row::node("a")).unwrap().unwrap();
    assert_eq!((node.status.incarnation, node.status.registered_at_millis), (3, 5));
}

#[tokio::test]
async fn two_serving_nodes_never_share_an_address() {
    let ledger = world();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    let taken = join(&ledger, "b", "127.0.0.1:1").await;
    assert!(matches!(taken, Err(RegistryError::Conflict(_))));
    run(&ledger, |tx| deregister(tx, "a")).await.unwrap();
    join(&ledger, "b", "127.0.0.1:1").await.unwrap();
}

#[tokio::test]
async fn a_registration_that_makes_no_sense_is_refused() {
    let ledger = world();
    let with = |change: fn(&mut RegisterNode)| {
        let mut body = request("a", "127.0.0.1:1");
        change(&mut body);
        body
    };
    let bad: [RegisterNode; 13] = [
        with(|b| b.node_id = "A".into()),
        with(|b| b.spec.advertise_addr = "127.0.0.1:0".into()),
        with(|b| b.spec.advertise_addr = "0.0.0.0:5".into()),
        with(|b| b.spec.advertise_addr = "host:5".into()),
        with(|b| b.spec.client_addr = Some("host".into())),
        with(|b| b.spec.client_addr = Some(":5".into())),
        with(|b| b.spec.kafka_addr = Some("host:0".into())),
        with(|b| b.spec.region = String::new()),
        with(|b| b.spec.zone = Some("z".repeat(254))),
        with(|b| b.spec.capacity.max_shards = Some(0)),
        with(|b| b.spec.labels = [("k".into(), "v".repeat(600))].into()),
        with(|b| b.spec.labels = (0..65).map(|n| (n.to_string(), String::new())).collect()),
        with(|b| b.features = vec!["f".into(); 65]),
    ];
    for (n, body) in bad.into_iter().enumerate() {
        let refused = run(&ledger, move |tx| register(tx, &body, 5)).await;
        assert!(matches!(refused, Err(RegistryError::Invalid(_) | RegistryError::Name(_))), "case {n}");
    }
    let ipv6 = request("a", "[::1]:5");
    run(&ledger, move |tx| register(tx, &ipv6, 5)).await.unwrap();
}

#[tokio::test]
async fn drain_and_deregister_take_already_there_as_success() {
    let ledger = world();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    for _ in 0..2 {
        let node = run(&ledger, |tx| drain(tx, "a")).await.unwrap();
        assert_eq!(node.status.lifecycle, Lifecycle::Draining);
    }
    for _ in 0..2 {
        let node = run(&ledger, |tx| deregister(tx, "a")).await.unwrap();
        assert_eq!(node.status.lifecycle, Lifecycle::Left);
    }
    assert!(matches!(run(&ledger, |tx| drain(tx, "a")).await, Err(RegistryError::Conflict(_))));
    assert!(matches!(run(&ledger, |tx| drain(tx, "b")).await, Err(RegistryError::NotFound)));
}

#[tokio::test]
async fn only_the_silent_registration_itself_is_marked_down() {
    let ledger = world();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    assert!(!run(&ledger, |tx| mark_down(tx, "a", 1)).await.unwrap());
    assert!(!run(&ledger, |tx| mark_down(tx, "b", 1)).await.unwrap());
    assert!(run(&ledger, |tx| mark_down(tx, "a", 2)).await.unwrap());
    assert!(!run(&ledger, |tx| mark_down(tx, "a", 2)).await.unwrap());
}

#[tokio::test]
async fn a_patch_moves_between_live_and_draining_only() {
    let ledger = world();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    let set = |lifecycle| {
        let body = NodePatch { lifecycle: Some(lifecycle), ..NodePatch::default() };
        run(&ledger, move |tx| patch(tx, "a", &body))
    };
    assert_eq!(set(Lifecycle::Draining).await.unwrap().status.lifecycle, Lifecycle::Draining);
    assert_eq!(set(Lifecycle::Live).await.unwrap().status.lifecycle, Lifecycle::Live);
    assert!(matches!(set(Lifecycle::Left).await, Err(RegistryError::Invalid(_))));
    let region = NodePatch { region: Some(String::new()), ..NodePatch::default() };
    assert!(matches!(run(&ledger, move |tx| patch(tx, "a", &region)).await, Err(RegistryError::Invalid(_))));
    run(&ledger, |tx| deregister(tx, "a")).await.unwrap();
    assert!(matches!(set(Lifecycle::Live).await, Err(RegistryError::Conflict(_))));
}

#[tokio::test]
async fn a_node_is_deleted_only_when_nothing_needs_it() {
    let ledger = world();
    join(&ledger, "a", "127.0.0.1:1").await.unwrap();
    assert!(matches!(run(&ledger, |tx| delete(tx, "a")).await, Err(RegistryError::Conflict(_))));
    run(&ledger, |tx| deregister(tx, "a")).await.unwrap();
    let named: Assignment = serde_json::from_value(serde_json::json!({
        "tenant_id": "t", "namespace": "n", "stream": "s", "shard": 0, "leader": "b", "replicas": ["a"],
        "generation": 1, "state": "active",
    }))
    .unwrap();
    let key = row::assignment(&named.key);
    let put = key.clone();
    let write = move |tx: &mut Tx<'_>| {
        tx.put(put.clone(), &named);
        Ok(())
    };
    run(&ledger, write).await.unwrap();
    assert!(matches!(run(&ledger, |tx| delete(tx, "a")).await, Err(RegistryError::Conflict(_))));
    let remove = move |tx: &mut Tx<'_>| {
        tx.delete(key.clone());
        Ok(())
    };
    run(&ledger, remove).await.unwrap();
    run(&ledger, |tx| delete(tx, "a")).await.unwrap();
    assert!(matches!(run(&ledger, |tx| delete(tx, "a")).await, Err(RegistryError::NotFound)));
}
