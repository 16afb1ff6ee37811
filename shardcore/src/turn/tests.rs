//! Cores joined by their mail alone: no connection, no clock.

use std::num::NonZeroU16;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use felix_runtime::clock::Tick;
use felix_runtime::counters::counters;
use felix_runtime::quic::{ConnKey, Dir, KEY_BYTES, Quic, QuicSettings, Side, StreamId, client_tls};
use felix_wire::client::Records;
use felix_wire::control::{Action, Claims, Grants};
use felix_wire::id::{CoreId, Generation, Incarnation, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::core::{Core, CoreParts};
use super::counters::{CoreCounters, Counter};
use super::publishing::Origin;
use super::tenants::TenantCount;
use crate::access::{Granted, Principal};
use crate::route::Place;
use crate::session::Publish;
use crate::shard::mail::{ShardInput, Start, SubToken, ToShard};
use crate::snapshot::{
    CoreLimits, FromCore, Owner, Resource, Routes, ShardId, StreamName, StreamRoute, StreamUid, ToCore,
};

fn quic(core: u16, cores: u16) -> Quic {
    let settings = QuicSettings {
        core,
        cores,
        seed: Some([core as u8 + 1; 32]),
        ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
    };
    Quic::new(settings, None, Instant::now()).unwrap()
}

/// A core without connections, streams and keys.
pub(super) fn bare_core(id: u16, cores: u16, limits: &Arc<CoreLimits>) -> Core {
    Core::new(CoreParts {
        id: CoreId(id),
        cores,
        boot: 1,
        limits: Arc::clone(limits),
        counters: CoreCounters::new(counters(Counter::ALL.len()).0),
        quic: quic(id, cores),
    })
}

/// A key that names no connection of the core under test.
pub(super) fn conn_key() -> ConnKey {
    static KEY: OnceLock<ConnKey> = OnceLock::new();
    *KEY.get_or_init(|| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let tls = Arc::new(client_tls(&[params.self_signed(&key).unwrap().der().clone()], &[]).unwrap());
        quic(0, 1).connect(Tick(0), tls, ([127, 0, 0, 1], 1).into(), "localhost", None).unwrap()
    })
}

fn granted(place: Place) -> Granted<Place> {
    let claims = Claims {
        iss: String::new(),
        aud: String::new(),
        sub: "s".to_owned(),
        tid: "t".to_owned(),
        iat: 0,
        exp: u64::MAX,
        nbf: None,
        perms: vec!["stream.publish:stream:t/*/*".to_owned()],
        jti: None,
        act: None,
        may_act: None,
    };
    let grants = Grants::from_claims(&claims).unwrap();
    let principal = Principal { tenant: "t".into(), subject: "s".into(), grants, expires_s: u64::MAX };
    principal.stream(Action::StreamPublish, ("t", "n", "x"), place).unwrap()
}

/// Cores of one broker and their mail, delivered in order.
struct Node {
    cores: Vec<Core>,
    now: Tick,
    version: u64,
    conn: ConnKey,
}

impl Node {
    fn new(cores: u16, limits: CoreLimits) -> Node {
        let limits = Arc::new(limits);
        let core = |id| bare_core(id, cores, &limits);
        let count = NonZeroU16::new(cores).unwrap().get();
        Node { cores: (0..count).map(core).collect(), now: Tick(0), version: 0, conn: conn_key() }
    }

    /// Stream `i + 1` has one shard, on core `owners[i]`.
    fn route(&mut self, owners: &[Owner]) {
        self.version += 1;
        let streams = owners.iter().enumerate().map(|(i, owner)| {
            Arc::new(StreamRoute {
                resource: Resource::Stream,
                uid: StreamUid(i as u64 + 1),
                name: StreamName {
                    tenant: "t".into(),
                    namespace: "n".into(),
                    stream: format!("s{i}").into(),
                },
                incarnation: Incarnation(1),
                mapping: KeyMapping::Modulo,
                log: None,
                owners: vec![owner.clone()],
            })
        });
        let routes = Arc::new(Routes::new(self.version, streams, [Arc::from("t")]));
        for core in &mut self.cores {
            assert!(core.handle_admin(self.now, ToCore::Routes(Arc::clone(&routes))));
        }
    }

    fn publish(&mut self, core: usize, stream: u64, owner: u16, bytes: usize) {
        let place = Place { shard: shard(stream), core: CoreId(owner), generation: Generation(1) };
        let id = StreamId::new(Side::Client, Dir::Bi, 0);
        let records = Records::from_payloads([vec![0; bytes]]);
        let tenant = self.cores[core].tenants.slot(&"t".into());
        let origin = Origin { conn: self.conn, stream: id, tenant };
        let place = granted(place);
        let Origin { stream, tenant, .. } = origin;
        let publish = Publish { stream, tenant, place, records, producer: None, ack: None };
        let mut behind = Vec::new();
        self.cores[core].publish(self.now, origin, publish, &mut behind.drain(..));
    }

