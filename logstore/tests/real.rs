//! The engine on the real disk of the machine that runs the tests, below the target folder.

mod machine;

use std::time::Duration;

use felix_logstore::engine::Event;
use felix_logstore::log::LogConfig;
use felix_wire::id::Offset;
use machine::*;

/// Record `number`: its length follows from it, and its bytes too.
fn record(number: usize) -> Vec<u8> {
    let len = [64, 700, 5_000, 90_000][number % 4] + number % 61;
    (0..len).map(|at| (at * 31 + number) as u8).collect()
}

#[test]
fn a_log_on_a_real_disk_is_whole_after_a_stop_and_after_none() {
    let dir = Dir::new("whole");
    let records: Vec<Vec<u8>> = (0..400).map(record).collect();
    for round in 0..4 {
        let (known, new) = records.split_at(round * 100);
        let (known, new) = (known.to_vec(), new[..100].to_vec());
        on_core(&dir, move |mut core| async move {
            let (mut engine, _) = core.engine().await;
            let log = match engine.find(KEY) {
                Some(log) => log,
                None => core.create(&mut engine).await,
            };
            assert!(core.read_all(&mut engine, log).await == known, "round {round}");
            core.publish(&mut engine, log, &new, [1, 8][round % 2]).await;
            if round % 2 == 0 {
                engine.close();
                core.until(&mut engine, |_, events| {
                    events.iter().any(|event| matches!(event, Event::Closed))
                })
                .await;
            }
            core
        });
    }
}

#[test]
fn writing_and_reading_at_depth_keeps_every_byte() {
    let dir = Dir::new("depth");
    on_core(&dir, move |mut core| async move {
        let (mut engine, _) = core.engine().await;
        let log = core.create(&mut engine).await;
        let records: Vec<Vec<u8>> = (0..256).map(|number| vec![number as u8; 256 << 10]).collect();
        let began = core.io.now();
        core.publish(&mut engine, log, &records, 8).await;
        let written = core.io.now().saturating_since(began);
        let began = core.io.now();
        let read = core.read_all(&mut engine, log).await;
        let reading = core.io.now().saturating_since(began);
        assert!(read == records);
        println!("64 MiB written durably in {written:?}, read in {reading:?}");
        assert_eq!(engine.log(log).expect("there").settled_end(), Offset(256));
        core
    });
}

/// Recovery reads the head of every segment and no more of the sealed ones.
#[test]
fn a_thousand_segments_are_open_within_a_second() {
    let dir = Dir::new("thousand");
    let config = LogConfig { segment_bytes_max: 64 << 10, ..log_config() };
    let logs = config.clone();
    on_core(&dir, move |mut core| async move {
        let (mut engine, _) = core.engine_with(|_| {}, &logs).await;
        let log = core.create_as(&mut engine, KEY, logs).await;
        let records: Vec<Vec<u8>> = (0..1_000).map(|number| vec![number as u8; 36 << 10]).collect();
        core.publish(&mut engine, log, &records, 8).await;
        engine.close();
        core.until(&mut engine, |_, events| events.iter().any(|event| matches!(event, Event::Closed))).await;
        core
    });
    on_core(&dir, move |mut core| async move {
        let began = core.io.now();
        let (mut engine, _) = core.engine_with(|_| {}, &config).await;
        let took = core.io.now().saturating_since(began);
        let log = engine.find(KEY).expect("there");
        let segments = engine.log(log).expect("there").sealed().count();
        println!("{segments} segments open after {took:?}");
        assert!(segments >= 1_000 && took < Duration::from_secs(1), "{segments} segments, {took:?}");
        assert_eq!(core.read_all(&mut engine, log).await.len(), 1_000);
        core
    });
}
