//! Keyset paging of listings (control-plane-api 1.3).

use axum::extract::FromRequestParts;
use axum::extract::Query;
use axum::http::request::Parts;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use felix_wire::control::Page;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::ledger::{Ledger, parse};
use crate::limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use crate::store::{Key, Want, past};

/// A query's parameters in the order given, repeated ones included.
pub struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params, ApiError> {
        let query = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        query.map(|Query(pairs)| Params(pairs)).map_err(|_| ApiError::invalid("the query is not valid"))
    }
}

impl Params {
    /// The last value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rfind(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// A parameter that is a number.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, ApiError> {
        let number =
            |text: &str| text.parse().map_err(|_| ApiError::invalid(format!("{name} must be a number")));
        self.get(name).map(number).transpose()
    }

    /// `limit` and `cursor`.
    pub fn page(&self) -> Result<PageAsk, ApiError> {
        let limit = match self.number("limit")? {
            None => PAGE_ITEMS_DEFAULT,
            Some(n) => match usize::try_from(n) {
                Ok(n) if (1..=PAGE_ITEMS_MAX).contains(&n) => n,
                _ => return Err(ApiError::invalid("limit must be 1 to 10000")),
            },
        };
        let cursor = self.get("cursor").filter(|cursor| !cursor.is_empty());
        let decode = |text: &str| {
            URL_SAFE_NO_PAD.decode(text).map_err(|_| ApiError::invalid("the cursor is not valid"))
        };
        Ok(PageAsk { limit, after: cursor.map(decode).transpose()? })
    }
}

/// Which page of a listing is wanted.
pub struct PageAsk {
    limit: usize,
    /// Key of the last entry of the page before, without the listing's prefix.
    after: Option<Vec<u8>>,
}

impl PageAsk {
    /// The page of rows under `prefix` that `keep` takes, filled after filtering: only the last page is short.
    pub fn read<T: DeserializeOwned>(
        &self,
        ledger: &Ledger,
        prefix: &[u8],
        keep: impl Fn(&T) -> bool,
    ) -> Result<Page<T>, ApiError> {
        let until = past(prefix);
        let mut from = prefix.to_vec();
        if let Some(after) = &self.after {
            from.extend_from_slice(after);
            from.push(0);
        }
        let mut kept: Vec<(Key, T)> = Vec::new();
        // One more than asked tells whether another page follows.
        while kept.len() <= self.limit {
            let want = Want { from, until: until.clone(), limit: self.limit + 1 };
            let rows = ledger.read(&[want])?.into_iter().next().unwrap_or_default();
            let Some((last, _)) = rows.last() else { break };
            from = last.clone();
            from.push(0);
            for (key, row) in rows {
                let item = parse(&row)?;
                if keep(&item) {
                    kept.push((key, item));
                }
            }
        }
        let more = kept.len() > self.limit;
        kept.truncate(self.limit);
        let next_cursor = match kept.last() {
            Some((key, _)) if more => key.strip_prefix(prefix).map(|rest| URL_SAFE_NO_PAD.encode(rest)),
            _ => None,
        };
        Ok(Page { items: kept.into_iter().map(|(_, item)| item).collect(), next_cursor })
    }
}
