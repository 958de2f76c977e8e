//! Which versions of etcd are known to answer a linearizable read with old data.

use crate::store::Member;

/// Whether etcd of that version is known to answer a linearizable read with old data after its
/// process was paused (etcd-io/etcd#20418): below 3.4.42, 3.5.28 and 3.6.9. A version that can't be
/// read counts as one of them.
///
/// ```
/// use fencepost_locks::known_stale_reads;
///
/// assert!(known_stale_reads("3.5.27"));
/// assert!(!known_stale_reads("3.5.28"));
/// ```
pub fn known_stale_reads(version: &str) -> bool {
    match parse(version) {
        Some(Version { major: 3, minor, patch, before }) => {
            let repaired = match minor {
                4 => 42,
                5 => 28,
                6 => 9,
                later if later > 6 => 0,
                _ => return true,
            };
            (patch, !before) < (repaired, true)
        }
        Some(Version { major, .. }) => major < 3,
        None => true,
    }
}

/// What there is to warn of in a member of a store.
pub fn caution(member: &Member) -> Option<String> {
    let version = member.version.as_ref().ok()?;
    known_stale_reads(version).then(|| {
        format!(
            "{} runs etcd {version}, which can answer a linearizable read with old data after pauses (etcd-io/etcd#20418, fixed in \
             3.4.42, 3.5.28 and 3.6.9): max_age may be exceeded once in such a case",
            member.endpoint
        )
    })
}

struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    /// A pre-release of it, such as `3.6.0-rc.1`.
    before: bool,
}

fn parse(version: &str) -> Option<Version> {
    let (numbers, build) = version.split_once('+').unwrap_or((version, ""));
    let (numbers, before) =
        numbers.split_once('-').map_or((numbers, build == "git"), |(numbers, _)| (numbers, true));
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let parsed = Version {
        major: numbers.next()??,
        minor: numbers.next()??,
        patch: numbers.next()??,
        before,
    };
    numbers.next().is_none().then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_repair_are_known_to_read_stale() {
        for version in [
            "3.4.23",
            "3.4.41",
            "3.5.1",
            "3.5.27",
            "3.6.8",
            "3.6.0-rc.0",
            "3.5.28-rc.1",
            "3.6.9+git",
            "3.3.27",
            "2.3.8",
        ] {
            assert!(known_stale_reads(version), "{version}");
        }
    }

    #[test]
    fn repaired_versions_are_not() {
        for version in [
            "3.4.42",
            "3.4.100",
            "3.5.28",
            "3.6.9",
            "3.6.10",
            "3.7.0",
            "3.10.1",
            "4.0.0",
            "3.5.28+distro1",
        ] {
            assert!(!known_stale_reads(version), "{version}");
        }
    }

    #[test]
    fn a_version_that_cannot_be_read_counts_as_known_to_read_stale() {
        for version in [
            "",
            "3",
            "3.5",
            "3.5.x",
            "v3.5.28",
            "3.5.28.1",
            "not_decided",
            "3.5.-1",
            "99999999999.0.0",
        ] {
            assert!(known_stale_reads(version), "{version:?}");
        }
    }
}