    /// What the core counted for the tenant of the publishes.
    fn tenant_count(&mut self, core: usize, count: TenantCount) -> u64 {
        self.cores[core].tenants.slot(&"t".into());
        self.cores[core].tenants.rows()[1].counts[count as usize]
    }

    /// A reader on `core` that never asks for anything pins the shard.
    fn pin(&mut self, core: u16, owner: usize, stream: u64) {
        let what = ShardInput::Subscribe { token: SubToken(1), start: Start::Latest, hold: false };
        let to = ToShard { shard: shard(stream), generation: Generation(1), what };
        self.cores[owner].handle_ask(self.now, CoreId(core), to);
        self.cores[owner].shard_out.clear();
    }

    fn unpin(&mut self, core: u16, owner: usize, stream: u64) {
        let to = ToShard { shard: shard(stream), generation: Generation(1), what: ShardInput::Unlink };
        self.cores[owner].handle_ask(self.now, CoreId(core), to);
    }

    /// Delivers mail and runs turns until nothing moves.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for from in 0..self.cores.len() {
                for to in 0..self.cores.len() {
                    while let Some(mail) = self.cores[from].poll_mail(CoreId(to as u16)) {
                        self.cores[to].handle_mail(self.now, CoreId(from as u16), mail);
                        moved = true;
                    }
                }
                moved |= self.cores[from].turn(self.now, 0) | self.cores[from].has_mail();
            }
            if !moved {
                return;
            }
        }
        panic!("the cores never come to rest");
    }

    fn sweep(&mut self) {
        self.now += std::time::Duration::from_millis(50);
        self.settle();
    }

    fn end(&self, core: usize, stream: u64) -> u64 {
        self.cores[core].shards[&shard(stream)].end().0
    }
}

fn shard(stream: u64) -> ShardId {
    ShardId { stream: StreamUid(stream), shard: ShardIndex(0) }
}

fn here(core: u16) -> Owner {
    Owner::Here { core: CoreId(core), generation: Generation(1) }
}

fn limits() -> CoreLimits {
    CoreLimits { ring_bytes_max: 20_000, rings_bytes_max: 20_000, ..CoreLimits::default() }
}

#[test]
fn a_batch_larger_than_the_slack_of_the_ring_budget_is_taken_and_nothing_spins() {
    let mut node = Node::new(1, limits());
    node.route(&[here(0)]);
    for _ in 0..100 {
        node.publish(0, 1, 0, 15_000);
        node.settle();
    }
    assert_eq!((node.end(0, 1), node.cores[0].jobs.len()), (100, 0));
    assert!(node.cores[0].rings_bytes <= 20_000);
}

#[test]
fn what_is_pinned_in_the_largest_ring_is_found_in_the_others() {
    let mut node = Node::new(2, limits());
    node.route(&[here(0), here(0), here(0)]);
    node.pin(1, 0, 1);
    node.publish(0, 1, 0, 9_000);
    node.publish(0, 2, 0, 8_000);
    node.settle();
    node.publish(0, 3, 0, 9_000);
    node.settle();
    assert_eq!(node.end(0, 3), 1, "the second largest ring gave");
    assert_eq!(node.end(0, 1), 1);
}

#[test]
fn a_shard_starved_by_another_shards_pin_goes_on_when_that_is_gone() {
    let mut node = Node::new(2, limits());
    node.route(&[here(0), here(0)]);
    node.pin(1, 0, 1);
    node.pin(1, 0, 2);
    node.publish(0, 1, 0, 15_000);
    node.publish(0, 2, 0, 3_000);
    node.publish(0, 2, 0, 9_000);
    node.settle();
    assert_eq!((node.end(0, 2), node.cores[0].jobs.len()), (1, 1));
    node.unpin(1, 0, 1);
    node.settle();
    assert_eq!((node.end(0, 2), node.cores[0].jobs.len()), (2, 0));
}

#[test]
fn many_parked_publishes_go_on_without_one_stack_frame_each() {
    let mut node = Node::new(2, CoreLimits { ring_bytes_max: 3_000, ..CoreLimits::default() });
    node.route(&[here(0)]);
    node.pin(1, 0, 1);
    for _ in 0..100_000 {
        node.publish(0, 1, 0, 10);
    }
    node.settle();
    assert!(node.cores[0].jobs.len() > 90_000);
    node.unpin(1, 0, 1);
    node.settle();
    assert_eq!((node.end(0, 1), node.cores[0].jobs.len()), (100_000, 0));
}

