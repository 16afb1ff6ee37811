//! The permission language: `action:object`, allow rules only (control-plane-api 3.1-3.3).
//! Matching is byte-wise and case-sensitive; a `*` stands for one whole trailing segment, or for the rest of a cache key.

use std::fmt;

/// What a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    RbacView,
    RbacPolicyManage,
    RbacAssignmentManage,
    TenantManage,
    NsManage,
    StreamManage,
    CacheManage,
    StreamPublish,
    StreamSubscribe,
    CacheRead,
    CacheWrite,
    GroupConsume,
    GroupManage,
    NodeView,
    NodeManage,
    TokenDelegate,
}

impl Action {
    /// Every action, in the order of control-plane-api 3.1.
    pub const ALL: [Action; 16] = [
        Action::RbacView,
        Action::RbacPolicyManage,
        Action::RbacAssignmentManage,
        Action::TenantManage,
        Action::NsManage,
        Action::StreamManage,
        Action::CacheManage,
        Action::StreamPublish,
        Action::StreamSubscribe,
        Action::CacheRead,
        Action::CacheWrite,
        Action::GroupConsume,
        Action::GroupManage,
        Action::NodeView,
        Action::NodeManage,
        Action::TokenDelegate,
    ];

    /// The spelling in tokens.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::RbacView => "rbac.view",
            Action::RbacPolicyManage => "rbac.policy.manage",
            Action::RbacAssignmentManage => "rbac.assignment.manage",
            Action::TenantManage => "tenant.manage",
            Action::NsManage => "ns.manage",
            Action::StreamManage => "stream.manage",
            Action::CacheManage => "cache.manage",
            Action::StreamPublish => "stream.publish",
            Action::StreamSubscribe => "stream.subscribe",
            Action::CacheRead => "cache.read",
            Action::CacheWrite => "cache.write",
            Action::GroupConsume => "group.consume",
            Action::GroupManage => "group.manage",
            Action::NodeView => "node.view",
            Action::NodeManage => "node.manage",
            Action::TokenDelegate => "token.delegate",
        }
    }

    /// The action of that spelling.
    pub fn parse(text: &str) -> Result<Action, PermissionError> {
        Action::ALL.into_iter().find(|a| a.as_str() == text).ok_or(PermissionError::Action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of actions in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ActionSet(u32);

impl ActionSet {
    /// The set of one action.
    pub const fn of(action: Action) -> ActionSet {
        ActionSet(1 << action as u32)
    }

    /// Both sets together.
    pub const fn with(self, action: Action) -> ActionSet {
        ActionSet(self.0 | 1 << action as u32)
    }

    /// Whether the sets share an action.
    pub const fn meets(self, other: ActionSet) -> bool {
        self.0 & other.0 != 0
    }
}

/// Why a permission string is refused. Never repeats the string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermissionError {
    #[error("invalid permission: it must be action:object")]
    Shape,
    #[error("invalid action: it is not one of the known actions")]
    Action,
    #[error("invalid object: {0}")]
    Object(&'static str),
    #[error("invalid object: it names another tenant")]
    OtherTenant,
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Any,
    Name(Box<str>),
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, PermissionError> {
        match text {
            "" => Err(PermissionError::Object("a segment is empty")),
            "*" => Ok(Segment::Any),
            name if name.contains('*') => {
                Err(PermissionError::Object("a star must stand for a whole segment"))
            }
            name if name.contains(':') => Err(PermissionError::Object("a segment holds a colon")),
            name => Ok(Segment::Name(name.into())),
        }
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Segment::Any => true,
            Segment::Name(name) => **name == *text,
        }
    }

    fn is_any(&self) -> bool {
        matches!(self, Segment::Any)
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Segment::Any => f.write_str("*"),
            Segment::Name(name) => f.write_str(name),
        }
    }
}

/// What a permission covers; made by [`ObjectPattern::parse`] only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectPattern(pub(super) Pattern);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pattern {
    Tenant { tenant: Box<str> },
    Namespace { tenant: Box<str>, namespace: Segment },
    Stream { tenant: Box<str>, namespace: Segment, stream: Segment },
    Cache { tenant: Box<str>, namespace: Segment, cache: Segment },
    CacheKey { tenant: Box<str>, namespace: Box<str>, cache: Box<str>, key: KeyPattern },
    Group { tenant: Box<str>, namespace: Segment, stream: Segment, group: Segment },
    Node { node_id: Box<str> },
    Cluster,
}

