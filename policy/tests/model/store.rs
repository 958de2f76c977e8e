//! The lock in its store, a `key` lock: what was written, and what a watch or a read tells of it.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use fencepost_policy::{
    Content, FenceToken, Holding, KeyEvent, KeyTrack, Layout, Owner, Reading, Revision, Snapshot,
    Step, Tenure, Write,
};

/// Who holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    A,
    B,
}

impl Name {
    pub(crate) const ALL: [Name; 2] = [Name::A, Name::B];

    fn bytes(self) -> &'static [u8] {
        match self {
            Name::A => b"a",
            Name::B => b"b",
        }
    }
}

/// What a request presents. Anybody may present anything: it need not have been granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token {
    pub(crate) name: Name,
    pub(crate) at: Revision,
}

impl Token {
    pub(crate) fn presented(self) -> FenceToken<&'static [u8]> {
        FenceToken { owner: self.name.bytes(), revision: self.at }
    }
}

/// Everything that was ever written to the lock's key: at revision `r`, the `r`th entry. `None`
/// deletes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct History(Vec<Option<Name>>);

impl History {
    /// Acquired for the first time.
    pub(crate) fn begun() -> History {
        History(vec![Some(Name::A)])
    }

    pub(crate) fn newest(&self) -> Revision {
        Revision::new(self.0.len() as u64).unwrap()
    }

    pub(crate) fn revisions(&self) -> impl Iterator<Item = Revision> + use<> {
        (1..=self.0.len() as u64).filter_map(Revision::new)
    }

    /// Acquires, takes over without a release, renews, or (`None`) releases.
    pub(crate) fn write(&mut self, owner: Option<Name>) {
        self.0.push(owner);
    }

    pub(crate) fn owner_at(&self, at: Revision) -> Option<Name> {
        self.0.get(at.get() as usize - 1).copied().flatten()
    }

    /// The `first` revision of the tenure that holds the lock then. This is the truth that the
    /// model's properties are held against, so it leans on nothing that it is to check.
    pub(crate) fn tenure_at(&self, at: Revision) -> Option<Revision> {
        let owner = self.owner_at(at)?;
        let mut first = at;
        while let Some(before) =
            first.before().filter(|before| self.owner_at(*before) == Some(owner))
        {
            first = before;
        }
        Some(first)
    }

    /// The tenure that a token names, if its sender ever held it.
    pub(crate) fn tenure_of(&self, token: Token) -> Option<Revision> {
        if self.owner_at(token.at) == Some(token.name) { self.tenure_at(token.at) } else { None }
    }

    /// Which tenure that is, counted from 1.
    pub(crate) fn ordinal(&self, tenure: Revision) -> usize {
        self.revisions().filter(|at| *at <= tenure && self.tenure_at(*at) == Some(*at)).count()
    }

    /// The key as it is at that revision.
    fn key_at(&self, at: Revision) -> Option<Write> {
        let owner = self.owner_at(at)?;
        let mut created = at;
        while let Some(before) = created.before().filter(|before| self.owner_at(*before).is_some())
        {
            created = before;
        }
        let version = at.get() - created.get() + 1;
        Some(Write {
            revision: at,
            created,
            version,
            content: Content::Owner(Owner::new(owner.bytes())),
        })
    }

    /// What the store says about that revision, now or at any time later, added to what was known
    /// before.
    pub(crate) fn tell(&self, known: Option<&News>, message: Message) -> Option<News> {
        let known = known.map(|news| &news.track);
        let track = match message {
            Message::Event(at) => {
                let event = self.key_at(at).map_or(KeyEvent::Delete(at), KeyEvent::Put);
                match known?.event(event) {
                    Step::Next(track) => track,
                    Step::Ignored | Step::Gap => return None,
                }
            }
            Message::Read(at) => {
                let mut reading = KeyTrack::read(known, at, self.key_at(at));
                loop {
                    reading = match reading {
                        Reading::Known(track) => break track,
                        Reading::Walk(walk) => {
                            let before = self.key_at(walk.reads_at());
                            walk.shown(before)
                        }
                    };
                }
            }
            Message::ReadAfterCompaction(at) => match KeyTrack::read(known, at, self.key_at(at)) {
                Reading::Known(track) => track,
                Reading::Walk(walk) => walk.ends_here(),
            },
        };
        (known != Some(&track)).then(|| News::new(track))
    }
}

/// How news of the lock reaches the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// The watch tells of the write at that revision.
    Event(Revision),
    /// A read shows the key as of that revision.
    Read(Revision),
    /// A read shows the key as of that revision, and the history before it is compacted away.
    ReadAfterCompaction(Revision),
}

/// What the proxy knows of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct News {
    track: KeyTrack,
    pub(crate) snapshot: Snapshot,
}

impl News {
    fn new(track: KeyTrack) -> News {
        News { snapshot: track.snapshot(), track }
    }

    /// All that tells two of them apart, given one history.
    fn essence(&self) -> (Revision, &Holding) {
        (self.track.as_of(), &self.snapshot.holding)
    }
}

impl Hash for News {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.essence().hash(state);
    }
}

impl PartialOrd for News {
    fn partial_cmp(&self, other: &News) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for News {
    fn cmp(&self, other: &News) -> Ordering {
        self.essence().cmp(&other.essence())
    }
}

/// A snapshot in which somebody holds the lock from `first` on.
pub(crate) fn held_from(first: Revision) -> (Snapshot, Token) {
    let token = Token { name: Name::A, at: first };
    let tenure = Tenure { owner: Owner::new(token.name.bytes()), first, last: first };
    (
        Snapshot {
            layout: Layout::Key,
            as_of: Some(first),
            holding: Holding::Held(tenure),
            waiters: [].into(),
        },
        token,
    )
}
