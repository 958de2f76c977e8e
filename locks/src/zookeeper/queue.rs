//! The names of contenders: in which order they hold a lock, or why they are no queue.

/// Parts of the names that recipes give to the nodes of locks with other rules than a queue's.
const OTHER_RECIPES: [(&str, &str); 5] = [
    ("__READ__", "Curator's read/write lock"),
    ("__WRIT__", "Curator's read/write lock"),
    ("__rlock__", "kazoo's read lock"),
    ("leases", "Curator's semaphore"),
    ("locks", "Curator's semaphore"),
];

/// How many digits ZooKeeper puts at the end of a sequential node's name.
const DIGITS: usize = 10;

/// Sorts the names of a lock's children: the first that exists holds the lock.
///
/// # Errors
/// What is wrong with the children if they are no queue, in words that follow "the children of …".
pub(super) fn in_order(children: Vec<String>) -> Result<Vec<String>, String> {
    let mut numbered = Vec::with_capacity(children.len());
    for name in children {
        numbered.push((sequence(&name)?, name));
    }
    numbered.sort_unstable();
    if let Some(pair) = numbered.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let ((_, one), (_, other)) = (&pair[0], &pair[1]);
        return Err(format!("have one sequence number twice: {one:?} and {other:?}"));
    }
    Ok(numbered.into_iter().map(|(_, name)| name).collect())
}

fn sequence(name: &str) -> Result<u32, String> {
    if let Some((_, recipe)) = OTHER_RECIPES.iter().find(|(part, _)| match *part {
        "leases" | "locks" => name == *part,
        part => name.contains(part),
    }) {
        return Err(format!(
            "are those of {recipe} ({name:?}), which is not held by the first in a queue: use a \
             mutex or an election, or route to its child that is one"
        ));
    }
    let digits = name.len().checked_sub(DIGITS).and_then(|start| name.get(start..));
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let digits = digits.ok_or_else(|| {
        format!("are no queue: the name {name:?} does not end in the {DIGITS} digits of a sequence")
    })?;
    // The server counts in 32 bits with a sign, and goes on below zero.
    let sequence = digits.parse::<i32>().ok().and_then(|sequence| u32::try_from(sequence).ok());
    sequence.ok_or_else(|| {
        format!(
            "have used up the sequence numbers ({name:?}): delete the lock's node once it is free"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(children: &[&str], expected: Result<&[&str], &str>) {
        let found = in_order(children.iter().map(|&name| name.to_owned()).collect());
        match expected {
            Ok(names) => assert_eq!(found.as_deref(), Ok(&names.map_names()[..]), "{children:?}"),
            Err(part) => {
                let error = found.expect_err("no queue");
                assert!(error.contains(part), "{error}");
            }
        }
    }

    trait Names {
        fn map_names(&self) -> Vec<String>;
    }

    impl Names for &[&str] {
        fn map_names(&self) -> Vec<String> {
            self.iter().map(|&name| name.to_owned()).collect()
        }
    }

    #[test]
    fn the_sequence_orders_names_of_any_prefix() {
        let kazoo = "f00dbeeff00dbeeff00dbeeff00dbeef__lock__0000000003";
        let curator = "_c_0a1b2c3d-0000-0000-0000-00000000000f-lock-0000000002";
        let latch = "_c_ffffffff-0000-0000-0000-00000000000f-latch-0000000001";
        check(&[kazoo, curator, latch], Ok(&[latch, curator, kazoo]));
        check(&["n_0000000010", "n_0000000009"], Ok(&["n_0000000009", "n_0000000010"]));
        check(&["2147483647"], Ok(&["2147483647"]));
        check(&[], Ok(&[]));
    }

    #[test]
    fn children_of_other_recipes_are_no_queue() {
        check(&["_c_1-__WRIT__0000000001"], Err("read/write"));
        check(&["_c_1-__READ__0000000001"], Err("read/write"));
        check(&["f00d__rlock__0000000001"], Err("kazoo's read lock"));
        check(&["leases", "locks"], Err("semaphore"));
        check(&["f00dbeef"], Err("does not end in the 10 digits"));
        check(&["lock-000000001"], Err("does not end in the 10 digits"));
        check(&["lock-00000000ü1"], Err("does not end in the 10 digits"));
        check(&["a-0000000001", "b-0000000001"], Err("twice"));
    }

    #[test]
    fn a_sequence_that_has_wrapped_is_no_order() {
        check(&["lock-2147483647", "lock--2147483648"], Err("used up"));
    }
}
