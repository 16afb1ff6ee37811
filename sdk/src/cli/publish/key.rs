//! Which key a record gets. Scope: per publish; pure.

use bytes::Bytes;

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// No key: everything goes to shard 0.
    None,
    /// The same key for every record.
    Fixed(Bytes),
    /// The field of that number, from 0, between separators.
    Column { index: usize, separator: u8 },
}

impl KeySource {
    /// The key of `record`, sharing its memory. A record without the column has the empty key.
    pub fn of(&self, record: &Bytes) -> Option<Bytes> {
        match self {
            KeySource::None => None,
            KeySource::Fixed(key) => Some(key.clone()),
            KeySource::Column { index, separator } => {
                let field = record.split(|byte| byte == separator).nth(*index).unwrap_or_default();
                Some(record.slice_ref(field))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_the_key_and_a_missing_one_is_empty() {
        let column = |index| KeySource::Column { index, separator: b',' };
        let record = Bytes::from_static(b"a,,ccc");
        assert_eq!(column(0).of(&record).unwrap(), "a");
        assert_eq!(column(1).of(&record).unwrap(), "");
        assert_eq!(column(2).of(&record).unwrap(), "ccc");
        assert_eq!(column(3).of(&record).unwrap(), "");
        assert_eq!(column(0).of(&Bytes::new()).unwrap(), "");
        assert_eq!(KeySource::None.of(&record), None);
        assert_eq!(KeySource::Fixed(Bytes::from_static(b"k")).of(&record).unwrap(), "k");
    }
}
