//! The records of caches, counters, groups and commits are what `docs/log-format.md` shows.

use std::path::Path;

use bytes::Bytes;
use felix_shardcore::projection::cache::expiry::Expiry;
use felix_shardcore::projection::cache::record::CacheRecord;
use felix_shardcore::projection::commit::record::{CommitRecord, StateChange};
use felix_shardcore::projection::counter::record::CounterRecord;
use felix_shardcore::projection::group::record::{self, Change};

/// The bytes of the examples of the page, in its order; the first is a batch.
fn examples() -> Vec<Bytes> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/log-format.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks = page.split("```hex").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let byte = |text: &str| u8::from_str_radix(text, 16).expect("two hexadecimal digits");
    blocks.map(|block| block.split_whitespace().map(byte).collect()).collect()
}

#[test]
fn the_examples_of_the_page_are_the_records_that_it_says() {
    let examples = examples();
    let [_, cache, counter, group, commit] = examples.as_slice() else { panic!("five examples") };
    let put =
        CacheRecord::Put { key: b"felix", value: b"log", expiry: Expiry::from_millis(1_700_000_000_000) };
    let mut bytes = Vec::new();
    put.encode(&mut bytes);
    assert_eq!((CacheRecord::decode(cache), &bytes), (Ok(put), &cache.to_vec()));

    let add = CounterRecord::Add { key: b"felix", delta: -1, sum: 41 };
    let mut bytes = Vec::new();
    add.encode(&mut bytes);
    assert_eq!((CounterRecord::decode(counter), &bytes), (Ok(add), &counter.to_vec()));

    let changes = vec![Change::Done { base: 41, count: 2 }, Change::Attempts { at: 43, attempts: 2 }];
    let mut bytes = Vec::new();
    record::encode("workers", &changes, &mut bytes);
    assert_eq!((record::decode(group), &bytes), (Ok(("workers", changes)), &group.to_vec()));

    let changes =
        vec![StateChange::Put { key: b"state", value: b"open" }, StateChange::Delete { key: b"cart" }];
    let written = CommitRecord { event: b"paid", changes };
    assert_eq!(written.encode(1 << 20).as_ref(), Ok(commit));
    assert_eq!(CommitRecord::decode(commit), Ok(written));
}
