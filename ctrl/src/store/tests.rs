use std::path::Path;

use super::*;

fn key(text: &str) -> Key {
    text.as_bytes().to_vec()
}

fn put(text: &str, value: &str) -> (Key, Option<Arc<[u8]>>) {
    (key(text), Some(value.as_bytes().into()))
}

fn write(store: &dyn Store, writes: Vec<(Key, Option<Arc<[u8]>>)>) {
    store.commit(&Batch { expect: Vec::new(), writes }).expect("it has no condition");
}

fn under(store: &dyn Store, prefix: &str) -> Vec<(String, String)> {
    let rows = store.read(&[Want::under(prefix.as_bytes(), usize::MAX)]).unwrap().remove(0);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    rows.iter().map(|(key, row)| (text(key), text(&row.value))).collect()
}

fn version(store: &dyn Store, of: &str) -> Option<u64> {
    store.read(&[Want::one(key(of))]).unwrap().remove(0).first().map(|(_, row)| row.version)
}

fn behaves_as_a_store(store: &dyn Store) {
    write(store, vec![put("a/1", "one"), put("a/2", "two"), put("b/1", "else")]);
    assert_eq!(under(store, "a/"), [("a/1".into(), "one".into()), ("a/2".into(), "two".into())]);
    let first = version(store, "a/1").unwrap();

    // Conditions: all hold, or nothing is written.
    let conflicting = Batch {
        expect: vec![(key("a/1"), Expect::Version(first)), (key("a/2"), Expect::Absent)],
        writes: vec![put("a/1", "changed")],
    };
    assert!(matches!(store.commit(&conflicting), Err(CommitError::Conflict)));
    assert_eq!(version(store, "a/1"), Some(first));
    let holding = Batch {
        expect: vec![(key("a/1"), Expect::Version(first)), (key("c/1"), Expect::Absent)],
        writes: vec![put("a/1", "changed"), (key("a/2"), None)],
    };
    store.commit(&holding).unwrap();
    assert_eq!(under(store, "a/"), [("a/1".into(), "changed".into())]);
    assert!(version(store, "a/1").unwrap() > first);

    // A version is not given twice, also when the row went away meanwhile.
    let second = version(store, "a/1").unwrap();
    write(store, vec![(key("a/1"), None)]);
    write(store, vec![put("a/1", "again")]);
    assert!(version(store, "a/1").unwrap() > second + 1);

    // Ranges: limits, and a prefix that is another's prefix.
    write(store, vec![put("n\0a\0x", ""), put("n\0a-b\0y", ""), put("n\0b\0z", "")]);
    assert_eq!(under(store, "n\0a\0").len(), 1);
    let want = Want { from: key("n\0a\0x\0"), until: past(b"n\0"), limit: 1 };
    let empty = Want { from: key("z"), until: key("a"), limit: 9 };
    let found = store.read(&[want, empty]).unwrap();
    assert_eq!(found[0][0].0, key("n\0a-b\0y"));
    assert_eq!((found[0].len(), found[1].len()), (1, 0));
}

#[test]
fn the_memory_store_behaves_as_a_store() {
    behaves_as_a_store(&MemoryStore::default());
}

#[test]
fn the_sled_store_behaves_as_a_store() {
    let folder = tempfile::tempdir().unwrap();
    behaves_as_a_store(&SledStore::open(folder.path()).unwrap());
}

#[test]
fn a_reopened_store_holds_every_row_and_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let store = SledStore::open(folder.path()).unwrap();
    let large = "x".repeat(3 << 20);
    write(&store, vec![put("a", "1"), put("large", &large)]);
    write(&store, vec![put("b", "2"), put("c", "3")]);
    write(&store, vec![(key("c"), None)]);
    let (a, b) = (version(&store, "a"), version(&store, "b"));
    drop(store);
    let store = SledStore::open(folder.path()).unwrap();
    assert_eq!((version(&store, "a"), version(&store, "b"), version(&store, "c")), (a, b, None));
    assert_eq!(under(&store, "large")[0].1.len(), large.len());
    write(&store, vec![put("d", "4")]);
    assert!(version(&store, "d") > b.map(|b| b + 1), "the deletion took a version too");
}

#[test]
fn two_processes_cannot_open_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let _first = SledStore::open(folder.path()).unwrap();
    assert!(matches!(SledStore::open(folder.path()), Err(StoreError::Open(_))));
}

#[test]
fn the_folder_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/store");
    let _store = SledStore::open(&path).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

fn change_raw(folder: &Path, change: impl FnOnce(&::sled::Db)) {
    let db = ::sled::open(folder).unwrap();
    change(&db);
    db.flush().unwrap();
}

#[test]
fn a_newer_format_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    drop(SledStore::open(folder.path()).unwrap());
    change_raw(folder.path(), |db| {
        db.insert(b"\0format", &2_u32.to_be_bytes()).unwrap();
    });
    let refused = SledStore::open(folder.path()).err();
    assert!(matches!(refused, Some(StoreError::NewerFormat { found: 2, known: 1 })), "{refused:?}");
    change_raw(folder.path(), |db| {
        assert_eq!(db.get(b"\0format").unwrap().unwrap().as_ref(), 2_u32.to_be_bytes());
    });
}

type Damage = fn(&::sled::Db);

#[test]
fn rows_that_cannot_be_ours_are_damage() {
    let damages: [(&str, Damage); 5] = [
        ("no form", |db| drop(db.insert(b"row", b"x").unwrap())),
        ("newer than the newest commit", |db| {
            let mut row = vec![1];
            row.extend_from_slice(&99_u64.to_be_bytes());
            db.insert(b"row", row).unwrap();
        }),
        ("no commit number", |db| drop(db.remove(b"\0commit").unwrap())),
        ("no format", |db| drop(db.remove(b"\0format").unwrap())),
        ("short format", |db| drop(db.insert(b"\0format", b"\0").unwrap())),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        drop(SledStore::open(folder.path()).unwrap());
        change_raw(folder.path(), damage);
        let refused = SledStore::open(folder.path()).err();
        assert!(matches!(refused, Some(StoreError::Damaged(_))), "{what}: {refused:?}");
    }
}
