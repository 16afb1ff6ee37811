//! How a record is written: as text, as JSON, or with its length in front. Scope: pure functions over a writer.
//! Invariants: `raw` loses nothing and `felix pub --framing length` reads it; JSON is one object a line.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use serde::Serialize;

use crate::subscribe::Event;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Rendering {
    /// Its bytes and a newline
    #[default]
    Text,
    /// An object a line: shard, offset, and payload or payload_base64
    Json,
    /// Its length in four bytes, most significant first, and its bytes
    Raw,
}

#[derive(Serialize)]
struct Document<'a> {
    shard: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// When the bytes are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    /// When they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl Rendering {
    /// Writes one record; text has shard and offset in front when `offsets`.
    ///
    /// # Errors
    /// What the writer said.
    pub fn write(self, out: &mut impl Write, event: &Event, offsets: bool) -> io::Result<()> {
        let payload = &event.payload;
        match self {
            Rendering::Text => {
                if offsets {
                    match event.offset {
                        Some(offset) => write!(out, "{}/{offset}\t", event.shard)?,
                        None => write!(out, "{}/-\t", event.shard)?,
                    }
                }
                out.write_all(payload)?;
                out.write_all(b"\n")
            }
            Rendering::Json => {
                let text = std::str::from_utf8(payload).ok();
                let document = Document {
                    shard: event.shard,
                    offset: event.offset.map(|offset| offset.get()),
                    payload: text,
                    payload_base64: text.is_none().then(|| STANDARD.encode(payload)),
                };
                serde_json::to_writer(&mut *out, &document)?;
                out.write_all(b"\n")
            }
            Rendering::Raw => {
                let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
                out.write_all(&length.to_be_bytes())?;
                out.write_all(payload)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use felix_wire::id::Offset;

    use super::*;

    fn written(rendering: Rendering, payload: &'static [u8], offset: Option<u64>) -> Vec<u8> {
        let event =
            Event { shard: 3, offset: offset.map(Offset), payload: Bytes::from_static(payload), skipped: 0 };
        let mut out = Vec::new();
        rendering.write(&mut out, &event, false).unwrap();
        out
    }

    #[test]
    fn text_has_its_place_in_front_when_that_is_wanted() {
        let mut out = Vec::new();
        for offset in [Some(Offset(41)), None] {
            let event = Event { shard: 3, offset, payload: Bytes::from_static(b"a b"), skipped: 0 };
            Rendering::Text.write(&mut out, &event, true).unwrap();
        }
        assert_eq!(out, b"3/41\ta b\n3/-\ta b\n");
    }

    #[test]
    fn each_rendering_is_what_it_says() {
        assert_eq!(written(Rendering::Text, b"a b", None), b"a b\n");
        assert_eq!(written(Rendering::Raw, b"ab", None), b"\0\0\0\x02ab");
        assert_eq!(written(Rendering::Raw, b"", None), b"\0\0\0\0");
        let json = written(Rendering::Json, b"x\"\n", Some(7));
        assert_eq!(json, b"{\"shard\":3,\"offset\":7,\"payload\":\"x\\\"\\n\"}\n");
        assert_eq!(written(Rendering::Json, b"\xff", None), b"{\"shard\":3,\"payload_base64\":\"/w==\"}\n");
    }
}
