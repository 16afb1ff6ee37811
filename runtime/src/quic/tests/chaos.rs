//! Random operations over a rough network, checked against what was written.

use std::collections::HashMap;

use super::*;
use crate::sim::SimRng;

/// What one side knows of a stream it writes.
struct Written {
    salt: u64,
    sent: usize,
    ended: bool,
}

/// One run's bookkeeping: per stream what was written, per (reader, stream) what was read.
struct Model {
    rng: SimRng,
    written: HashMap<(bool, StreamId), Written>,
    read: HashMap<(bool, StreamId), Vec<u8>>,
    closed: [bool; 2],
    finished_reads: usize,
}

const STREAM_BYTES: usize = 40_000;

impl Model {
    /// One random operation of one side.
    fn act(&mut self, node: &mut Node, key: ConnKey, is_client: bool) {
        let streams: Vec<StreamId> =
            self.written.keys().filter(|(side, _)| *side == is_client).map(|(_, stream)| *stream).collect();
        let pick = |rng: &mut SimRng| {
            let mut sorted = streams.clone();
            sorted.sort();
            sorted.get(rng.below(sorted.len() as u64) as usize).copied()
        };
        match self.rng.below(100) {
            0..10 => {
                if let Some(stream) = node.quic.open_uni(key) {
                    let salt = self.rng.next_u64();
                    self.written.insert((is_client, stream), Written { salt, sent: 0, ended: false });
                }
            }
            10..70 => {
                let Some(stream) = pick(&mut self.rng) else { return };
                let len = self.rng.below(3_000) as usize;
                let state = self.written.get_mut(&(is_client, stream)).unwrap();
                if !state.ended {
                    let all = pattern(state.salt, STREAM_BYTES);
                    let mut bytes = all.slice(state.sent..(state.sent + len).min(STREAM_BYTES));
                    state.sent += node.quic.write(key, stream, &mut bytes).written;
                }
            }
            70..80 => {
                let Some(stream) = pick(&mut self.rng) else { return };
                let state = self.written.get_mut(&(is_client, stream)).unwrap();
                state.ended |= node.quic.finish(key, stream);
            }
            80..83 => {
                let Some(stream) = pick(&mut self.rng) else { return };
                let state = self.written.get_mut(&(is_client, stream)).unwrap();
                state.ended |= node.quic.reset(key, stream, VarInt::from_u32(1));
            }
            83..86 => {
                let theirs: Vec<_> = self.written.keys().filter(|(side, _)| *side != is_client).collect();
                if let Some((_, stream)) = theirs.iter().min() {
                    node.quic.stop_sending(key, *stream, VarInt::from_u32(2));
                }
            }
            _ => {}
        }
    }

    /// Reads what is readable, and checks it against what the other side wrote.
    fn drain(&mut self, node: &mut Node, key: ConnKey, is_client: bool) {
        for (event_key, event) in node.take_events() {
            assert_eq!(event_key, key);
            assert!(!self.closed[usize::from(is_client)], "{event:?} after Closed");
            match event {
                QuicEvent::Closed { .. } => self.closed[usize::from(is_client)] = true,
                QuicEvent::Readable { stream } => {
                    let got = self.read.entry((is_client, stream)).or_default();
                    let end = node.read_all(key, stream, got);
                    let written = &self.written[&(!is_client, stream)];
                    assert!(got.len() <= written.sent);
                    assert!(**got == pattern(written.salt, STREAM_BYTES)[..got.len()], "{stream} changed");
                    if end == Some(ReadOutcome::Finished) {
                        assert_eq!(got.len(), written.sent, "{stream} ended early");
                        self.finished_reads += 1;
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn whatever_both_sides_do_streams_carry_what_was_written_and_nothing_follows_a_close() {
    let mut finished = 0;
    for seed in 0..20 {
        let small = QuicSettings {
            stream_window: 8_000,
            conn_window_before_auth: 30_000,
            send_window: 20_000,
            max_uni_streams: 8,
            ..settings()
        };
        let mut pair = Pair::with(small.clone(), small, seed, Faults::rough(MS));
        let ours = pair.connect(&[]);
        let theirs = pair.wait(60 * SECOND, |pair| pair.server.connected());
        pair.wait(60 * SECOND, |pair| pair.client.connected());
        let mut model = Model {
            rng: SimRng::new(seed),
            written: HashMap::new(),
            read: HashMap::new(),
            closed: [false; 2],
            finished_reads: 0,
        };
        for round in 0..1_500 {
            model.act(&mut pair.client, ours, true);
            model.act(&mut pair.server, theirs, false);
            if round % 3 == 0 {
                pair.step();
            }
            model.drain(&mut pair.client, ours, true);
            model.drain(&mut pair.server, theirs, false);
        }
        let now = pair.now();
        if seed % 2 == 0 {
            pair.client.quic.close(now, ours, VarInt::from_u32(0), Bytes::new());
        } else {
            pair.server.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
        }
        pair.run_for(60 * SECOND);
        model.drain(&mut pair.client, ours, true);
        model.drain(&mut pair.server, theirs, false);
        assert_eq!(model.closed, [true; 2], "seed {seed}");
        assert_eq!((pair.client.quic.held_count(), pair.server.quic.held_count()), (0, 0), "seed {seed}");
        finished += model.finished_reads;
    }
    assert!(finished > 100, "{finished} streams read to their end");
}
