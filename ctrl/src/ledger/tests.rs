use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::feed::{changes, snapshot};
use crate::store::{MemoryStore, SledStore};

fn ledger(retention: u64) -> Arc<Ledger> {
    Arc::new(Ledger::open(Arc::new(MemoryStore::default()), retention, 1_000).unwrap())
}

async fn append(ledger: &Arc<Ledger>, count: u64) {
    ledger
        .write(move |tx| {
            for n in 0..count {
                tx.append(Feed::Streams, |seq| (seq, n))?;
            }
            Ok::<_, WriteError>(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_refused_decision_writes_nothing() {
    let ledger = ledger(10);
    let key = b"k\0a".to_vec();
    let written = ledger
        .write(move |tx| {
            tx.put(key.clone(), &1);
            tx.append(Feed::Streams, |seq| seq).map_err(WriteError::Store)?;
            Err::<(), _>(WriteError::Busy)
        })
        .await;
    assert!(matches!(written, Err(WriteError::Busy)));
    assert_eq!(ledger.get::<u32>(b"k\0a".to_vec()).unwrap(), None);
    assert_eq!(*ledger.watch(Feed::Streams).borrow(), 1_000);
}

#[tokio::test]
async fn a_decision_sees_its_own_writes_and_is_whole() {
    let ledger = ledger(10);
    let seen = ledger
        .write(|tx| {
            let (a, b) = (b"k\0a".to_vec(), b"k\0b".to_vec());
            tx.put(a.clone(), &1_u32);
            tx.put(b.clone(), &2_u32);
            tx.delete(b.clone());
            Ok::<_, WriteError>((tx.get::<u32>(&a)?, tx.get::<u32>(&b)?))
        })
        .await
        .unwrap();
    assert_eq!(seen, (Some(1), None));
    assert_eq!(ledger.list::<u32>(b"k\0").unwrap(), [1]);
}

/// A store in which somebody else writes the same row just before our first commits.
struct Contended {
    inner: MemoryStore,
    interruptions: AtomicU32,
}

impl Store for Contended {
    fn read(&self, wants: &[Want]) -> Result<Vec<Vec<(Key, Row)>>, StoreError> {
        self.inner.read(wants)
    }

    fn commit(&self, batch: &Batch) -> Result<(), CommitError> {
        let ours = batch.writes.iter().any(|(key, _)| key == b"k\0n");
        let left = self.interruptions.load(Ordering::Relaxed);
        if ours && left > 0 {
            self.interruptions.store(left - 1, Ordering::Relaxed);
            let writes = vec![(b"k\0n".to_vec(), Some(b"40".as_slice().into()))];
            self.inner.commit(&Batch { expect: Vec::new(), writes })?;
        }
        self.inner.commit(batch)
    }
}

async fn add_one(interruptions: u32) -> Result<u64, WriteError> {
    let store = Contended { inner: MemoryStore::default(), interruptions: interruptions.into() };
    let ledger = Arc::new(Ledger::open(Arc::new(store), 10, 0).unwrap());
    ledger
        .write(|tx| {
            let n = tx.get::<u64>(&b"k\0n".to_vec())?.unwrap_or(0) + 1;
            tx.put(b"k\0n".to_vec(), &n);
            Ok::<_, WriteError>(n)
        })
        .await
}

#[tokio::test]
async fn a_decision_on_rows_that_changed_is_made_anew() {
    assert_eq!(add_one(0).await.unwrap(), 1);
    assert_eq!(add_one(2).await.unwrap(), 41);
    assert!(matches!(add_one(1_000).await, Err(WriteError::Busy)));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_cannot_get_its_turn_gives_up() {
    let ledger = ledger(10);
    let _turn = Arc::clone(&ledger.turn).lock_owned().await;
    let written = ledger
        .write(|tx| {
            tx.put(b"k\0a".to_vec(), &1);
            Ok::<_, WriteError>(())
        })
        .await;
    assert!(matches!(written, Err(WriteError::Busy)));
    assert_eq!(ledger.get::<u32>(b"k\0a".to_vec()).unwrap(), None);
}

#[tokio::test]
async fn a_follower_sees_every_change_once_or_a_sign() {
    let ledger = ledger(5);
    let start = snapshot::<u64>(&ledger, Feed::Streams).unwrap().next_seq;
    assert_eq!(start, 1_000);
    append(&ledger, 4).await;
    let page = changes::<(u64, u64)>(&ledger, Feed::Streams, start, 3).unwrap();
    assert_eq!(
        (page.items.as_slice(), page.next_seq),
        ([(1_000, 0), (1_001, 1), (1_002, 2)].as_slice(), 1_003)
    );
    let page = changes::<(u64, u64)>(&ledger, Feed::Streams, page.next_seq, 3).unwrap();
    assert_eq!((page.items.as_slice(), page.next_seq), ([(1_003, 3)].as_slice(), 1_004));
    let page = changes::<(u64, u64)>(&ledger, Feed::Streams, page.next_seq, 3).unwrap();
    assert_eq!((page.items.len(), page.next_seq), (0, 1_004));

    // Past the bound: the first sequence is greater than asked for.
    append(&ledger, 4).await;
    let page = changes::<(u64, u64)>(&ledger, Feed::Streams, start, 100).unwrap();
    assert_eq!((page.items.first().unwrap().0, page.items.len(), page.next_seq), (1_003, 5, 1_008));
    // A cursor from the future: the next sequence is smaller.
    let page = changes::<(u64, u64)>(&ledger, Feed::Streams, 5_000, 100).unwrap();
    assert_eq!((page.items.len(), page.next_seq), (0, 1_008));
    // Other feeds do not move.
    assert_eq!(snapshot::<u64>(&ledger, Feed::Caches).unwrap().next_seq, 1_000);
}

#[tokio::test]
async fn a_lowered_bound_drops_old_changes_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let open = |retention| {
        let store = Arc::new(SledStore::open(folder.path()).unwrap());
        Arc::new(Ledger::open(store, retention, 7).unwrap())
    };
    let before = open(100);
    append(&before, 20).await;
    drop(before);
    let after = open(4);
    let page = changes::<(u64, u64)>(&after, Feed::Streams, 7, 100).unwrap();
    assert_eq!((page.items.len(), page.items[0].0, page.next_seq), (4, 23, 27));
}

async fn take(ledger: &Arc<Ledger>) -> Result<u64, WriteError> {
    ledger
        .write(|tx| {
            let next = tx.counter(Counter::Incarnation)?;
            tx.raise(Counter::Incarnation, next + 1)?;
            Ok::<_, WriteError>(next)
        })
        .await
}

#[tokio::test]
async fn counters_rise_over_a_restart_and_over_a_store_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let open = |birth| {
        let store = Arc::new(SledStore::open(folder.path()).unwrap());
        Arc::new(Ledger::open(store, 10, birth).unwrap())
    };
    let first = open(500);
    assert_eq!((take(&first).await.unwrap(), take(&first).await.unwrap()), (500, 501));
    drop(first);
    // A later birth does not matter to a store that has its counters.
    let second = open(900);
    assert_eq!(take(&second).await.unwrap(), 502);
    let thrown_away = Arc::new(Ledger::open(Arc::new(MemoryStore::default()), 10, 900).unwrap());
    assert_eq!(take(&thrown_away).await.unwrap(), 900);
}

async fn finished(task: tokio::task::JoinHandle<()>) {
    tokio::time::timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
}

#[tokio::test]
async fn waiters_wake_for_a_change_for_the_time_limit_and_for_draining() {
    let ledger = ledger(10);
    let drain = tokio::sync::watch::Sender::new(false);
    let wait = |since, millis| {
        let (ledger, drain) = (Arc::clone(&ledger), drain.subscribe());
        tokio::spawn(async move {
            feed::wait_past(&ledger, Feed::Streams, since, Duration::from_millis(millis), drain).await;
        })
    };
    finished(wait(999, 20_000)).await;
    finished(wait(1_000, 1)).await;
    let changed = wait(1_000, 20_000);
    append(&ledger, 1).await;
    finished(changed).await;
    let drained = wait(1_001, 20_000);
    drain.send_replace(true);
    finished(drained).await;
}
