//! What a key of a cache costs in memory, counted by the allocator. One test, so that no other thread allocates beside it.

use std::alloc::System;

use bytes::Bytes;
use felix_shardcore::projection::cache::expiry::Expiry;
use felix_shardcore::projection::cache::{CacheCore, Condition, ENTRY_BYTES, Found, Keeping, Put};
use felix_shardcore::projection::counter::{COUNTER_BYTES, CounterCore, Keeping as CounterKeeping};
use felix_wire::id::Offset;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const KEYS: u64 = 500_000;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"customer-________-______";
    key[9..17].copy_from_slice(&number.to_be_bytes());
    key
}

fn put(core: &mut CacheCore, number: u64) {
    let put = core.put(key(number), Bytes::from_static(b"value"), Expiry::NEVER, Condition::Always, 0);
    let Ok(Put::Append(draft)) = put else { panic!("{put:?}") };
    core.claimed(draft, Offset(number));
    core.settle(Offset(number + 1), 0);
}

#[test]
fn a_key_costs_what_is_stated_and_a_get_allocates_nothing() {
    let region = Region::new(ALLOCATOR);
    let mut core = CacheCore::new(Keeping::Logged { hot_bytes_max: 100_000 }, Offset(0));
    (0..KEYS).for_each(|number| put(&mut core, number));
    let change = region.change();
    let each = (change.bytes_allocated - change.bytes_deallocated) / KEYS as usize;
    println!("cache: {each} bytes a key of 24 bytes; stated {}", ENTRY_BYTES + 24);
    assert!(each <= ENTRY_BYTES + 24, "{each}");

    let region = Region::new(ALLOCATOR);
    let mut found = 0;
    for number in (0..KEYS * 2).step_by(97) {
        found += usize::from(!matches!(core.get(&key(number), 0), Found::Absent));
    }
    found += usize::from(matches!(core.get(&key(KEYS - 1), 0), Found::Here { .. }));
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0));
    assert_eq!(found, KEYS.div_ceil(97) as usize + 1);
    drop(core);

    let region = Region::new(ALLOCATOR);
    let mut counters = CounterCore::new(CounterKeeping::Logged, Offset(0));
    for number in 0..KEYS {
        let draft = counters.add(&key(number), 1).expect("it fits");
        counters.claimed(draft, Offset(number));
        counters.settle(Offset(number + 1));
    }
    let change = region.change();
    let each = (change.bytes_allocated - change.bytes_deallocated) / KEYS as usize;
    println!("counter: {each} bytes a key of 24 bytes; stated {}", COUNTER_BYTES + 24);
    assert!(each <= COUNTER_BYTES + 24, "{each}");
    let region = Region::new(ALLOCATOR);
    assert_eq!((counters.get(&key(7)), counters.get(&key(KEYS))), (Some(1), None));
    assert_eq!(region.change().allocations, 0);
}