#[test]
fn one_busy_shard_does_not_keep_the_credit_of_the_pair_from_another() {
    let credit = CoreLimits { pair_credit_items: 4, ..CoreLimits::default() };
    let mut node = Node::new(2, credit);
    node.route(&[here(1), here(1)]);
    for _ in 0..1_000 {
        node.publish(0, 1, 1, 10);
    }
    node.publish(0, 2, 1, 10);
    let mut rounds = 0;
    while node.end(1, 2) == 0 {
        rounds += 1;
        while let Some(mail) = node.cores[0].poll_mail(CoreId(1)) {
            node.cores[1].handle_mail(node.now, CoreId(0), mail);
        }
        node.cores[1].turn(node.now, 0);
        while let Some(mail) = node.cores[1].poll_mail(CoreId(0)) {
            node.cores[0].handle_mail(node.now, CoreId(1), mail);
        }
        node.cores[0].turn(node.now, 0);
        assert!(rounds < 10, "it still waits, {} of the busy one are through", node.end(1, 1));
    }
    node.settle();
    assert_eq!((node.end(1, 1), node.cores[0].jobs.len()), (1_000, 0));
    assert_eq!(node.cores[0].credits[1].outstanding(), 0);
}

#[test]
fn a_core_without_connections_still_tells_how_many_shards_it_serves() {
    let mut node = Node::new(1, limits());
    node.settle();
    for owners in [&[here(0), here(0)][..], &[here(0)], &[]] {
        node.route(owners);
        node.settle();
        while let Some(at) = node.cores[0].next_timeout() {
            assert!(at > node.now, "it never comes to rest");
            node.now = at;
            node.settle();
        }
        assert_eq!(node.cores[0].counters.get(Counter::Shards), owners.len() as u64);
    }
}

#[test]
fn publishes_of_a_deleted_stream_are_refused_and_those_on_their_way_too() {
    let mut node = Node::new(2, CoreLimits { pair_credit_items: 5, ..CoreLimits::default() });
    node.route(&[here(1)]);
    for _ in 0..10 {
        node.publish(0, 1, 1, 10);
    }
    node.route(&[]);
    for _ in 0..3 {
        node.sweep();
    }
    assert_eq!(node.cores[0].jobs.len(), 0, "nobody would ever have answered");
    assert_eq!(node.cores[0].counters.get(Counter::PublishesDropped), 10);
    assert_eq!(node.tenant_count(0, TenantCount::Refused), 10);
    assert_eq!(node.cores[0].credits[1].outstanding(), 0);
    node.sweep();
    assert!(node.cores[0].lanes.is_empty());
}

#[test]
fn a_moved_shard_takes_what_was_parked_at_its_old_core() {
    let mut node = Node::new(3, CoreLimits { ring_bytes_max: 1_000, ..CoreLimits::default() });
    node.route(&[here(1)]);
    node.pin(2, 1, 1);
    for _ in 0..50 {
        node.publish(0, 1, 1, 100);
    }
    node.settle();
    let old = node.end(1, 1);
    assert!(old < 50);
    node.route(&[Owner::Here { core: CoreId(2), generation: Generation(2) }]);
    for _ in 0..3 {
        node.sweep();
    }
    assert_eq!((old + node.end(2, 1), node.cores[0].jobs.len()), (50, 0));
    assert!(!node.cores[1].shards.contains_key(&shard(1)));
    assert_eq!(node.cores[1].rings_bytes, 0);
}

#[test]
fn shedding_drops_what_is_behind_a_stalled_publish_and_only_when_it_is_on() {
    for shed in [true, false] {
        let mut node = Node::new(2, CoreLimits { ring_bytes_max: 1_000, shed, ..CoreLimits::default() });
        node.route(&[here(0)]);
        node.pin(1, 0, 1);
        for _ in 0..50 {
            node.publish(0, 1, 0, 100);
        }
        node.settle();
        let lost = node.cores[0].counters.get(Counter::PublishesShed);
        assert_eq!(lost > 0, shed);
        assert_eq!(node.tenant_count(0, TenantCount::Shed), lost);
        assert_eq!(node.tenant_count(0, TenantCount::PublishedRecords), node.end(0, 1));
        assert_eq!(node.end(0, 1) + lost + node.cores[0].jobs.len() as u64, 50);
    }
}

#[test]
fn publishes_given_up_while_they_wait_are_counted_for_their_tenant_and_an_idle_core_still_tells() {
    let mut node = Node::new(1, CoreLimits { ring_bytes_max: 1_000, ..CoreLimits::default() });
    node.route(&[here(0)]);
    node.pin(1, 0, 1);
    for _ in 0..20 {
        node.publish(0, 1, 0, 100);
    }
    node.settle();
    let written = node.end(0, 1);
    // Their connection is gone, so they are given up like acked ones after the wait.
    let mut told = None;
    for _ in 0..100 {
        node.sweep();
        while let Some(message) = node.cores[0].poll_admin() {
            if let FromCore::Tenants(report) = message {
                told = Some(report);
            }
        }
    }
    assert_eq!(node.tenant_count(0, TenantCount::Expired), 20 - written);
    assert_eq!(node.tenant_count(0, TenantCount::Refused), 20 - written);
    assert_eq!(told.unwrap().rows.as_ref(), node.cores[0].tenants.rows());
    assert!(!node.cores[0].tenants.is_untold());
}
