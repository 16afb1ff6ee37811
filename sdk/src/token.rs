//! Where tokens come from and how long one is kept (client-protocol 4.2). Scope: one per client.
//! Owns: the token in use and the time of its next refresh.
//! Invariants: one provider call at a time, each with a deadline; a token is kept until two thirds of the
//! time to its `exp` have passed; after a failed refresh an unexpired token is used and the provider is
//! left alone for a while.
//! Not here: who presents the token (`connection`).

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::Error;
use crate::limits::{TOKEN_PROVIDER_TIMEOUT, TOKEN_REFRESH_PAUSE};

/// What a token provider answers.
pub type TokenResult = Result<String, Box<dyn std::error::Error + Send + Sync>>;

type ProviderFuture = Pin<Box<dyn Future<Output = TokenResult> + Send>>;

/// A place tokens come from.
#[derive(Clone)]
pub(crate) enum TokenSource {
    /// Sent for ever.
    Fixed(Arc<str>),
    /// Read again when two thirds of the token's life have passed, and when it was refused.
    File(PathBuf),
    /// Asked at the same times as a file is read.
    Provider(Arc<dyn Fn() -> ProviderFuture + Send + Sync>),
}

impl TokenSource {
    async fn fetch(&self) -> Result<Arc<str>, Error> {
        let fetched = match self {
            Self::Fixed(token) => return Ok(token.clone()),
            Self::File(path) => {
                let path = path.clone();
                let shown = path.display().to_string();
                let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
                match read.await {
                    Ok(Ok(text)) => Ok(text.trim().to_owned()),
                    Ok(Err(e)) => Err(format!("{shown}: {e}")),
                    Err(e) => Err(format!("{shown}: {e}")),
                }
            }
            Self::Provider(ask) => match tokio::time::timeout(TOKEN_PROVIDER_TIMEOUT, ask()).await {
                Ok(answer) => answer.map_err(|e| e.to_string()),
                Err(_) => Err(format!("the provider did not answer within {TOKEN_PROVIDER_TIMEOUT:?}")),
            },
        };
        fetched.map(Arc::from).map_err(|message| Error::Token { message })
    }
}

/// The client's token, shared by all its connections.
pub(crate) struct Tokens {
    source: TokenSource,
    cell: tokio::sync::Mutex<TokenCell>,
}

impl Tokens {
    pub(crate) fn new(source: TokenSource) -> Self {
        Self { source, cell: tokio::sync::Mutex::new(TokenCell::default()) }
    }

    /// The token to present now; asks the source when it is due.
    ///
    /// # Errors
    /// [`Error::Token`] when the source fails and no unexpired token is held.
    pub(crate) async fn current(&self) -> Result<Arc<str>, Error> {
        let mut cell = self.cell.lock().await;
        let fallback = match cell.plan(unix_millis()) {
            Plan::Use(token) => return Ok(token),
            Plan::Ask { fallback } => fallback,
        };
        match self.source.fetch().await {
            Ok(token) => {
                cell.obtained(token.clone(), unix_millis());
                Ok(token)
            }
            Err(error) => {
                cell.failed(unix_millis());
                fallback.ok_or(error)
            }
        }
    }

    /// A newer token after `refused` was not accepted; `None` when the source has no other one.
    ///
    /// # Errors
    /// [`Error::Token`] when the source fails.
    pub(crate) async fn after_refusal(&self, refused: &str) -> Result<Option<Arc<str>>, Error> {
        if matches!(self.source, TokenSource::Fixed(_)) {
            return Ok(None);
        }
        let mut cell = self.cell.lock().await;
        // Somebody else may have been refused and asked already.
        if let Some(held) = cell.held().filter(|held| &***held != refused) {
            return Ok(Some(held.clone()));
        }
        let token = self.source.fetch().await?;
        cell.obtained(token.clone(), unix_millis());
        Ok((&*token != refused).then_some(token))
    }

    /// How long until the token should be replaced; `None` while that is not known.
    pub(crate) async fn time_to_renewal(&self) -> Option<Duration> {
        let cell = self.cell.lock().await;
        match self.source {
            TokenSource::Fixed(_) => None,
            _ => cell.renewal_in(unix_millis()),
        }
    }
}

/// Milliseconds since 1970: tokens carry wall-clock times.
fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Use(Arc<str>),
    /// Ask the source; use the fallback when it fails.
    Ask {
        fallback: Option<Arc<str>>,
    },
}

#[derive(Debug)]
struct Held {
    token: Arc<str>,
    /// `None`: kept until refused.
    life: Option<Life>,
}

#[derive(Debug, Clone, Copy)]
struct Life {
    refresh_at_ms: u64,
    expires_at_ms: u64,
}

/// The rule of when to ask, without the asking. Times are Unix milliseconds.
#[derive(Debug, Default)]
struct TokenCell {
    held: Option<Held>,
    /// After a failure: not before this.
    ask_not_before_ms: u64,
}

impl TokenCell {
    fn held(&self) -> Option<&Arc<str>> {
        self.held.as_ref().map(|held| &held.token)
    }

    fn plan(&self, now_ms: u64) -> Plan {
        let Some(held) = &self.held else { return Plan::Ask { fallback: None } };
        let Some(life) = held.life else { return Plan::Use(held.token.clone()) };
        if now_ms >= life.expires_at_ms {
            return Plan::Ask { fallback: None };
        }
        if now_ms < life.refresh_at_ms.max(self.ask_not_before_ms) {
            return Plan::Use(held.token.clone());
        }
        Plan::Ask { fallback: Some(held.token.clone()) }
    }

    fn obtained(&mut self, token: Arc<str>, now_ms: u64) {
        let life = expiry_ms(&token).map(|expires_at_ms| {
            let left = expires_at_ms.saturating_sub(now_ms);
            Life { refresh_at_ms: now_ms + left / 3 * 2, expires_at_ms }
        });
        // A source that still gives the token we hold (a file not rewritten yet) is not asked in a circle.
        let unchanged = self.held.as_ref().is_some_and(|held| held.token == token);
        self.ask_not_before_ms = if unchanged { now_ms + pause_ms() } else { 0 };
        self.held = Some(Held { token, life });
    }

    fn failed(&mut self, now_ms: u64) {
        self.ask_not_before_ms = now_ms + pause_ms();
    }

    fn renewal_in(&self, now_ms: u64) -> Option<Duration> {
        let life = self.held.as_ref()?.life?;
        let due = life.refresh_at_ms.max(self.ask_not_before_ms);
        Some(Duration::from_millis(due.saturating_sub(now_ms)))
    }
}

fn pause_ms() -> u64 {
    u64::try_from(TOKEN_REFRESH_PAUSE.as_millis()).unwrap_or(u64::MAX)
}

/// The `exp` claim of a JWT in milliseconds, unverified: only to know when to ask for a newer one.
fn expiry_ms(token: &str) -> Option<u64> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    claims.get("exp")?.as_u64()?.checked_mul(1_000)
}

#[cfg(test)]
mod tests;