/// The key part of a grant on cache keys. A prefix is a plain byte prefix and never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyPattern {
    Exact(Box<str>),
    Prefix(Box<str>),
}

/// Which family an object belongs to. A cache key is of the family of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    Tenant,
    Namespace,
    Stream,
    Cache,
    Group,
    Node,
    Cluster,
}

/// One concrete thing to be allowed; names borrowed from the request. `Keys` are all keys that begin with `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<'a> {
    Tenant { tenant: &'a str },
    Namespace { tenant: &'a str, namespace: &'a str },
    Stream { tenant: &'a str, namespace: &'a str, stream: &'a str },
    Cache { tenant: &'a str, namespace: &'a str, cache: &'a str },
    CacheKey { tenant: &'a str, namespace: &'a str, cache: &'a str, key: &'a [u8] },
    Keys { tenant: &'a str, namespace: &'a str, cache: &'a str, prefix: &'a [u8] },
    Group { tenant: &'a str, namespace: &'a str, stream: &'a str, group: &'a str },
    Node { node_id: &'a str },
    Cluster,
}

impl ObjectPattern {
    /// Parses `kind:rest` as control-plane-api 3.2.
    pub fn parse(text: &str) -> Result<ObjectPattern, PermissionError> {
        let (kind, rest) = text.split_once(':').ok_or(PermissionError::Shape)?;
        let pattern = match kind {
            "tenant" => Pattern::Tenant { tenant: named(rest)? },
            "namespace" => {
                let [tenant, namespace] = segments(rest)?;
                Pattern::Namespace { tenant: named(tenant)?, namespace: Segment::parse(namespace)? }
            }
            "stream" => {
                let [tenant, namespace, stream] = segments(rest)?;
                let (namespace, stream) = (Segment::parse(namespace)?, Segment::parse(stream)?);
                stars_trail(&[&namespace, &stream])?;
                Pattern::Stream { tenant: named(tenant)?, namespace, stream }
            }
            "cache" => parse_cache(rest)?,
            "group" => {
                let [tenant, namespace, stream, group] = segments(rest)?;
                let (namespace, stream) = (Segment::parse(namespace)?, Segment::parse(stream)?);
                let group = Segment::parse(group)?;
                stars_trail(&[&namespace, &stream, &group])?;
                Pattern::Group { tenant: named(tenant)?, namespace, stream, group }
            }
            "node" => Pattern::Node { node_id: named(rest)? },
            "cluster" if rest == "*" => Pattern::Cluster,
            "cluster" => return Err(PermissionError::Object("the cluster is spelled cluster:*")),
            _ => return Err(PermissionError::Object("it is of no known kind")),
        };
        Ok(ObjectPattern(pattern))
    }

    /// The tenant the object lies in; None for nodes and the cluster.
    pub fn tenant(&self) -> Option<&str> {
        match &self.0 {
            Pattern::Tenant { tenant }
            | Pattern::Namespace { tenant, .. }
            | Pattern::Stream { tenant, .. }
            | Pattern::Cache { tenant, .. }
            | Pattern::CacheKey { tenant, .. }
            | Pattern::Group { tenant, .. } => Some(tenant),
            Pattern::Node { .. } | Pattern::Cluster => None,
        }
    }

    /// The family of what it covers.
    pub fn kind(&self) -> ObjectKind {
        match &self.0 {
            Pattern::Tenant { .. } => ObjectKind::Tenant,
            Pattern::Namespace { .. } => ObjectKind::Namespace,
            Pattern::Stream { .. } => ObjectKind::Stream,
            Pattern::Cache { .. } | Pattern::CacheKey { .. } => ObjectKind::Cache,
            Pattern::Group { .. } => ObjectKind::Group,
            Pattern::Node { .. } => ObjectKind::Node,
            Pattern::Cluster => ObjectKind::Cluster,
        }
    }

    /// Whether the pattern covers the object. A cache covers its keys; nothing else crosses families.
    pub fn matches(&self, object: Object<'_>) -> bool {
        match (&self.0, object) {
            (Pattern::Tenant { tenant }, Object::Tenant { tenant: t }) => **tenant == *t,
            (Pattern::Namespace { tenant, namespace }, Object::Namespace { tenant: t, namespace: n }) => {
                **tenant == *t && namespace.matches(n)
            }
            (
                Pattern::Stream { tenant, namespace, stream },
                Object::Stream { tenant: t, namespace: n, stream: s },
            ) => **tenant == *t && namespace.matches(n) && stream.matches(s),
            (
                Pattern::Cache { tenant, namespace, cache },
                Object::Cache { tenant: t, namespace: n, cache: c }
                | Object::CacheKey { tenant: t, namespace: n, cache: c, .. }
                | Object::Keys { tenant: t, namespace: n, cache: c, .. },
            ) => **tenant == *t && namespace.matches(n) && cache.matches(c),
            (
                Pattern::CacheKey { tenant, namespace, cache, key },
                Object::CacheKey { tenant: t, namespace: n, cache: c, key: k },
            ) => **tenant == *t && **namespace == *n && **cache == *c && key.matches(k),
            (
                Pattern::CacheKey { tenant, namespace, cache, key },
                Object::Keys { tenant: t, namespace: n, cache: c, prefix },
            ) => **tenant == *t && **namespace == *n && **cache == *c && key.matches_all(prefix),
            (
                Pattern::Group { tenant, namespace, stream, group },
                Object::Group { tenant: t, namespace: n, stream: s, group: g },
            ) => **tenant == *t && namespace.matches(n) && stream.matches(s) && group.matches(g),
            (Pattern::Node { node_id }, Object::Node { node_id: id }) => **node_id == *id,
            (Pattern::Cluster, Object::Cluster) => true,
            _ => false,
        }
    }

    /// Whether it is a group pattern that covers some group of the stream.
    pub(super) fn covers_a_group_of(&self, tenant: &str, namespace: &str, stream: &str) -> bool {
        match &self.0 {
            Pattern::Group { tenant: t, namespace: n, stream: s, .. } => {
                **t == *tenant && n.matches(namespace) && s.matches(stream)
            }
            _ => false,
        }
    }
}

impl KeyPattern {
    fn matches(&self, key: &[u8]) -> bool {
        match self {
            KeyPattern::Exact(text) => text.as_bytes() == key,
            KeyPattern::Prefix(text) => key.starts_with(text.as_bytes()),
        }
    }

    /// Whether it matches every key that begins with `prefix`.
    fn matches_all(&self, prefix: &[u8]) -> bool {
        match self {
            KeyPattern::Exact(_) => false,
            KeyPattern::Prefix(text) => prefix.starts_with(text.as_bytes()),
        }
    }
}

impl fmt::Display for ObjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Pattern::Tenant { tenant } => write!(f, "tenant:{tenant}"),
            Pattern::Namespace { tenant, namespace } => write!(f, "namespace:{tenant}/{namespace}"),
            Pattern::Stream { tenant, namespace, stream } => {
                write!(f, "stream:{tenant}/{namespace}/{stream}")
            }
            Pattern::Cache { tenant, namespace, cache } => write!(f, "cache:{tenant}/{namespace}/{cache}"),
            Pattern::CacheKey { tenant, namespace, cache, key } => {
                write!(f, "cache:{tenant}/{namespace}/{cache}/")?;
                match key {
                    KeyPattern::Exact(key) => f.write_str(key),
                    KeyPattern::Prefix(prefix) => write!(f, "{prefix}*"),
                }
            }
            Pattern::Group { tenant, namespace, stream, group } => {
                write!(f, "group:{tenant}/{namespace}/{stream}/{group}")
            }
            Pattern::Node { node_id } => write!(f, "node:{node_id}"),
            Pattern::Cluster => f.write_str("cluster:*"),
        }
    }
}

