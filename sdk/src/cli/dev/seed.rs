//! What a development cluster holds from the start: a tenant, a namespace, a stream in memory and one on disk. Scope: per
//! start.
//! Invariants: what is there already stays as it is. Blocks.

use felix_wire::control::{
    BootstrapAnswer, BootstrapRequest, Consistency, Delivery, Namespace, NamespaceCreate, Retention, Stream,
    StreamCreate, StreamKind,
};

use super::{NAMESPACE, TENANT};
use crate::cli::api::Api;
use crate::cli::failure::{Kind, Outcome};
use crate::cli::output::remark;

/// A stream that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Seed<'a> {
    pub name: &'a str,
    pub shards: u32,
    /// On disk.
    pub durable: bool,
}

/// Makes the tenant with its signing key, the first time.
///
/// # Errors
/// What the control plane said.
pub fn tenant(bootstrap: &Api) -> Outcome {
    let path = ["internal", "bootstrap", "tenants", TENANT, "initialize"];
    let body = BootstrapRequest {
        display_name: "Demonstration".to_owned(),
        initial_admin_principals: vec!["developer".to_owned()],
        ..BootstrapRequest::default()
    };
    match bootstrap.post::<BootstrapAnswer>(&path, &body) {
        // A tenant is bootstrapped once; tokens could not be minted for one that is not there.
        Err(failure) if failure.kind != Kind::Refused => Err(failure),
        _ => Ok(()),
    }
}

/// Makes the namespace and the first streams unless they are there.
///
/// # Errors
/// What the control plane said.
pub fn catalog(api: &Api, first_streams: &[Seed<'_>]) -> Outcome {
    let namespaces = ["v1", "tenants", TENANT, "namespaces"];
    let held = api.list::<Namespace>(&namespaces, "")?;
    if held.iter().all(|item| item.namespace != NAMESPACE) {
        let body = NamespaceCreate { namespace: NAMESPACE.to_owned(), display_name: String::new() };
        api.post::<Namespace>(&namespaces, &body)?;
    }
    first_streams.iter().try_for_each(|seed| stream(api, *seed))
}

/// The path of all streams.
const STREAMS: [&str; 6] = ["v1", "tenants", TENANT, "namespaces", NAMESPACE, "streams"];

/// Makes a stream unless one of that name is there.
///
/// # Errors
/// What the control plane said.
pub fn stream(api: &Api, seed: Seed<'_>) -> Outcome {
    match api.get::<Stream>(&[&STREAMS[..], &[seed.name]].concat()) {
        Ok(held) => {
            if held.durable != seed.durable {
                let place = if held.durable { "on disk" } else { "in memory" };
                remark(&format!("the stream `{}` was there already, {place}, and stays so", seed.name));
            }
            return Ok(());
        }
        Err(failure) if failure.kind != Kind::NotFound => return Err(failure),
        Err(_) => {}
    }
    let body = StreamCreate {
        stream: seed.name.to_owned(),
        kind: StreamKind::Stream,
        shards: seed.shards,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: seed.durable,
        region: None,
        routing: None,
    };
    api.post::<Stream>(&STREAMS, &body).map(drop)
}

/// Deletes a stream with its records. True when it was there.
///
/// # Errors
/// What the control plane said.
pub fn delete(api: &Api, name: &str) -> Outcome<bool> {
    match api.delete(&[&STREAMS[..], &[name]].concat()) {
        Ok(()) => Ok(true),
        Err(failure) if failure.kind == Kind::NotFound => Ok(false),
        Err(failure) => Err(failure),
    }
}
