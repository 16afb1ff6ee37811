use super::*;

fn grants(perms: &[&str]) -> Grants {
    Grants::from_permissions(
        perms.iter().map(|p| Permission::parse(p).unwrap_or_else(|e| panic!("{p}: {e}"))),
    )
}

fn claims(perms: &[&str]) -> Claims {
    Claims {
        iss: "felix-auth".into(),
        aud: "felix-broker".into(),
        sub: "p".into(),
        tid: "t".into(),
        iat: 0,
        exp: 1,
        nbf: None,
        perms: perms.iter().map(|p| (*p).to_owned()).collect(),
        jti: None,
        act: None,
        may_act: None,
    }
}

#[test]
fn stream_rules_match_as_the_table_says() {
    let table = [
        ("stream.publish:stream:t/ns/s", "t", "ns", "s", true),
        ("stream.publish:stream:t/ns/s", "t", "ns", "S", false),
        ("stream.publish:stream:t/ns/s", "t", "ns", "s2", false),
        ("stream.publish:stream:t/ns/s", "t", "n", "s", false),
        ("stream.publish:stream:t/ns/s", "u", "ns", "s", false),
        ("stream.publish:stream:t/ns/*", "t", "ns", "anything", true),
        ("stream.publish:stream:t/ns/*", "t", "other", "s", false),
        ("stream.publish:stream:t/*/*", "t", "other", "s", true),
        ("stream.publish:stream:t/*/*", "u", "ns", "s", false),
        ("stream.subscribe:stream:t/*/*", "t", "ns", "s", false),
        ("stream.manage:stream:t/*/*", "t", "ns", "s", false),
        ("tenant.manage:tenant:t", "t", "ns", "s", false),
        ("stream.publish:cluster:*", "t", "ns", "s", false),
        ("stream.publish:cache:t/*/*", "t", "ns", "s", false),
    ];
    for (perm, tenant, namespace, stream, expected) in table {
        let got = grants(&[perm]).allows_stream(Action::StreamPublish, tenant, namespace, stream);
        assert_eq!(got, expected, "{perm} on {tenant}/{namespace}/{stream}");
    }
    assert!(!grants(&[]).allows_stream(Action::StreamPublish, "t", "ns", "s"));
}

#[test]
fn cache_keys_match_by_whole_cache_key_or_plain_prefix() {
    let table: [(&str, &[u8], bool); 10] = [
        ("cache.read:cache:t/ns/c", b"k", true),
        ("cache.read:cache:t/ns/*", b"k", true),
        ("cache.read:cache:t/ns/c/k", b"k", true),
        ("cache.read:cache:t/ns/c/k", b"k2", false),
        ("cache.read:cache:t/ns/c/k*", b"k2", true),
        ("cache.read:cache:t/ns/c/k*", b"k", true),
        ("cache.read:cache:t/ns/c/k*", b"x", false),
        ("cache.read:cache:t/ns/c/a/b*", b"a/bc", true),
        ("cache.read:cache:t/ns/c/k*", b"k\xff", true),
        ("cache.write:cache:t/ns/c/k*", b"k", false),
    ];
    for (perm, key, expected) in table {
        let got = grants(&[perm]).allows_cache_key(Action::CacheRead, "t", "ns", "c", key);
        assert_eq!(got, expected, "{perm} on {key:?}");
    }
    let keyed = grants(&["cache.read:cache:t/ns/c/k*"]);
    assert!(!keyed.allows_cache(Action::CacheRead, "t", "ns", "c"), "a key rule is not the whole cache");
    assert!(!keyed.allows_cache_key(Action::CacheRead, "t", "ns", "d", b"k"));
    assert!(grants(&["cache.read:cache:t/*/*"]).allows_cache(Action::CacheRead, "t", "x", "c"));
}

#[test]
fn a_prefix_is_allowed_when_a_rule_covers_every_key_that_begins_so() {
    let table: [(&str, &[u8], bool); 10] = [
        ("cache.read:cache:t/ns/c", b"", true),
        ("cache.read:cache:t/ns/*", b"k", true),
        ("cache.read:cache:t/ns/c/k", b"k", false),
        ("cache.read:cache:t/ns/c/k", b"", false),
        ("cache.read:cache:t/ns/c/k*", b"k", true),
        ("cache.read:cache:t/ns/c/k*", b"kx", true),
        ("cache.read:cache:t/ns/c/kx*", b"k", false),
        ("cache.read:cache:t/ns/c/k*", b"", false),
        ("cache.write:cache:t/ns/c", b"k", false),
        ("cache.read:cache:t/ns/d", b"k", false),
    ];
    for (perm, prefix, expected) in table {
        let got = grants(&[perm]).allows_cache_prefix(Action::CacheRead, "t", "ns", "c", prefix);
        assert_eq!(got, expected, "{perm} on {prefix:?}");
    }
}

