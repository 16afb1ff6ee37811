use std::sync::Arc;

use felix_wire::control::*;

use super::*;
use crate::feed;
use crate::ledger::Ledger;
use crate::store::MemoryStore;

struct World(Arc<Ledger>);

impl World {
    fn new() -> World {
        World(Arc::new(Ledger::open(Arc::new(MemoryStore::default()), 1_000, 1).unwrap()))
    }

    async fn with_namespace() -> World {
        let world = World::new();
        world.run(|tx| create_tenant(tx, &tenant("t"), &SigningKeys::generate().unwrap())).await.unwrap();
        world.run(|tx| create_namespace(tx, "t", &namespace("n"))).await.unwrap();
        world
    }

    async fn run<T: Send + 'static>(
        &self,
        decide: impl Fn(&mut Tx<'_>) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, CatalogError> {
        self.0.write(decide).await
    }

    async fn create(&self, body: StreamCreate) -> Result<Creation<Stream>, CatalogError> {
        self.run(move |tx| create_stream(tx, "t", "n", &body)).await
    }
}

fn tenant(id: &str) -> Tenant {
    Tenant { tenant_id: id.into(), display_name: String::new() }
}

fn namespace(name: &str) -> NamespaceCreate {
    NamespaceCreate { namespace: name.into(), display_name: String::new() }
}

fn stream(name: &str) -> StreamCreate {
    StreamCreate {
        stream: name.into(),
        kind: StreamKind::Stream,
        shards: 2,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: true,
        region: None,
        routing: None,
    }
}

fn cache(name: &str) -> CacheCreate {
    CacheCreate {
        cache: name.into(),
        display_name: String::new(),
        shards: 1,
        replication_factor: 1,
        consistency: Consistency::Leader,
    }
}

fn created<T>(creation: Creation<T>) -> T {
    match creation {
        Creation::Created(resource) => resource,
        Creation::Unchanged(_) => panic!("it was there before"),
    }
}

#[tokio::test]
async fn a_repeated_creation_finds_the_same_stream_and_a_differing_one_is_refused() {
    let world = World::with_namespace().await;
    let first = created(world.create(stream("s")).await.unwrap());
    assert_eq!(first.routing, Some(KeyRouting::JumpHash));
    assert_eq!(world.create(stream("s")).await.unwrap(), Creation::Unchanged(first.clone()));
    let named = StreamCreate { routing: Some(KeyRouting::JumpHash), ..stream("s") };
    assert_eq!(world.create(named).await.unwrap(), Creation::Unchanged(first));
    for differing in [
        StreamCreate { shards: 3, ..stream("s") },
        StreamCreate { durable: false, ..stream("s") },
        StreamCreate { routing: Some(KeyRouting::Modulo), ..stream("s") },
        StreamCreate { region: Some("eu".into()), ..stream("s") },
    ] {
        assert!(matches!(world.create(differing).await, Err(CatalogError::Differs(_))));
    }
    let modulo = StreamCreate { routing: Some(KeyRouting::Modulo), ..stream("m") };
    assert_eq!(created(world.create(modulo).await.unwrap()).routing, None);
    assert!(matches!(world.create(stream("m")).await.unwrap(), Creation::Unchanged(_)));
}

