//! Which versions of etcd are known to answer a linearizable read with old data.

/// Whether etcd of that version is known to answer a linearizable read with old data after its
/// process was paused (etcd-io/etcd#20418): below 3.4.42, 3.5.28 and 3.6.9. A version that is no
/// release counts as one of them.
///
/// ```
/// use fencepost_locks::known_stale_reads;
///
/// assert!(known_stale_reads("3.5.27"));
/// assert!(!known_stale_reads("3.5.28"));
/// ```
pub fn known_stale_reads(version: &str) -> bool {
    let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[3, 4, patch]) => patch < 42,
        Some(&[3, 5, patch]) => patch < 28,
        Some(&[3, 6, patch]) => patch < 9,
        Some(&[major, minor, _]) => (major, minor) < (3, 4),
        Some(_) | None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_to_read_stale_unless_repaired() {
        let stale =
            "3.4.23 3.4.41 3.5.1 3.5.27 3.6.8 3.6.0-rc.0 3.5.28-rc.1 3.6.9+git 3.3.27 2.3.8";
        let unknown = " 3 3.5 3.5.x v3.5.28 3.5.28.1 not_decided 3.5.-1 99999999999.0.0";
        for version in stale.split(' ').chain(unknown.split(' ')) {
            assert!(known_stale_reads(version), "{version:?}");
        }
        for version in "3.4.42 3.4.100 3.5.28 3.6.9 3.6.10 3.7.0 3.10.1 4.0.0".split(' ') {
            assert!(!known_stale_reads(version), "{version}");
        }
    }
}