#[test]
fn group_rights_follow_from_stream_rights_until_a_group_is_named() {
    use Action::{GroupConsume, GroupManage};
    let on_stream = "stream.subscribe:stream:t/ns/s";
    let table: [(&[&str], Action, &str, bool); 14] = [
        (&[on_stream], GroupConsume, "g", true),
        (&[on_stream], GroupManage, "g", false),
        (&["group.consume:stream:t/ns/s"], GroupConsume, "g", true),
        (&["stream.manage:stream:t/ns/*"], GroupManage, "g", true),
        (&["stream.publish:stream:t/ns/s"], GroupConsume, "g", false),
        (&["group.consume:group:t/ns/s/g"], GroupConsume, "g", true),
        (&["group.consume:group:t/ns/s/g"], GroupConsume, "h", false),
        (&["group.consume:group:t/ns/s/g"], GroupManage, "g", false),
        (&[on_stream, "group.consume:group:t/ns/s/g"], GroupConsume, "g", true),
        (&[on_stream, "group.consume:group:t/ns/s/g"], GroupConsume, "h", false),
        (&[on_stream, "group.consume:group:t/ns/other/g"], GroupConsume, "h", true),
        (&[on_stream, "group.consume:group:t/ns/s/*"], GroupConsume, "h", true),
        (&[on_stream, "group.manage:group:t/ns/s/g"], GroupConsume, "h", true),
        (&["group.consume:group:t/*/*/*"], GroupConsume, "g", true),
    ];
    for (perms, action, group, expected) in table {
        let got = grants(perms).allows_group(action, "t", "ns", "s", group);
        assert_eq!(got, expected, "{perms:?} for {action} on {group}");
    }
    assert!(!grants(&[on_stream]).allows_group(Action::StreamSubscribe, "t", "ns", "s", "g"));
}

#[test]
fn the_cluster_and_nodes_are_islands() {
    let cluster = grants(&["tenant.manage:cluster:*", "node.manage:cluster:*"]);
    assert!(cluster.allows(Action::TenantManage, Object::Cluster));
    assert!(!cluster.allows(Action::TenantManage, Object::Tenant { tenant: "t" }));
    assert!(!cluster.allows(Action::NodeManage, Object::Node { node_id: "n" }));
    assert!(!cluster.allows(Action::NodeView, Object::Cluster));
    let tenant = grants(&["tenant.manage:tenant:t", "node.manage:node:n"]);
    assert!(!tenant.allows(Action::TenantManage, Object::Cluster));
    assert!(tenant.allows(Action::NodeManage, Object::Node { node_id: "n" }));
    assert!(!tenant.allows(Action::NodeManage, Object::Node { node_id: "m" }));
}

#[test]
fn holding_any_rule_of_a_family_is_seen() {
    let held = grants(&["stream.manage:stream:t/ns/s"]);
    assert!(held.holds_any(Action::StreamManage, ObjectKind::Stream));
    assert!(!held.holds_any(Action::StreamManage, ObjectKind::Cache));
    assert!(!held.holds_any(Action::StreamPublish, ObjectKind::Stream));
}

#[test]
fn a_token_with_one_bad_permission_is_refused_whole() {
    let good = "stream.publish:stream:t/ns/s";
    assert!(Grants::from_claims(&claims(&[good])).is_ok());
    let refused = |perms: &[&str]| Grants::from_claims(&claims(perms)).map(|_| ()).unwrap_err();
    assert_eq!(refused(&[good, "stream.fly:stream:t/ns/s"]), PermissionError::Action);
    assert_eq!(refused(&[good, "stream.publish:stream:u/ns/s"]), PermissionError::OtherTenant);
    assert!(matches!(refused(&[good, "stream.publish:stream:t/*/s"]), PermissionError::Object(_)));
    assert!(Grants::from_claims(&claims(&["node.view:cluster:*", "node.manage:node:n"])).is_ok());
}

#[test]
fn rules_on_one_object_are_merged() {
    let merged = grants(&["stream.publish:stream:t/n/s", "stream.subscribe:stream:t/n/s"]);
    assert_eq!(merged.rules.len(), 1);
    assert!(merged.allows_stream(Action::StreamPublish, "t", "n", "s"));
    assert!(merged.allows_stream(Action::StreamSubscribe, "t", "n", "s"));
}
