//! What a development cluster holds from the start: a tenant, a namespace, a stream. Scope: per start.
//! Invariants: what is there already stays as it is. Blocks.

use felix_wire::control::{
    BootstrapAnswer, BootstrapRequest, Consistency, Delivery, Namespace, NamespaceCreate, Retention, Stream,
    StreamCreate, StreamKind,
};

use super::{NAMESPACE, TENANT};
use crate::cli::api::Api;
use crate::cli::failure::{Kind, Outcome};

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

/// Makes the namespace and the first stream unless they are there.
///
/// # Errors
/// What the control plane said.
pub fn catalog(api: &Api, first_stream: &str) -> Outcome {
    let namespaces = ["v1", "tenants", TENANT, "namespaces"];
    let held = api.list::<Namespace>(&namespaces, "")?;
    if held.iter().all(|item| item.namespace != NAMESPACE) {
        let body = NamespaceCreate { namespace: NAMESPACE.to_owned(), display_name: String::new() };
        api.post::<Namespace>(&namespaces, &body)?;
    }
    stream(api, first_stream, 1)
}

/// Makes a stream unless one of that name is there.
///
/// # Errors
/// What the control plane said.
pub fn stream(api: &Api, name: &str, shards: u32) -> Outcome {
    let streams = ["v1", "tenants", TENANT, "namespaces", NAMESPACE, "streams"];
    match api.get::<Stream>(&[&streams[..], &[name]].concat()) {
        Ok(_) => return Ok(()),
        Err(failure) if failure.kind != Kind::NotFound => return Err(failure),
        Err(_) => {}
    }
    let body = StreamCreate {
        stream: name.to_owned(),
        kind: StreamKind::Stream,
        shards,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: false,
        region: None,
        routing: None,
    };
    api.post::<Stream>(&streams, &body).map(drop)
}
