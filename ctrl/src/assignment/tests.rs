use std::sync::Arc;

use felix_wire::control::*;

use super::*;
use crate::catalog::{create_namespace, create_stream, create_tenant, delete_stream};
use crate::feed;
use crate::ledger::Ledger;
use crate::store::MemoryStore;
use crate::tokens::SigningKeys;

async fn world() -> Arc<Ledger> {
    let ledger = Arc::new(Ledger::open(Arc::new(MemoryStore::default()), 1_000, 1).unwrap());
    ledger
        .write(|tx| {
            let tenant = Tenant { tenant_id: "t".into(), display_name: String::new() };
            create_tenant(tx, &tenant, &SigningKeys::generate().unwrap())?;
            let body = NamespaceCreate { namespace: "n".into(), display_name: String::new() };
            create_namespace(tx, "t", &body)
        })
        .await
        .unwrap();
    ledger
}

/// Creates the stream and answers its incarnation.
async fn create(ledger: &Arc<Ledger>) -> u64 {
    let body = StreamCreate {
        stream: "s".into(),
        kind: StreamKind::Stream,
        shards: 1,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: false,
        region: None,
        routing: None,
    };
    ledger.write(move |tx| create_stream(tx, "t", "n", &body)).await.unwrap();
    ledger.get::<Stream>(row::stream("t", "n", "s")).unwrap().unwrap().incarnation
}

fn seat(leader: &str, incarnation: u64, replaces: Option<u64>) -> PlannedSeat {
    PlannedSeat {
        key: AssignmentKey {
            tenant_id: "t".into(),
            namespace: "n".into(),
            kind: ResourceKind::Stream,
            stream: "s".into(),
            shard: 0,
        },
        incarnation,
        leader: leader.into(),
        replicas: Vec::new(),
        state: AssignmentState::Active,
        routing: None,
        replaces,
    }
}

async fn apply_one(
    ledger: &Arc<Ledger>,
    token: PlacementToken,
    seat: PlannedSeat,
) -> Result<Applied, ApplyError> {
    ledger.write(move |tx| apply(tx, token, std::slice::from_ref(&seat))).await
}

fn now(ledger: &Ledger) -> Option<(String, u64)> {
    let rows: Vec<Assignment> = ledger.list(&row::assignments()).unwrap();
    rows.into_iter().next().map(|a| (a.leader, a.generation))
}

const WRITTEN: Applied = Applied { written: 1, stale: 0 };
const STALE: Applied = Applied { written: 0, stale: 1 };

#[tokio::test]
async fn a_seat_is_written_only_on_the_generation_it_was_planned_on() {
    let ledger = world().await;
    let incarnation = create(&ledger).await;
    let token = ledger.write(take_over).await.unwrap();
    assert_eq!(apply_one(&ledger, token, seat("a", incarnation, None)).await.unwrap(), WRITTEN);
    assert_eq!(now(&ledger), Some(("a".into(), 1)));
    for planned_on in [None, Some(2), Some(9)] {
        let late = apply_one(&ledger, token, seat("b", incarnation, planned_on)).await.unwrap();
        assert_eq!(late, STALE, "{planned_on:?}");
    }
    assert_eq!(apply_one(&ledger, token, seat("b", incarnation, Some(1))).await.unwrap(), WRITTEN);
    assert_eq!(now(&ledger), Some(("b".into(), 2)));
}

#[tokio::test]
async fn a_plan_of_an_earlier_placer_is_refused() {
    let ledger = world().await;
    let incarnation = create(&ledger).await;
    let earlier = ledger.write(take_over).await.unwrap();
    let later = ledger.write(take_over).await.unwrap();
    let refused = apply_one(&ledger, earlier, seat("a", incarnation, None)).await;
    assert!(matches!(refused, Err(ApplyError::Fenced)));
    assert_eq!(now(&ledger), None);
    assert_eq!(apply_one(&ledger, later, seat("a", incarnation, None)).await.unwrap(), WRITTEN);
}

#[tokio::test]
async fn a_seat_for_an_earlier_life_of_the_name_is_not_written() {
    let ledger = world().await;
    let token = ledger.write(take_over).await.unwrap();
    let first = create(&ledger).await;
    ledger.write(|tx| delete_stream(tx, "t", "n", "s")).await.unwrap();
    assert_eq!(apply_one(&ledger, token, seat("a", first, None)).await.unwrap(), STALE);
    let second = create(&ledger).await;
    assert_eq!(apply_one(&ledger, token, seat("a", first, None)).await.unwrap(), STALE);
    assert_eq!(apply_one(&ledger, token, seat("a", second, None)).await.unwrap(), WRITTEN);
}

#[tokio::test]
async fn generations_of_one_shard_only_rise_also_over_a_deletion() {
    let ledger = world().await;
    let token = ledger.write(take_over).await.unwrap();
    let first = create(&ledger).await;
    apply_one(&ledger, token, seat("a", first, None)).await.unwrap();
    apply_one(&ledger, token, seat("b", first, Some(1))).await.unwrap();
    ledger.write(|tx| delete_stream(tx, "t", "n", "s")).await.unwrap();
    assert_eq!(now(&ledger), None);
    let second = create(&ledger).await;
    apply_one(&ledger, token, seat("a", second, None)).await.unwrap();
    assert_eq!(now(&ledger), Some(("a".into(), 3)));
    let changes: Changes<AssignmentChange> = feed::changes(&ledger, Feed::Assignments, 1, 9).unwrap();
    let told: Vec<_> = changes.items.iter().map(|c| (c.op, c.generation, c.incarnation)).collect();
    use AssignmentOp::{Assigned, Unassigned, Updated};
    assert_eq!(
        told,
        [(Assigned, 1, first), (Updated, 2, first), (Unassigned, 2, first), (Assigned, 3, second)]
    );
}