/// One allow rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permission {
    pub action: Action,
    pub object: ObjectPattern,
}

impl Permission {
    /// Parses `action:object`, split at the first colon.
    pub fn parse(text: &str) -> Result<Permission, PermissionError> {
        let (action, object) = text.split_once(':').ok_or(PermissionError::Shape)?;
        Permission::new(Action::parse(action)?, ObjectPattern::parse(object)?)
    }

    /// The rule of both; a cache key takes `cache.read` and `cache.write` only.
    pub fn new(action: Action, object: ObjectPattern) -> Result<Permission, PermissionError> {
        let of_keys = matches!(object.0, Pattern::CacheKey { .. });
        if of_keys && !matches!(action, Action::CacheRead | Action::CacheWrite) {
            return Err(PermissionError::Object("a cache key takes cache.read and cache.write only"));
        }
        Ok(Permission { action, object })
    }

    /// Whether this rule alone allows it, without what the action implies.
    pub fn allows(&self, action: Action, object: Object<'_>) -> bool {
        self.action == action && self.object.matches(object)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.action, self.object)
    }
}

/// The permissions and everything they imply when a token is minted (3.3), each once, the given ones first.
///
/// `tenant.manage` on a tenant gives `ns.manage` on all of its namespaces; `ns.manage` gives managing, publishing,
/// subscribing, reading and writing inside. What a broker implies by itself is not added.
pub fn expand_implied(permissions: &[Permission]) -> Vec<Permission> {
    let mut all: Vec<Permission> = Vec::with_capacity(permissions.len());
    let mut add = |p: Permission| {
        if !all.contains(&p) {
            all.push(p);
        }
    };
    permissions.iter().cloned().for_each(&mut add);
    for permission in permissions {
        let (tenant, namespace) = match (permission.action, &permission.object.0) {
            (Action::TenantManage, Pattern::Tenant { tenant }) => {
                let pattern = Pattern::Namespace { tenant: tenant.clone(), namespace: Segment::Any };
                add(Permission { action: Action::NsManage, object: ObjectPattern(pattern) });
                (tenant, &Segment::Any)
            }
            (Action::NsManage, Pattern::Namespace { tenant, namespace }) => (tenant, namespace),
            _ => continue,
        };
        for action in [Action::StreamManage, Action::StreamPublish, Action::StreamSubscribe] {
            let (tenant, namespace) = (tenant.clone(), namespace.clone());
            let object = ObjectPattern(Pattern::Stream { tenant, namespace, stream: Segment::Any });
            add(Permission { action, object });
        }
        for action in [Action::CacheManage, Action::CacheRead, Action::CacheWrite] {
            let (tenant, namespace) = (tenant.clone(), namespace.clone());
            let object = ObjectPattern(Pattern::Cache { tenant, namespace, cache: Segment::Any });
            add(Permission { action, object });
        }
    }
    all
}

