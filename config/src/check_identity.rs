//! From what is written to what it means, for the identity of the senders of one route.

use fencepost_policy::Layout;

use crate::identity::{OwnerPattern, PeerIdentity, PeerNameKind};
use crate::problem::Notes;
use crate::raw::RawIdentity;
use crate::route::Lock;
use crate::setting::Setting;

/// How the senders of a route prove who they are, if they have to; `lock` is missing if it is wrong itself.
pub(crate) fn check_identity(
    raw: Setting<RawIdentity>,
    lock: Option<&Lock>,
    route_is_off: bool,
    notes: &Notes,
) -> Option<PeerIdentity> {
    let place = raw.place.clone();
    let RawIdentity { uri, dns, common_name, take_owner } = raw.into_value()?;
    if route_is_off {
        notes.warning(&place, "nobody is asked for it while the route is off");
    }
    if lock.is_some_and(|lock| lock.record.layout() == Layout::Mutex) {
        notes.problem(
            &place,
            r#"is not for layout = "mutex": there the owner is the full name of the contender's own key, with the id of its lease, and no certificate names that"#,
        );
    }
    let patterns = [(PeerNameKind::Uri, uri), (PeerNameKind::Dns, dns), (PeerNameKind::CommonName, common_name)];
    let (written, _): (Vec<_>, Vec<_>) = patterns.into_iter().partition(|(_, pattern)| pattern.is_written());
    if written.len() != 1 {
        notes.problem(&place, format_args!("must have one of uri, dns and common_name, not {}", written.len()));
    }
    let parse = |(kind, pattern): (_, Setting<String>)| pattern.parse(notes, |text| OwnerPattern::parse(kind, &text));
    let patterns: Vec<OwnerPattern> = written.into_iter().filter_map(|pattern| parse(pattern).into_value()).collect();
    Some(PeerIdentity { pattern: patterns.into_iter().next()?, take_owner: take_owner.or(false) })
}
