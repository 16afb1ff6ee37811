//! From settings to a connected client. Scope: per command that talks to brokers.

use super::failure::Outcome;
use super::settings::{Secret, Settings};
use crate::client::Client;

/// Connects as the settings say.
///
/// # Errors
/// `Usage` for what is missing, else what the client said.
pub async fn connect(settings: &Settings) -> Outcome<Client> {
    // Of what is missing, this is named first.
    settings.tenant()?;
    connect_to(settings, settings.brokers()?).await
}

/// The same, to these brokers.
///
/// # Errors
/// As `connect`.
pub async fn connect_to(settings: &Settings, brokers: &[String]) -> Outcome<Client> {
    let mut builder = Client::builder().tenant(settings.tenant()?).namespace(settings.namespace());
    for broker in brokers {
        builder = builder.broker(broker);
    }
    builder = match settings.token()? {
        Secret::Text(token) => builder.token(token),
        Secret::File(path) => builder.token_file(path),
    };
    if let Some(path) = settings.ca_file() {
        builder = builder.ca_file(path);
    }
    if let Some(name) = settings.server_name() {
        builder = builder.server_name(name);
    }
    Ok(builder.connect().await?)
}