#[tokio::test]
async fn values_out_of_range_are_refused() {
    let world = World::with_namespace().await;
    let zero_age = Retention { max_age_seconds: Some(0), max_size_bytes: None };
    let zero_size = Retention { max_age_seconds: None, max_size_bytes: Some(0) };
    for bad in [
        StreamCreate { shards: 0, ..stream("s") },
        StreamCreate { shards: SHARDS_MAX + 1, ..stream("s") },
        StreamCreate { replication_factor: 0, ..stream("s") },
        StreamCreate { replication_factor: REPLICATION_MAX + 1, ..stream("s") },
        StreamCreate { retention: zero_age, ..stream("s") },
        StreamCreate { retention: zero_size, ..stream("s") },
        StreamCreate { region: Some(String::new()), ..stream("s") },
    ] {
        assert!(matches!(world.create(bad.clone()).await, Err(CatalogError::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(world.create(stream("a/b")).await, Err(CatalogError::Name(_))));
    let reserved = world.run(|tx| create_tenant(tx, &tenant("snapshot"), &SigningKeys::generate().unwrap()));
    assert!(matches!(reserved.await, Err(CatalogError::Invalid(_))));
}

#[tokio::test]
async fn names_under_nothing_are_not_found() {
    let world = World::with_namespace().await;
    let missing = world.run(|tx| create_stream(tx, "t", "other", &stream("s"))).await;
    assert!(matches!(missing, Err(CatalogError::NotFound("the namespace"))));
    let missing = world.run(|tx| create_namespace(tx, "u", &namespace("n"))).await;
    assert!(matches!(missing, Err(CatalogError::NotFound("the tenant"))));
    let missing = world.run(|tx| patch_stream(tx, "t", "n", "s", &StreamPatch::default())).await;
    assert!(matches!(missing, Err(CatalogError::NotFound("the stream"))));
    let missing = world.run(|tx| delete_cache(tx, "t", "n", "c")).await;
    assert!(matches!(missing, Err(CatalogError::NotFound("the cache"))));
}

#[tokio::test]
async fn a_reused_name_is_a_greater_incarnation() {
    let world = World::with_namespace().await;
    let first = created(world.create(stream("s")).await.unwrap()).incarnation;
    world.run(|tx| delete_stream(tx, "t", "n", "s")).await.unwrap();
    let second = created(world.create(stream("s")).await.unwrap()).incarnation;
    assert!(second > first);
    let third = created(world.run(|tx| create_cache(tx, "t", "n", &cache("s"))).await.unwrap()).incarnation;
    assert!(third > second, "no two lives share one");
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_is_told_once() {
    let world = World::with_namespace().await;
    let before = created(world.create(stream("s")).await.unwrap());
    let patch = StreamPatch { consistency: Some(Consistency::Quorum), ..StreamPatch::default() };
    let again = patch.clone();
    let after = world.run(move |tx| patch_stream(tx, "t", "n", "s", &patch)).await.unwrap();
    assert_eq!(after, Stream { consistency: Consistency::Quorum, ..before.clone() });
    world.run(move |tx| patch_stream(tx, "t", "n", "s", &again)).await.unwrap();
    let changes: Changes<StreamChange> = feed::changes(&world.0, Feed::Streams, 1, 100).unwrap();
    let ops: Vec<_> = changes.items.iter().map(|change| change.op).collect();
    assert_eq!(ops, [CatalogOp::Created, CatalogOp::Updated]);
    let zero = StreamPatch {
        retention: Some(Retention { max_age_seconds: Some(0), max_size_bytes: None }),
        ..StreamPatch::default()
    };
    let refused = world.run(move |tx| patch_stream(tx, "t", "n", "s", &zero)).await;
    assert!(matches!(refused, Err(CatalogError::Invalid(_))));
}

#[tokio::test]
async fn deleting_a_tenant_leaves_no_row_of_it_and_tells_every_feed() {
    let world = World::with_namespace().await;
    world.run(|tx| create_tenant(tx, &tenant("t2"), &SigningKeys::generate().unwrap())).await.unwrap();
    world.run(|tx| create_namespace(tx, "t2", &namespace("n"))).await.unwrap();
    world.run(|tx| create_stream(tx, "t2", "n", &stream("s"))).await.unwrap();
    created(world.create(stream("s")).await.unwrap());
    world.run(|tx| create_cache(tx, "t", "n", &cache("c"))).await.unwrap();
    let assigned = Assignment {
        key: AssignmentKey {
            tenant_id: "t".into(),
            namespace: "n".into(),
            kind: ResourceKind::Stream,
            stream: "s".into(),
            shard: 0,
        },
        leader: "b".into(),
        replicas: Vec::new(),
        generation: 9,
        state: AssignmentState::Active,
        successor: None,
        joining: None,
        move_started_at_millis: None,
        move_reason: None,
        routing: None,
        incarnation: 1,
    };
    world
        .run(move |tx| {
            tx.put(row::assignment(&assigned.key), &assigned);
            Ok(())
        })
        .await
        .unwrap();
    world.run(|tx| delete_tenant(tx, "t")).await.unwrap();
    for prefix in [row::namespaces_of("t"), row::streams_of("t"), row::caches_of("t"), row::assignments()] {
        assert_eq!(world.0.list::<serde_json::Value>(&prefix).unwrap(), Vec::<serde_json::Value>::new());
    }
    assert!(world.0.get::<SigningKeys>(row::signing_keys("t")).unwrap().is_none());
    assert!(world.0.get::<SigningKeys>(row::signing_keys("t2")).unwrap().is_some());
    assert_eq!(world.0.list::<Stream>(&row::streams_of("t2")).unwrap().len(), 1);
    let last = |feed| {
        let all: Changes<serde_json::Value> = feed::changes(&world.0, feed, 1, 100).unwrap();
        all.items.last().unwrap()["op"].as_str().unwrap().to_owned()
    };
    for feed in [Feed::Tenants, Feed::Namespaces, Feed::Streams, Feed::Caches] {
        assert_eq!(last(feed), "deleted", "{feed:?}");
    }
    let unassigned: Changes<AssignmentChange> = feed::changes(&world.0, Feed::Assignments, 1, 9).unwrap();
    assert_eq!((unassigned.items[0].op, unassigned.items[0].generation), (AssignmentOp::Unassigned, 9));
    let floor = world.run(|tx| Ok(tx.counter(Counter::GenerationFloor)?)).await.unwrap();
    assert_eq!(floor, 9, "later generations begin above those that ended");
}

#[tokio::test]
async fn a_tenant_or_namespace_that_exists_is_refused() {
    let world = World::with_namespace().await;
    let again = world.run(|tx| create_namespace(tx, "t", &namespace("n"))).await;
    assert!(matches!(again, Err(CatalogError::Exists(_))));
    let again = world.run(|tx| create_tenant(tx, &tenant("t"), &SigningKeys::generate().unwrap())).await;
    assert!(matches!(again, Err(CatalogError::Exists(_))));
}