fn named(text: &str) -> Result<Box<str>, PermissionError> {
    match Segment::parse(text)? {
        Segment::Any => Err(PermissionError::Object("a tenant or node must be named")),
        Segment::Name(name) if name.contains('/') => Err(PermissionError::Object("it has too many segments")),
        Segment::Name(name) => Ok(name),
    }
}

fn segments<const N: usize>(rest: &str) -> Result<[&str; N], PermissionError> {
    let mut parts = [""; N];
    let mut given = rest.split('/');
    for part in &mut parts {
        *part = given.next().ok_or(PermissionError::Object("it has too few segments"))?;
    }
    match given.next() {
        None => Ok(parts),
        Some(_) => Err(PermissionError::Object("it has too many segments")),
    }
}

fn stars_trail(segments: &[&Segment]) -> Result<(), PermissionError> {
    let named_after_star =
        segments.iter().skip_while(|segment| !segment.is_any()).any(|segment| !segment.is_any());
    match named_after_star {
        true => Err(PermissionError::Object("a star may stand only over starred segments")),
        false => Ok(()),
    }
}

/// `{t}/{ns}/{c}`, or with everything after the third slash as the key, which may hold any character.
fn parse_cache(rest: &str) -> Result<Pattern, PermissionError> {
    let mut parts = rest.splitn(4, '/');
    let missing = PermissionError::Object("it has too few segments");
    let tenant = named(parts.next().ok_or(missing)?)?;
    let namespace = Segment::parse(parts.next().ok_or(missing)?)?;
    let cache = Segment::parse(parts.next().ok_or(missing)?)?;
    stars_trail(&[&namespace, &cache])?;
    let Some(key) = parts.next() else { return Ok(Pattern::Cache { tenant, namespace, cache }) };
    let (Segment::Name(namespace), Segment::Name(cache)) = (namespace, cache) else {
        return Err(PermissionError::Object("a key needs its namespace and cache named"));
    };
    let (stem, starred) = match key.strip_suffix('*') {
        Some(stem) => (stem, true),
        None => (key, false),
    };
    let key = match (stem, starred) {
        ("", true) => return Err(PermissionError::Object("a bare star is spelled without the key part")),
        ("", false) => return Err(PermissionError::Object("the key is empty")),
        (stem, _) if stem.contains('*') => {
            return Err(PermissionError::Object("a star may only end a key"));
        }
        (stem, true) => KeyPattern::Prefix(stem.into()),
        (stem, false) => KeyPattern::Exact(stem.into()),
    };
    Ok(Pattern::CacheKey { tenant, namespace, cache, key })
}

#[cfg(test)]
mod tests;
