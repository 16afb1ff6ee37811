//! What a watch is told of a key (client-protocol 13). Scope: values, shared by all watches of the key on all cores.
//! Invariants: the frame of an event is made once, however many watches get it.
//! Not here: who gets it (`watch`), the stream it is written to (`delivery`).

use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{CacheEvent, Message};
use felix_wire::id::Offset;

use super::expiry::Expiry;

/// What an event counts in a queue beside its key and value: the rest of it and of its frame.
pub const EVENT_OVERHEAD_BYTES: usize = 192;

/// One change, or a current value.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyEvent {
    pub key: Box<[u8]>,
    /// None is a delete.
    pub value: Option<Bytes>,
    /// Offset of the write.
    pub at: Offset,
    pub expiry: Expiry,
    /// Made when it is first sent. It is the one thing here that is not there from the beginning, and many cores may send it.
    frame: OnceLock<Bytes>,
}

impl KeyEvent {
    /// Without a value it is a delete.
    pub fn new(key: Box<[u8]>, value: Option<Bytes>, at: Offset, expiry: Expiry) -> KeyEvent {
        KeyEvent { key, value, at, expiry, frame: OnceLock::new() }
    }

    /// Bytes it counts in a queue, its frame included.
    pub fn cost(&self) -> usize {
        event_cost(self.key.len(), self.value.as_ref().map_or(0, Bytes::len))
    }

    /// Its `cache_event`.
    pub fn frame(&self) -> Bytes {
        self.frame.get_or_init(|| self.encode()).clone()
    }

    fn encode(&self) -> Bytes {
        let room = event_cost(self.key.len(), self.value.as_ref().map_or(0, Bytes::len));
        let mut frame = BytesMut::with_capacity(room - self.value.as_ref().map_or(0, Bytes::len));
        Message::CacheEvent(CacheEvent {
            // Keys come in as text; what else a log may hold is shown as well as it can be.
            key: String::from_utf8_lossy(&self.key),
            value: self.value.clone(),
            offset: self.at,
            expires_at_millis: self.expiry.millis(),
        })
        .encode_frame(&mut frame);
        frame.freeze()
    }
}

/// Bytes that an event with so long a key and value counts: both, and its frame, which holds the value as base64.
pub fn event_cost(key: usize, value: usize) -> usize {
    2 * key + value + value / 3 * 4 + EVENT_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(event: &KeyEvent) -> String {
        let frame = event.frame();
        String::from_utf8(frame[felix_wire::frame::HEADER_LEN..].to_vec()).unwrap()
    }

    #[test]
    fn puts_deletes_and_lives_are_told_as_the_protocol_says() {
        let put = KeyEvent::new((*b"k\"").into(), Some(Bytes::from_static(b"v")), Offset(7), Expiry::NEVER);
        let text = decoded(&put);
        assert_eq!(
            text,
            r#"{"type":"cache_event","key":"k\"","value":"dg==","offset":7,"expires_at_millis":0}"#
        );
        let short = KeyEvent::new(Box::default(), Some(Bytes::new()), Offset(8), Expiry::from_millis(9));
        assert!(decoded(&short).contains(r#""key":"","value":"","offset":8,"expires_at_millis":9"#));
        let gone = KeyEvent::new((*b"k").into(), None, Offset(9), Expiry::NEVER);
        assert_eq!(decoded(&gone), r#"{"type":"cache_event","key":"k","offset":9,"expires_at_millis":0}"#);
    }

    #[test]
    fn a_frame_is_made_once_and_costs_no_more_than_is_counted() {
        for (key, value) in [(0, None), (3, Some(0)), (20, Some(1_000)), (65_535, Some(300_000))] {
            let bytes = value.map(|len| Bytes::from(vec![b'v'; len]));
            let event =
                KeyEvent::new(vec![b'k'; key].into(), bytes, Offset(u64::MAX), Expiry::from_millis(u64::MAX));
            let frame = event.frame();
            assert_eq!(frame.as_ptr(), event.frame().as_ptr(), "the same bytes");
            let held = key + value.unwrap_or(0) + frame.len();
            assert!(held <= event.cost(), "{held} > {}", event.cost());
        }
    }
}
