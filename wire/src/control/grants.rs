//! What one token allows, compiled once and asked often. Scope: one per accepted token.
//! Owns: the rules of the token. Invariants: deny by default; a look-up allocates nothing.

use super::permission::{Action, ActionSet, Object, ObjectKind, ObjectPattern, Permission, PermissionError};
use super::token::Claims;

/// The rules of one token, merged by object.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    rules: Vec<(ActionSet, ObjectPattern)>,
}

impl Grants {
    /// Compiles the permissions of a verified token. An unknown action, an object that does not parse and an object in
    /// another tenant than the token's are errors: such a token is refused whole (control-plane-api 2.1, 3.2).
    pub fn from_claims(claims: &Claims) -> Result<Grants, PermissionError> {
        let mut permissions = Vec::with_capacity(claims.perms.len());
        for text in &claims.perms {
            let permission = Permission::parse(text)?;
            if permission.object.tenant().is_some_and(|tenant| tenant != claims.tid) {
                return Err(PermissionError::OtherTenant);
            }
            permissions.push(permission);
        }
        Ok(Grants::from_permissions(permissions))
    }

    /// Merges the permissions as they are; what they imply at minting is not added.
    pub fn from_permissions(permissions: impl IntoIterator<Item = Permission>) -> Grants {
        let mut rules: Vec<(ActionSet, ObjectPattern)> = Vec::new();
        for permission in permissions {
            match rules.iter_mut().find(|(_, object)| *object == permission.object) {
                Some((actions, _)) => *actions = actions.with(permission.action),
                None => rules.push((ActionSet::of(permission.action), permission.object)),
            }
        }
        Grants { rules }
    }

    /// Whether some rule allows the action on the object. For groups use [`Grants::allows_group`].
    pub fn allows(&self, action: Action, object: Object<'_>) -> bool {
        self.any(ActionSet::of(action), object)
    }

    /// `stream.publish`, `stream.subscribe` or `stream.manage` on one stream.
    pub fn allows_stream(&self, action: Action, tenant: &str, namespace: &str, stream: &str) -> bool {
        self.allows(action, Object::Stream { tenant, namespace, stream })
    }

    /// A cache action on the whole cache; a grant on some of its keys is not enough.
    pub fn allows_cache(&self, action: Action, tenant: &str, namespace: &str, cache: &str) -> bool {
        self.allows(action, Object::Cache { tenant, namespace, cache })
    }

    /// `cache.read` or `cache.write` on one key.
    pub fn allows_cache_key(
        &self,
        action: Action,
        tenant: &str,
        namespace: &str,
        cache: &str,
        key: &[u8],
    ) -> bool {
        self.allows(action, Object::CacheKey { tenant, namespace, cache, key })
    }

    /// `cache.read` or `cache.write` on every key that begins with `prefix`: one rule has to cover them all.
    pub fn allows_cache_prefix(
        &self,
        action: Action,
        tenant: &str,
        namespace: &str,
        cache: &str,
        prefix: &[u8],
    ) -> bool {
        self.allows(action, Object::Keys { tenant, namespace, cache, prefix })
    }

    /// `group.consume` or `group.manage` on one group of a stream.
    ///
    /// `stream.subscribe` counts as `group.consume` and `stream.manage` as `group.manage`. A rule on the stream covers
    /// its groups, unless the token names groups of that stream: then only the named ones are allowed (3.3).
    pub fn allows_group(
        &self,
        action: Action,
        tenant: &str,
        namespace: &str,
        stream: &str,
        group: &str,
    ) -> bool {
        let actions = match action {
            Action::GroupConsume => ActionSet::of(action).with(Action::StreamSubscribe),
            Action::GroupManage => ActionSet::of(action).with(Action::StreamManage),
            _ => return false,
        };
        let narrowed = |(set, object): &(ActionSet, ObjectPattern)| {
            set.meets(actions) && object.covers_a_group_of(tenant, namespace, stream)
        };
        self.any(actions, Object::Group { tenant, namespace, stream, group })
            || (self.any(actions, Object::Stream { tenant, namespace, stream })
                && !self.rules.iter().any(narrowed))
    }

    /// Whether some rule gives the action on some object of that family.
    pub fn holds_any(&self, action: Action, kind: ObjectKind) -> bool {
        self.rules.iter().any(|(set, object)| set.meets(ActionSet::of(action)) && object.kind() == kind)
    }

    fn any(&self, actions: ActionSet, object: Object<'_>) -> bool {
        self.rules.iter().any(|(set, pattern)| set.meets(actions) && pattern.matches(object))
    }
}

#[cfg(test)]
mod tests;
