//! Code that `flatc` made from `schema/`; refreshed by `schema/regenerate.sh`, checked for freshness there, never edited.
//! Not here: conversions to the documents (`control::binary`) and messages (`client::binary`).

#[cfg(feature = "peer")]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing, mismatched_lifetime_syntaxes)]
#[rustfmt::skip]
pub mod assignment;

#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    mismatched_lifetime_syntaxes
)]
#[rustfmt::skip]
pub mod request;
