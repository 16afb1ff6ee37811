//! How members of JSON messages are spelled (client-protocol 5.1, 5.2).
//! Owns: base64 members, borrowed optional text, defaults, and putting `type` in front of the members.
//! Invariants: base64 is decoded straight to where it stays; absent and null read alike except where a member
//! must be present.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, BytesMut};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::frame::DecodeError;

/// Reads the members of one message.
pub(super) fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|error| refuse(&error))
}

/// Requires `text` to be one JSON value and nothing else.
pub(super) fn check_grammar(text: &str) -> Result<(), DecodeError> {
    read::<IgnoredAny>(text).map(|_| ())
}

fn refuse(error: &serde_json::Error) -> DecodeError {
    DecodeError::Malformed(match error.classify() {
        serde_json::error::Category::Data => "a member is missing, repeated or not what it should be",
        serde_json::error::Category::Eof => "the JSON ends too early",
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => "not JSON",
    })
}

/// Appends `{"type":name, members of body}`; `body` must serialize to an object.
pub(super) fn write_message<T: Serialize>(out: &mut BytesMut, name: &str, body: &T) {
    out.extend_from_slice(b"{\"type\":");
    write_json(out, name);
    let brace = out.len();
    write_json(out, body);
    // `{}` has no members to separate; otherwise the comma takes the place of the brace.
    if out.len() == brace + 2 {
        out.truncate(brace);
        out.extend_from_slice(b"}");
    } else if let Some(first) = out.get_mut(brace) {
        *first = b',';
    }
}

/// Appends a value. Our messages have string keys and finite numbers and memory takes every byte, so this
/// cannot fail.
fn write_json<T: Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    let written = serde_json::to_writer(out.writer(), value);
    assert!(written.is_ok(), "a message of ours cannot be written as JSON");
}

/// Reads null as the default, as it is for an absent member.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// True for a value that is left out when written.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// `Option<Cow<str>>` that borrows where the text has no escapes.
pub(super) mod opt_text {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Cow<'de, str>>, D::Error> {
        Ok(Option::<Borrowed<'de>>::deserialize(deserializer)?.map(|text| text.0))
    }
}

/// `Vec<Cow<str>>` that borrows where the texts have no escapes.
pub(super) mod texts {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Cow<'de, str>>, D::Error> {
        Ok(Vec::<Borrowed<'de>>::deserialize(deserializer)?.into_iter().map(|text| text.0).collect())
    }
}

/// Bytes as standard base64.
pub(super) mod base64_bytes {
    use bytes::Bytes;
    use serde::{Deserializer, Serializer};

    pub(in crate::client) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        super::write_base64(bytes, serializer)
    }

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        deserializer.deserialize_str(super::IntoBytes)
    }
}

/// Bytes as standard base64, or null. Whether the member may be absent is the field's own attribute.
pub(super) mod base64_opt {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Decoded(#[serde(deserialize_with = "super::base64_bytes::deserialize")] Bytes);

    pub(in crate::client) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => super::write_base64(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Decoded>::deserialize(deserializer)?.map(|decoded| decoded.0))
    }
}

/// An array of base64 strings, read straight into one record run.
pub(super) mod base64_records {
    use serde::de::{DeserializeSeed, SeqAccess, Visitor};
    use serde::ser::SerializeSeq;
    use serde::{Deserializer, Serializer};

    use crate::client::records::{Records, RecordsBuilder};

    struct Base64<'a>(&'a [u8]);

    impl serde::Serialize for Base64<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            super::write_base64(self.0, serializer)
        }
    }

    pub(in crate::client) fn serialize<S: Serializer>(
        records: &Records,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(records.count() as usize))?;
        for payload in records {
            seq.serialize_element(&Base64(payload))?;
        }
        seq.end()
    }

    pub(in crate::client) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Records, D::Error> {
        deserializer.deserialize_seq(Run)
    }

    struct Run;

    impl<'de> Visitor<'de> for Run {
        type Value = Records;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an array of base64 strings")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Records, A::Error> {
            let mut builder = RecordsBuilder::default();
            while seq.next_element_seed(Append(&mut builder))?.is_some() {}
            Ok(builder.finish())
        }
    }

    struct Append<'b>(&'b mut RecordsBuilder);

    impl<'de> DeserializeSeed<'de> for Append<'_> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_str(self)
        }
    }

    impl Visitor<'_> for Append<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a base64 string")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
            self.0.push_with(|out| super::append_base64(text, out).map_err(E::custom))
        }
    }
}

struct IntoBytes;

impl serde::de::Visitor<'_> for IntoBytes {
    type Value = bytes::Bytes;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a base64 string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<bytes::Bytes, E> {
        let mut out = BytesMut::new();
        append_base64(text, &mut out).map_err(E::custom)?;
        Ok(out.freeze())
    }
}

fn write_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Base64Display::new(bytes, &STANDARD))
}

/// Decodes `text` behind what `out` holds. Standard alphabet, padded, no trailing bits.
fn append_base64(text: &str, out: &mut BytesMut) -> Result<(), base64::DecodeSliceError> {
    let start = out.len();
    out.resize(start + text.len().div_ceil(4) * 3, 0);
    let target = out.get_mut(start..).unwrap_or_default();
    let written = STANDARD.decode_slice(text, target)?;
    out.truncate(start + written);
    Ok(())
}
