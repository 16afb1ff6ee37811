//! The names of simulated files and directories, durable and visible, and the changes between. Scope: one machine.
//! Invariants: as for data: a change whose directories are not synced may be there or not after a power loss, each by
//! itself; a rename within one directory is there or not; one between two directories may be found half done, under both
//! names, never under none.
//! Not here: the bytes of files, which are known by number only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::data::{Keep, State};
use crate::sim::SimRng;

/// Number of a file or directory, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Inode(pub(super) u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    File(Inode),
    Dir(Inode),
}

/// A name in a directory.
pub(super) type Place = (Inode, Box<str>);

type Map = BTreeMap<Place, Node>;

#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Put { place: Place, node: Node },
    Drop { place: Place, node: Node },
    Move { from: Place, to: Place, node: Node },
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    change: NameChange,
    state: State,
    /// Of a move: the new name is durable, the old one perhaps still there as well.
    half: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    durable: Map,
    visible: Map,
    pending: VecDeque<Pending>,
}

impl Names {
    pub(super) fn get(&self, place: &Place) -> Option<Node> {
        self.visible.get(place).copied()
    }

    /// What is in a directory, by name.
    pub(super) fn list(&self, dir: Inode) -> impl Iterator<Item = (&str, Node)> {
        let from: Place = (dir, Box::from(""));
        self.visible
            .range(from..)
            .take_while(move |((at, _), _)| *at == dir)
            .map(|((_, name), node)| (&**name, *node))
    }

    /// Begins a change: visible at once, stored when answered.
    pub(super) fn begin(&mut self, number: u64, change: NameChange) {
        change.apply(&mut self.visible, true);
        self.pending.push_back(Pending { number, change, state: State::InFlight, half: false });
    }

    pub(super) fn set_state(&mut self, number: u64, state: State) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.number == number) {
            pending.state = state;
        }
    }

    /// A directory's sync was answered that began after the `upto`th answer.
    pub(super) fn synced(&mut self, dir: Inode, upto: u64) {
        for pending in &mut self.pending {
            if !matches!(pending.state, State::Stored { nth } if nth <= upto) {
                continue;
            }
            match &pending.change {
                NameChange::Put { place, .. } | NameChange::Drop { place, .. } => {
                    if place.0 == dir {
                        pending.state = State::Durable;
                    }
                }
                // A file system that knows the old name to be gone also has the new one.
                NameChange::Move { from, .. } if from.0 == dir => pending.state = State::Durable,
                NameChange::Move { to, .. } if to.0 == dir => pending.half = true,
                NameChange::Move { .. } => {}
            }
        }
        while self.pending.front().is_some_and(|first| first.state == State::Durable) {
            if let Some(first) = self.pending.pop_front() {
                first.change.apply(&mut self.durable, true);
            }
        }
    }

    /// A directory's sync failed: no later one makes durable what it was to cover.
    pub(super) fn sync_failed(&mut self, dir: Inode, upto: u64) {
        for pending in &mut self.pending {
            if matches!(pending.state, State::Stored { nth } if nth <= upto) && pending.change.touches(dir) {
                pending.state = State::Doubtful;
            }
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        self.pending.iter().all(|pending| pending.state == State::Durable)
    }

    /// What there is after a power loss.
    pub(super) fn after_power_loss(&self, rng: &mut SimRng) -> Names {
        let keep = Keep::draw(rng, self.pending.len());
        let mut map = self.durable.clone();
        for (index, pending) in self.pending.iter().enumerate() {
            let kept = pending.state == State::Durable
                || match keep {
                    Keep::Nothing => false,
                    Keep::Everything => true,
                    Keep::First(count) => index < count,
                    Keep::Any { ppm } => rng.chance(ppm),
                };
            let half_only = pending.state != State::Durable
                && pending.change.is_between_directories()
                && (!kept || rng.chance(500_000));
            if kept || pending.half {
                pending.change.apply(&mut map, !half_only);
            }
        }
        Names::of(map)
    }

    /// The same, with everything visible durable.
    pub(super) fn at_rest(&self) -> Names {
        Names::of(self.visible.clone())
    }

    fn of(map: Map) -> Names {
        Names { durable: map.clone(), visible: map, pending: VecDeque::new() }
    }

    /// Everything that has a name, or may have one again after a power loss.
    pub(super) fn in_use(&self) -> BTreeSet<Node> {
        let pending = self.pending.iter().map(|pending| pending.change.node());
        self.durable.values().chain(self.visible.values()).copied().chain(pending).collect()
    }

    pub(super) fn visible_nodes(&self) -> impl Iterator<Item = Node> {
        self.visible.values().copied()
    }

    /// Drops names in directories that cannot be reached from `roots`.
    pub(super) fn prune(&mut self, roots: &[Inode]) {
        let mut reached: BTreeSet<Inode> = roots.iter().copied().collect();
        let mut next: Vec<Inode> = roots.to_vec();
        while let Some(dir) = next.pop() {
            for (_, node) in self.list(dir) {
                if let Node::Dir(inner) = node
                    && reached.insert(inner)
                {
                    next.push(inner);
                }
            }
        }
        self.visible.retain(|(dir, _), _| reached.contains(dir));
        self.durable.retain(|(dir, _), _| reached.contains(dir));
    }
}

impl NameChange {
    fn node(&self) -> Node {
        match self {
            NameChange::Put { node, .. } | NameChange::Drop { node, .. } | NameChange::Move { node, .. } => {
                *node
            }
        }
    }

    fn touches(&self, dir: Inode) -> bool {
        match self {
            NameChange::Put { place, .. } | NameChange::Drop { place, .. } => place.0 == dir,
            NameChange::Move { from, to, .. } => from.0 == dir || to.0 == dir,
        }
    }

    fn is_between_directories(&self) -> bool {
        matches!(self, NameChange::Move { from, to, .. } if from.0 != to.0)
    }

    /// A move that is not `whole` leaves the old name.
    fn apply(&self, map: &mut Map, whole: bool) {
        match self {
            NameChange::Put { place, node } => {
                map.insert(place.clone(), *node);
            }
            NameChange::Drop { place, node } => remove(map, place, *node),
            NameChange::Move { from, to, node } => {
                if whole {
                    remove(map, from, *node);
                }
                map.insert(to.clone(), *node);
            }
        }
    }
}

/// Removes a name, unless something else has it by now.
fn remove(map: &mut Map, place: &Place, node: Node) {
    if map.get(place) == Some(&node) {
        map.remove(place);
    }
}
