//! Mutations of the vectors through every decoder, on stable Rust and with a fixed seed.
//! `FELIX_FUZZ_INPUTS` is how many inputs each target gets, `SEED` replays another run; a failure prints the input.

mod checks;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

const INPUTS_DEFAULT: u64 = 200_000;
const SEED_DEFAULT: u64 = 0x5eed_f1e1_1c05_0001;

struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound.max(1)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Every whole frame in the vector files.
fn frames() -> Vec<Vec<u8>> {
    let files = [
        include_str!("vectors/binary-events.json"),
        include_str!("vectors/binary-messages.json"),
        include_str!("vectors/binary-publish-ack.json"),
        include_str!("vectors/binary-publish.json"),
        include_str!("vectors/frame-header.json"),
        include_str!("vectors/json-accepted.json"),
        include_str!("vectors/json-messages.json"),
        include_str!("vectors/malformed.json"),
    ];
    let mut frames = Vec::new();
    for file in files {
        let file: Value = serde_json::from_str(file).expect("a vector file is JSON");
        for entry in file["vectors"].as_array().expect("vectors") {
            let hex_of =
                |member: &str| entry[member].as_str().map(|digits| hex::decode(digits).expect("hex"));
            frames.extend(
                ["frame_hex", "stream_hex", "input_frame_hex", "input_hex"].into_iter().find_map(hex_of),
            );
        }
    }
    assert!(frames.len() > 200, "the vectors are there");
    frames
}

/// Payloads behind their flags, of the frames that `keep` wants by a bit of their flags.
fn seeds_with_flag(bit: u16) -> Vec<Vec<u8>> {
    let with_flags = frames().into_iter().filter(|frame| frame.len() >= 12).map(|mut frame| {
        let flags = [frame[6], frame[7]];
        frame.drain(..12);
        (u16::from_be_bytes(flags), [flags.to_vec(), frame].concat())
    });
    with_flags.filter(|(flags, _)| flags & bit != 0).map(|(_, seed)| seed).collect()
}

fn json_seeds() -> Vec<Vec<u8>> {
    let json = |frame: &Vec<u8>| frame.len() > 12 && frame[6..8] == [0, 0];
    frames().into_iter().filter(json).map(|frame| frame[12..].to_vec()).collect()
}

/// One to four small changes to a seed.
fn mutate(seeds: &[Vec<u8>], rng: &mut XorShift) -> Vec<u8> {
    const EDGES: [u32; 10] = [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff];
    const TOKENS: [&[u8]; 12] = [
        b"\"",
        b"\\u0000",
        b"\\ud83d\\ude00",
        b"null",
        b"{",
        b"[[",
        b"}",
        b"18446744073709551615",
        b"-1",
        b"1e3",
        b",\"x\":{}",
        b"\xff",
    ];
    let mut data = seeds[rng.below(seeds.len())].clone();
    for _ in 0..=rng.below(4) {
        let at = rng.below(data.len());
        match rng.below(9) {
            0 if !data.is_empty() => data[at] ^= 1 << rng.below(8),
            1 if !data.is_empty() => data[at] = rng.next() as u8,
            2 => data.truncate(at),
            3 => data.insert(at, rng.next() as u8),
            4 if !data.is_empty() => {
                data.remove(at);
            }
            5 => {
                let width = [1, 2, 4][rng.below(3)];
                let edge = EDGES[rng.below(EDGES.len())].to_be_bytes();
                let end = (at + width).min(data.len());
                data[at..end].copy_from_slice(&edge[4 - (end - at)..]);
            }
            6 => {
                let end = (at + rng.below(24)).min(data.len());
                let part = data[at..end].to_vec();
                let to = rng.below(data.len());
                data.splice(to..to, part);
            }
            7 => {
                let other = &seeds[rng.below(seeds.len())];
                let from = rng.below(other.len());
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => {
                let token = TOKENS[rng.below(TOKENS.len())];
                data.splice(at..at, token.iter().copied());
            }
        }
    }
    data
}

fn run(check: fn(&[u8]), seeds: &[Vec<u8>]) {
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| check(seed));
    let seed = number("SEED", SEED_DEFAULT).max(1);
    let mut rng = XorShift(seed);
    for index in 0..number("FELIX_FUZZ_INPUTS", INPUTS_DEFAULT) {
        let data = mutate(seeds, &mut rng);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&data))) {
            eprintln!("SEED={seed}, input {index}: {}", hex::encode(&data));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn any_stream_of_frames_is_read_without_a_panic() {
    run(checks::frame_stream, &frames());
}

#[test]
fn any_stream_reads_the_same_whole_and_in_pieces() {
    let frames = frames();
    let pairs = frames.iter().zip(frames.iter().rev());
    let seeds: Vec<_> = pairs.map(|(first, second)| [&first[..], second].concat()).collect();
    run(checks::split_or_whole, &seeds);
}

#[test]
fn any_json_is_refused_or_survives_being_written() {
    run(checks::json_message, &json_seeds());
}

#[test]
fn any_binary_message_is_refused_or_survives_being_written() {
    let payload = |seed: Vec<u8>| seed[2..].to_vec();
    let seeds: Vec<_> = seeds_with_flag(0x8000).into_iter().map(payload).collect();
    run(checks::binary_message, &seeds);
}

#[test]
fn any_binary_publish_is_refused_or_written_as_it_was() {
    run(checks::binary_publish, &seeds_with_flag(0x0001));
}

#[test]
fn any_publish_ack_is_refused_or_survives_being_written() {
    run(checks::publish_ack, &seeds_with_flag(0x0010));
}

#[test]
fn any_event_frame_is_refused_or_survives_being_written() {
    run(checks::events, &seeds_with_flag(0x0006));
}
