//! Waits until a stream that was just created is served: brokers learn of it from the control plane a moment later, and
//! refuse it until then. Scope: per command.
//! Invariants: the wait is bounded; what it comes to is told and changes no exit status, since the stream is there.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cli::connect::{connect, connect_to};
use crate::cli::failure::{Failure, Kind, Outcome};
use crate::cli::on_runtime;
use crate::cli::output::remark;
use crate::cli::settings::Settings;
use crate::client::Client;
use crate::error::Error;
use crate::name::StreamName;
use crate::topology::ShardOwner;

/// Longest wait.
const SERVED_WAIT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until every shard is served by the broker that leads it, and says so when that takes too long. Without a broker
/// and a token for it in the settings there is nobody to ask.
pub fn wait_until_served(settings: &Settings, stream: &str, shards: u32) {
    if settings.brokers().is_err() || settings.token().is_err() || settings.tenant().is_err() {
        return;
    }
    let waited = on_runtime(async {
        let mut last = "no broker has answered".to_owned();
        let looking = look(settings, stream, shards, &mut last);
        match tokio::time::timeout(SERVED_WAIT, looking).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::other(format!("after {} s {last}", SERVED_WAIT.as_secs()))),
        }
    });
    if let Err(failure) = waited {
        remark(&format!("it may not be served yet: {failure}"));
    }
}

async fn look(settings: &Settings, stream: &str, shards: u32, last: &mut String) -> Outcome {
    let client = loop {
        match connect(settings).await {
            Ok(client) => break client,
            Err(failure) if failure.kind == Kind::Unreachable => *last = failure.to_string(),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    };
    loop {
        let seen = match owners(&client, stream).await? {
            // A broker that does not tell needs no wait that could end.
            None => return Ok(()),
            Some(owners) => missing(settings, stream, shards, &owners).await?,
        };
        let Some(why) = seen else {
            client.close().await;
            return Ok(());
        };
        *last = why;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// What is missing, if something is.
async fn missing(
    settings: &Settings,
    stream: &str,
    shards: u32,
    owners: &[ShardOwner],
) -> Outcome<Option<String>> {
    if owners.len() != shards as usize {
        return Ok(Some("the broker does not know it".to_owned()));
    }
    if let Some(why) = owners.iter().find_map(unserved) {
        return Ok(Some(why));
    }
    // The brokers that are named say themselves whether they lead what they should.
    let others: BTreeSet<String> =
        owners.iter().filter_map(ShardOwner::dialable).map(|at| at.to_string()).collect();
    for address in others {
        let client = connect_to(settings, std::slice::from_ref(&address)).await?;
        let theirs = owners_of(&client, stream).await?;
        client.close().await;
        let there = |owner: &&ShardOwner| owner.dialable().is_some_and(|at| at.to_string() == address);
        let led = owners.iter().filter(there);
        for owner in led {
            let own = theirs.iter().find(|own| own.shard == owner.shard);
            match own {
                Some(own) if own.node_id.is_none() && own.unavailable.is_none() => {}
                _ => return Ok(Some(format!("{address} does not serve shard {}", owner.shard))),
            }
        }
    }
    Ok(None)
}

fn unserved(owner: &ShardOwner) -> Option<String> {
    owner.unavailable.as_ref().map(|reason| format!("nobody serves shard {} ({reason})", owner.shard))
}

/// `None` when the broker does not tell owners.
async fn owners(client: &Client, stream: &str) -> Outcome<Option<Vec<ShardOwner>>> {
    match client.shard_owners(StreamName::from(stream)).await {
        Ok(owners) => Ok(Some(owners)),
        Err(Error::NotServed { .. }) => Ok(None),
        Err(error) if error.is_worth_another_read() => Ok(Some(Vec::new())),
        Err(error) => Err(error.into()),
    }
}

async fn owners_of(client: &Client, stream: &str) -> Outcome<Vec<ShardOwner>> {
    Ok(owners(client, stream).await?.unwrap_or_default())
}
