//! Names of streams as callers give them. Scope: none, a value.
//! Owns: the short forms `stream` and `namespace/stream`.
//! Invariants: neither part holds a `/`, which no name may (control-plane-api 1.1).
//! Not here: whether the stream exists.

use std::sync::Arc;

/// A stream of the client's tenant: `"stream"` in the client's default namespace, `"namespace/stream"`, or the
/// pair `(namespace, stream)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamName {
    namespace: Option<Arc<str>>,
    stream: Arc<str>,
}

impl StreamName {
    /// The namespace; empty until the client has filled in its default.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// The stream.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    pub(crate) fn with_default_namespace(mut self, default: Option<&Arc<str>>) -> Option<Self> {
        if self.namespace.is_none() {
            self.namespace = Some(default?.clone());
        }
        Some(self)
    }
}

impl From<&str> for StreamName {
    fn from(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, stream)) => (namespace, stream).into(),
            None => Self { namespace: None, stream: text.into() },
        }
    }
}

impl From<String> for StreamName {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&StreamName> for StreamName {
    fn from(name: &StreamName) -> Self {
        name.clone()
    }
}

impl<N: AsRef<str>, S: AsRef<str>> From<(N, S)> for StreamName {
    fn from((namespace, stream): (N, S)) -> Self {
        Self { namespace: Some(namespace.as_ref().into()), stream: stream.as_ref().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_forms_name_the_same_stream() {
        let default: Arc<str> = "ns".into();
        let short = StreamName::from("orders").with_default_namespace(Some(&default)).unwrap();
        assert_eq!(short, StreamName::from("ns/orders"));
        assert_eq!(short, StreamName::from(("ns", "orders")));
        assert_eq!(StreamName::from("orders").with_default_namespace(None), None);
    }
}
