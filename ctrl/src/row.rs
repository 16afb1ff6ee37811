//! Keys of the rows: which family a row is of and where it stands in a listing.
//! Invariants: parts are joined by a zero byte, which no valid name holds, so byte order is the order of names part by
//! part, and no name given in a request can reach the row of another resource.

use felix_wire::control::{AssignmentKey, ResourceKind};

use crate::feed::Feed;
use crate::store::Key;

const SEPARATOR: u8 = 0;

pub fn tenants() -> Key {
    prefix(&["tenant"])
}

pub fn tenant(tenant: &str) -> Key {
    key(&["tenant", tenant])
}

/// Namespaces of one tenant.
pub fn namespaces_of(tenant: &str) -> Key {
    prefix(&["namespace", tenant])
}

pub fn namespaces() -> Key {
    prefix(&["namespace"])
}

pub fn namespace(tenant: &str, namespace: &str) -> Key {
    key(&["namespace", tenant, namespace])
}

pub fn streams() -> Key {
    prefix(&["stream"])
}

/// Streams of one tenant.
pub fn streams_of(tenant: &str) -> Key {
    prefix(&["stream", tenant])
}

/// Streams of one namespace.
pub fn streams_in(tenant: &str, namespace: &str) -> Key {
    prefix(&["stream", tenant, namespace])
}

pub fn stream(tenant: &str, namespace: &str, stream: &str) -> Key {
    key(&["stream", tenant, namespace, stream])
}

pub fn caches() -> Key {
    prefix(&["cache"])
}

/// Caches of one tenant.
pub fn caches_of(tenant: &str) -> Key {
    prefix(&["cache", tenant])
}

/// Caches of one namespace.
pub fn caches_in(tenant: &str, namespace: &str) -> Key {
    prefix(&["cache", tenant, namespace])
}

pub fn cache(tenant: &str, namespace: &str, cache: &str) -> Key {
    key(&["cache", tenant, namespace, cache])
}

pub fn nodes() -> Key {
    prefix(&["node"])
}

pub fn node(node_id: &str) -> Key {
    key(&["node", node_id])
}

pub fn assignments() -> Key {
    prefix(&["assignment"])
}

/// Assignments of one stream or cache.
pub fn assignments_of(tenant: &str, namespace: &str, kind: ResourceKind, name: &str) -> Key {
    prefix(&["assignment", tenant, namespace, kind_part(kind), name])
}

pub fn assignment(of: &AssignmentKey) -> Key {
    let mut key = assignments_of(&of.tenant_id, &of.namespace, of.kind, &of.stream);
    key.extend_from_slice(&of.shard.to_be_bytes());
    key
}

pub fn signing_keys(tenant: &str) -> Key {
    key(&["signing-keys", tenant])
}

/// What a tenant was bootstrapped with.
pub fn bootstrap(tenant: &str) -> Key {
    key(&["bootstrap", tenant])
}

pub fn counter(name: &str) -> Key {
    key(&["counter", name])
}

/// Changes of one feed.
pub fn changes(feed: Feed) -> Key {
    prefix(&["change", feed.name()])
}

pub fn change(feed: Feed, seq: u64) -> Key {
    let mut key = changes(feed);
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

fn kind_part(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Cache => "cache",
        ResourceKind::Stream => "stream",
    }
}

fn key(parts: &[&str]) -> Key {
    parts.join("\0").into_bytes()
}

fn prefix(parts: &[&str]) -> Key {
    let mut key = key(parts);
    key.push(SEPARATOR);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_listed_in_the_order_of_names() {
        let at = |ns: &str, kind, name: &str, shard| {
            let (tenant_id, namespace, stream) = ("t".to_owned(), ns.to_owned(), name.to_owned());
            assignment(&AssignmentKey { tenant_id, namespace, kind, stream, shard })
        };
        let ordered = [
            at("a", ResourceKind::Cache, "z", 0),
            at("a", ResourceKind::Stream, "a", 2),
            at("a", ResourceKind::Stream, "a", 300),
            at("a", ResourceKind::Stream, "a-b", 0),
            at("a-b", ResourceKind::Cache, "a", 0),
        ];
        assert!(ordered.is_sorted());
        assert!(ordered[1].starts_with(&assignments_of("t", "a", ResourceKind::Stream, "a")));
        assert!(!ordered[3].starts_with(&assignments_of("t", "a", ResourceKind::Stream, "a")));
    }

    #[test]
    fn a_name_with_a_zero_byte_reaches_no_row_of_another_resource() {
        let real = stream("t", "ns", "s");
        assert_ne!(stream("t", "ns\0s", "x"), real);
        assert!(!real.starts_with(&streams_in("t", "ns\0s")));
        assert!(!namespace("t", "ns").starts_with(&streams()));
    }
}
