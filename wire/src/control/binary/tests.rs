use proptest::prelude::*;

use super::*;

fn node() -> impl Strategy<Value = String> {
    "[a-z0-9.-]{1,12}"
}

fn key() -> impl Strategy<Value = AssignmentKey> {
    let kind = prop_oneof![Just(ResourceKind::Stream), Just(ResourceKind::Cache)];
    ("[a-z]{1,9}", "\\PC{0,9}", kind, "[a-z]{0,200}", any::<u32>()).prop_map(
        |(tenant_id, namespace, kind, stream, shard)| AssignmentKey {
            tenant_id,
            namespace,
            kind,
            stream,
            shard,
        },
    )
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let state = prop_oneof![
        Just(AssignmentState::Assigning),
        Just(AssignmentState::Active),
        Just(AssignmentState::Draining)
    ];
    let reason = prop_oneof![
        Just(MoveReason::Drain),
        Just(MoveReason::Balance),
        Just(MoveReason::Operator),
        Just(MoveReason::Replace)
    ];
    let moving = (
        prop::option::of(node()),
        prop::option::of(node()),
        prop::option::of(any::<u64>()),
        prop::option::of(reason),
    );
    let numbers = (any::<u64>(), any::<u64>());
    let routing = prop::option::of(Just(KeyRouting::JumpHash));
    (key(), node(), prop::collection::vec(node(), 0..4), state, moving, numbers, routing).prop_map(
        |(key, leader, replicas, state, moving, (generation, incarnation), routing)| Assignment {
            key,
            leader,
            replicas,
            generation,
            state,
            successor: moving.0,
            joining: moving.1,
            move_started_at_millis: moving.2,
            move_reason: moving.3,
            routing,
            incarnation,
        },
    )
}

fn change() -> impl Strategy<Value = AssignmentChange> {
    let op = prop_oneof![
        Just(AssignmentOp::Assigned),
        Just(AssignmentOp::Updated),
        Just(AssignmentOp::Unassigned)
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (op, key(), prop::option::of(assignment()), numbers).prop_map(
        |(op, key, assignment, (seq, generation, incarnation))| AssignmentChange {
            seq,
            op,
            key,
            assignment,
            generation,
            incarnation,
        },
    )
}

fn json_round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_slice(&serde_json::to_vec(value).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn a_snapshot_survives_both_forms(items in prop::collection::vec(assignment(), 0..12), next_seq: u64) {
        let snapshot = Snapshot { items, next_seq };
        prop_assert_eq!(&decode_snapshot(&encode_snapshot(&snapshot)).unwrap(), &snapshot);
        prop_assert_eq!(&json_round_trip(&snapshot), &snapshot);
    }

    #[test]
    fn changes_survive_both_forms(items in prop::collection::vec(change(), 0..12), next_seq: u64) {
        let changes = Changes { items, next_seq };
        prop_assert_eq!(&decode_changes(&encode_changes(&changes)).unwrap(), &changes);
        prop_assert_eq!(&json_round_trip(&changes), &changes);
    }

    #[test]
    fn damaged_buffers_never_panic(
        items in prop::collection::vec(change(), 0..4),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode_changes(&Changes { items, next_seq: 1 });
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        let _ = decode_changes(&bytes);
        let _ = decode_snapshot(&bytes);
        let _ = decode_changes(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn arbitrary_bytes_are_an_error_or_a_document(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let mut named = bytes.clone();
        named.splice(0..0, [8, 0, 0, 0, b'F', b'X', b'A', b'S']);
        for input in [bytes, named] {
            if let Ok(changes) = decode_changes(&input) {
                prop_assert!(changes.items.len() <= input.len());
            }
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let key = AssignmentKey {
        tenant_id: "t".into(),
        namespace: "n".into(),
        kind: ResourceKind::Stream,
        stream: "s".into(),
        shard: 3,
    };
    let item = AssignmentChange {
        seq: 7,
        op: AssignmentOp::Unassigned,
        key,
        assignment: None,
        generation: 2,
        incarnation: 1,
    };
    let bytes = encode_changes(&Changes { items: vec![item], next_seq: 8 });
    // The buffer ends in up to 7 bytes of padding, which carry nothing.
    for length in 0..bytes.len() - 7 {
        assert!(decode_changes(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
    assert_eq!(decode_snapshot(&bytes), Err(BinaryError::OtherBody("changes")));
}

#[test]
fn one_large_item_named_many_times_is_refused() {
    let mut b = FlatBufferBuilder::new();
    let assignment = Assignment {
        key: AssignmentKey {
            tenant_id: "t".into(),
            namespace: "n".into(),
            kind: ResourceKind::Stream,
            stream: "s".repeat(10_000),
            shard: 0,
        },
        leader: "l".into(),
        replicas: Vec::new(),
        generation: 1,
        state: AssignmentState::Active,
        successor: None,
        joining: None,
        move_started_at_millis: None,
        move_reason: None,
        routing: None,
        incarnation: 1,
    };
    let item = put_assignment(&mut b, &assignment);
    let items = Some(b.create_vector(&[item; 1_000]));
    let body = fb::Snapshot::create(&mut b, &fb::SnapshotArgs { next_seq: 0, items });
    let bytes = finish(b, fb::Body::Snapshot, body.as_union_value());
    assert!(matches!(decode_snapshot(&bytes), Err(BinaryError::Invalid(_))));
}
