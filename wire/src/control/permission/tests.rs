use super::*;

#[test]
fn every_form_of_the_language_survives_a_round_trip() {
    for text in [
        "tenant.manage:tenant:t",
        "ns.manage:namespace:t/*",
        "ns.manage:namespace:t/ns",
        "stream.publish:stream:t/ns/s",
        "stream.publish:stream:t/ns/*",
        "stream.publish:stream:t/*/*",
        "cache.manage:cache:t/ns/c",
        "cache.manage:cache:t/ns/*",
        "cache.manage:cache:t/*/*",
        "cache.read:cache:t/ns/c/key",
        "cache.read:cache:t/ns/c/user:1/name",
        "cache.write:cache:t/ns/c/user:*",
        "group.consume:group:t/ns/s/g",
        "group.consume:group:t/ns/s/*",
        "group.consume:group:t/ns/*/*",
        "group.consume:group:t/*/*/*",
        "node.manage:node:broker-1",
        "node.view:cluster:*",
    ] {
        let parsed = Permission::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(parsed.to_string(), text);
    }
    for action in Action::ALL {
        assert_eq!(Action::parse(action.as_str()), Ok(action));
    }
}

#[test]
fn forms_outside_the_language_are_refused() {
    for text in [
        "",
        "stream.publish",
        "stream.publish:",
        "stream.publish:stream",
        "stream.publish:stream:",
        "stream.publish:stream:t",
        "stream.publish:stream:t/ns",
        "stream.publish:stream:t/ns/s/x",
        "stream.publish:stream:t//s",
        "stream.publish:stream:t/ns/",
        "stream.publish:stream:*/ns/s",
        "stream.publish:stream:*/*/*",
        "stream.publish:stream:t/*/s",
        "stream.publish:stream:t/ns/s*",
        "stream.publish:stream:t/ns/a:b",
        "stream.publish:queue:t/ns/s",
        "tenant.manage:tenant:*",
        "tenant.manage:tenant:t/x",
        "ns.manage:namespace:t",
        "cache.read:cache:t/ns/c/",
        "cache.read:cache:t/ns/c/*",
        "cache.read:cache:t/ns/c/a*b",
        "cache.read:cache:t/ns/c/a**",
        "cache.read:cache:t/ns/*/k",
        "cache.read:cache:t/*/*/k",
        "cache.manage:cache:t/ns/c/k",
        "stream.publish:cache:t/ns/c/k",
        "group.consume:group:t/ns/s",
        "group.consume:group:t/ns/*/g",
        "group.consume:group:t/*/s/*",
        "node.view:node:*",
        "node.view:cluster:x",
        "node.view:cluster:",
    ] {
        assert!(Permission::parse(text).is_err(), "{text} must be refused");
    }
    assert_eq!(Permission::parse("stream.pub:stream:t/n/s"), Err(PermissionError::Action));
    assert!(PermissionError::Action.to_string().contains("invalid action"));
}

#[test]
fn a_single_rule_allows_its_own_action_only() {
    let rule = Permission::parse("node.view:cluster:*").unwrap();
    assert!(rule.allows(Action::NodeView, Object::Cluster));
    assert!(!rule.allows(Action::NodeManage, Object::Cluster));
    assert!(!rule.allows(Action::NodeView, Object::Node { node_id: "n" }));
}

#[test]
fn minting_adds_what_tenant_and_namespace_rights_imply() {
    let expand = |text: &str| -> Vec<String> {
        let given = vec![Permission::parse(text).unwrap()];
        expand_implied(&given).iter().map(ToString::to_string).collect()
    };
    let inside = |scope: &str| {
        [
            format!("stream.manage:stream:{scope}/*"),
            format!("stream.publish:stream:{scope}/*"),
            format!("stream.subscribe:stream:{scope}/*"),
            format!("cache.manage:cache:{scope}/*"),
            format!("cache.read:cache:{scope}/*"),
            format!("cache.write:cache:{scope}/*"),
        ]
    };
    let mut tenant = vec!["tenant.manage:tenant:t".to_owned(), "ns.manage:namespace:t/*".to_owned()];
    tenant.extend(inside("t/*"));
    assert_eq!(expand("tenant.manage:tenant:t"), tenant);
    let mut namespace = vec!["ns.manage:namespace:t/x".to_owned()];
    namespace.extend(inside("t/x"));
    assert_eq!(expand("ns.manage:namespace:t/x"), namespace);
    for alone in ["tenant.manage:cluster:*", "stream.manage:stream:t/n/s", "node.manage:cluster:*"] {
        assert_eq!(expand(alone), [alone]);
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic_and_what_parses_prints_back(text in ".{0,40}", kind in 0_usize..8) {
        let kinds = ["tenant", "namespace", "stream", "cache", "group", "node", "cluster", ""];
        let text = format!("cache.read:{}:{text}", kinds[kind]);
        if let Ok(parsed) = Permission::parse(&text) {
            proptest::prop_assert_eq!(parsed.to_string(), text);
        }
    }
}
