//! Fairness of the streams that wait to be read.

use felix_runtime::quic::{Dir, Side};

use super::*;
use crate::turn::tests::conn_key;

fn stream(index: u64) -> Entry {
    (conn_key(), StreamId::new(Side::Client, Dir::Bi, index))
}

/// Reads until `rounds` streams were read; `want` says how much a stream has. Bytes by tenant.
fn run(
    ready: &mut Ready,
    rounds: usize,
    tenants: &[(Arc<str>, Vec<u64>)],
    want: impl Fn(u64) -> usize,
) -> Vec<usize> {
    let mut bytes = vec![0; tenants.len()];
    for _ in 0..rounds {
        let Some((entry, budget)) = ready.pop() else { break };
        let owner = tenants.iter().position(|(_, s)| s.iter().any(|i| stream(*i) == entry)).unwrap();
        let index = entry.1.index();
        let read = want(index).min(budget + (64 << 10));
        bytes[owner] += read;
        ready.charge(Some(&tenants[owner].0), read);
        ready.push(Some(&tenants[owner].0), entry);
    }
    bytes
}

fn tenants(shape: &[&[u64]]) -> Vec<(Arc<str>, Vec<u64>)> {
    shape.iter().enumerate().map(|(i, s)| (Arc::from(format!("t{i}")), s.to_vec())).collect()
}

fn filled(tenants: &[(Arc<str>, Vec<u64>)]) -> Ready {
    let mut ready = Ready::default();
    for (name, streams) in tenants {
        for index in streams {
            ready.push(Some(name), stream(*index));
        }
    }
    ready
}

#[test]
fn a_tenant_with_many_streams_reads_no_more_than_one_with_one() {
    let many: Vec<u64> = (0..50).collect();
    let tenants = tenants(&[&many, &[100]]);
    let bytes = run(&mut filled(&tenants), 4_000, &tenants, |_| 64 << 10);
    let (a, b) = (bytes[0] as f64, bytes[1] as f64);
    assert!((a / b - 1.0).abs() < 0.1, "{bytes:?}");
}

#[test]
fn large_reads_are_paid_for_in_later_rounds() {
    let tenants = tenants(&[&[0], &[1]]);
    let bytes = run(&mut filled(&tenants), 20_000, &tenants, |i| if i == 0 { 4 << 20 } else { 4 << 10 });
    let (a, b) = (bytes[0] as f64, bytes[1] as f64);
    assert!((a / b - 1.0).abs() < 0.1, "{bytes:?}");
}

#[test]
fn a_tenant_that_reads_little_waits_at_most_one_quantum_of_each_other() {
    let tenants = tenants(&[&[0, 1, 2], &[10, 11], &[20]]);
    let mut ready = filled(&tenants);
    let mut since = 0;
    for _ in 0..2_000 {
        let (entry, budget) = ready.pop().unwrap();
        let owner = tenants.iter().position(|(_, s)| s.iter().any(|i| stream(*i) == entry)).unwrap();
        let read = if owner == 2 { 100 } else { budget.min(64 << 10) };
        since = if owner == 2 { 0 } else { since + read };
        assert!(since <= 2 * (QUANTUM_BYTES + (64 << 10)), "{since} bytes of others in between");
        ready.charge(Some(&tenants[owner].0), read);
        ready.push(Some(&tenants[owner].0), entry);
    }
}

#[test]
fn a_stream_is_queued_once_and_first_come_first_served_inside_its_tenant() {
    let tenants = tenants(&[&[3, 1, 2]]);
    let mut ready = filled(&tenants);
    ready.push(Some(&tenants[0].0), stream(1));
    let order: Vec<u64> = std::iter::from_fn(|| ready.pop()).map(|(e, _)| e.1.index()).collect();
    assert_eq!(order, [3, 1, 2]);
    assert!(ready.is_empty());
}

#[test]
fn streams_without_a_tenant_are_a_tenant_of_their_own() {
    let mut ready = Ready::default();
    ready.push(None, stream(0));
    ready.charge(None, 10);
    assert_eq!(ready.pop().map(|(e, _)| e), Some(stream(0)));
    assert_eq!(ready.pop(), None);
}
