//! First frame of a stream and its success (client-protocol 4.1), with the private members of `CORE_HINTS`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::features::Features;
use crate::flags::Flags;
use crate::id::CoreId;

/// `auth`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auth<'a> {
    /// Tenant the token is for.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Opaque credential. Not shown by `Debug`.
    #[serde(borrow)]
    pub token: Cow<'a, str>,
    /// Flag bits the client understands; absent for a peer older than negotiation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_flags: Option<Flags>,
    /// First feature word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_features: Option<u32>,
    /// Second feature word; counts only with the marker in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_features_hi: Option<u32>,
}

impl Auth<'_> {
    /// Flag bits the client understands, those of an old peer when it announced none.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.client_flags.unwrap_or(Flags::UNANNOUNCED)
    }

    /// Features the client offered, without the marker.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::announced(self.client_features, self.client_features_hi)
    }

    /// True when the client reads the second feature word.
    #[must_use]
    pub fn reads_features_hi(&self) -> bool {
        self.client_features.is_some_and(|lo| lo & Features::EXTENDED.lo != 0)
    }
}

impl std::fmt::Debug for Auth<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth")
            .field("tenant_id", &self.tenant_id)
            .field("token", &"<hidden>")
            .field("client_flags", &self.client_flags)
            .field("client_features", &self.client_features)
            .field("client_features_hi", &self.client_features_hi)
            .finish()
    }
}

/// `auth_ok`.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthOk {
    /// Flag bits the broker understands.
    pub server_flags: Flags,
    /// First feature word; absent means 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_features: Option<u32>,
    /// Second feature word; see `Features::words`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_features_hi: Option<u32>,
    /// More client ports of this broker on the same host; only ports that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener_ports: Option<Vec<u16>>,
    /// Acked publishes that may be unanswered; only with `PUBLISH_PIPELINE` on both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_window: Option<u32>,
    /// Private, `CORE_HINTS`: cores of this broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Private, `CORE_HINTS`: the core this connection is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreId>,
}

impl AuthOk {
    /// Features the broker announced, without the marker.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::announced(self.server_features, self.server_features_hi)
    }
}
