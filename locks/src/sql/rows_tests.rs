use super::*;

fn column(name: &str, kind: Kind) -> Column {
    Column { name: name.to_owned(), kind, type_name: "numeric".to_owned() }
}

fn columns() -> Vec<Column> {
    use Kind::{Boolean, Integer, Other, Text};
    [("note", Other), ("KEY", Text), ("owner", Text), ("revision", Integer), ("live", Boolean)]
        .map(|(name, kind)| column(name, kind))
        .to_vec()
}

fn found(columns: &[Column], lapsed: Lapsed) -> Result<Columns, String> {
    Columns::find(columns, &[Kind::Boolean], lapsed)
}

#[test]
fn columns_are_found_by_name_wherever_they_are() {
    let all = Columns { key: 1, owner: 2, revision: 3, live: Some(4) };
    assert_eq!(found(&columns(), Lapsed::Ends), Ok(all));
    let without = Columns { live: None, ..all };
    assert_eq!(found(&columns(), Lapsed::Holds), Ok(without));
    assert_eq!(found(&columns()[..4], Lapsed::Holds), Ok(without), "nothing is made of live");
}

#[test]
fn a_column_that_is_missing_doubled_or_of_another_type_is_named() {
    for (at, name) in [(1, "KEY"), (2, "owner"), (3, "revision"), (4, "live")] {
        let named = format!("{:?}", name.to_lowercase());
        let mut missing = columns();
        missing.remove(at);
        let mut doubled = columns();
        doubled.push(column(name, Kind::Text));
        let mut other = columns();
        other[at].kind = Kind::Other;
        for (columns, problem) in [
            (missing, format!("returns no column {named}")),
            (doubled, format!("returns the column {named} twice")),
            (other, format!("returns {named} as numeric")),
        ] {
            let told = found(&columns, Lapsed::Ends).unwrap_err();
            assert!(told.contains(&problem) && told.contains(WANTED), "{told}");
        }
    }
}

fn row(key: &str) -> Row {
    Row {
        key: Value::Is(key.to_owned()),
        owner: Value::Is(b"a".to_vec()),
        revision: Value::Is(7),
        live: Value::Is(true),
    }
}

/// What the rows say of the lock `orders`, and what is wrong with them.
fn said(rows: &[Row], lapsed: Lapsed) -> (Option<u64>, Seen, String) {
    let key = LockKey::new("orders").unwrap();
    let RecordAnswer { sighting, problem } =
        answers([&key].into_iter(), rows.to_vec(), lapsed, 5).remove(0);
    assert_eq!(sighting.lineage, 5);
    assert_eq!(problem.is_some(), sighting.seen == Seen::Unreadable);
    let problem = problem.as_deref().unwrap_or_default().to_owned();
    (sighting.reach.map(Revision::get), sighting.seen, problem)
}

fn held() -> Seen {
    Seen::Held {
        owner: Owner::new(b"a".as_slice()),
        revision: Revision::new(7).unwrap(),
        stamp: Arc::from(b"a\0\0\0\0\0\0\0\0\x07".as_slice()),
    }
}

#[test]
fn a_row_says_who_holds_the_lock() {
    use Lapsed::{Ends, Holds};
    let lapsed = Row { live: Value::Is(false), ..row("orders") };
    let free = Row { owner: Value::Null, live: Value::Null, ..row("orders") };
    let untaken = Row { revision: Value::Is(0), ..free.clone() };
    let none = String::new;
    for (row, by, expected) in [
        (row("orders"), Ends, (Some(7), held(), none())),
        (row("orders"), Holds, (Some(7), held(), none())),
        (lapsed.clone(), Ends, (Some(7), Seen::Free, none())),
        (lapsed, Holds, (Some(7), held(), none())),
        (free.clone(), Ends, (Some(7), Seen::Free, none())),
        (free, Holds, (Some(7), Seen::Free, none())),
        (untaken, Holds, (None, Seen::Free, none())),
    ] {
        assert_eq!(said(std::slice::from_ref(&row), by), expected, "{row:?} {by:?}");
    }
    assert_eq!(said(&[], Ends), (None, Seen::Free, none()));
    // Two tenures of one owner, or of two with one number, differ.
    let (_, seen, _) = said(&[Row { revision: Value::Is(8), ..row("orders") }], Ends);
    assert_ne!(seen, held());
    let (_, seen, _) = said(&[Row { owner: Value::Is(b"b".to_vec()), ..row("orders") }], Ends);
    assert_ne!(seen, held());
}

#[test]
fn what_a_row_does_not_say_makes_the_lock_unreadable() {
    let positive = "has to be a positive integer";
    let exactly = "it has to compare keys exactly";
    let over = i128::from(Revision::MAX.get()) + 1;
    let revision = |revision| Row { revision, ..row("orders") };
    let unowned = |revision| Row { owner: Value::Null, revision, ..row("orders") };
    for (rows, problem) in [
        (vec![revision(Value::Null)], format!("revision is null, and {positive}")),
        (vec![revision(Value::Wrong)], format!("revision is no number, and {positive}")),
        (vec![revision(Value::Is(0))], format!("revision is 0, and {positive}")),
        (vec![revision(Value::Is(-1))], format!("revision is -1, and {positive}")),
        (vec![revision(Value::Is(over))], format!("revision is {over}, and {positive}")),
        (vec![unowned(Value::Null)], format!("revision is null, and {positive}")),
        (vec![unowned(Value::Is(-1))], format!("revision is -1, and {positive}")),
        (vec![Row { owner: Value::Wrong, ..row("orders") }], "owner is no text".to_owned()),
        (vec![Row { live: Value::Null, ..row("orders") }], "live is null".to_owned()),
        (vec![Row { live: Value::Wrong, ..row("orders") }], "live is no boolean".to_owned()),
        (vec![row("orders"); 2], "lock orders has 2 rows".to_owned()),
        (vec![row("Orders")], exactly.to_owned()),
        (vec![Row { key: Value::Null, ..row("") }], exactly.to_owned()),
        (vec![Row { key: Value::Wrong, ..row("") }], exactly.to_owned()),
    ] {
        let (_, seen, told) = said(&rows, Lapsed::Ends);
        assert_eq!(seen, Seen::Unreadable, "{rows:?}");
        assert!(told.contains(&problem) && told.contains("lock orders"), "{told}");
    }
}

#[test]
fn a_row_of_another_lock_is_none_of_this_one() {
    assert_eq!(
        said(&[row("orders"), row("others")], Lapsed::Ends),
        (Some(7), held(), String::new())
    );
    let keys = ["b", "a", "b"].map(|key| LockKey::new(key).unwrap());
    let told = answers(keys.iter(), vec![row("b")], Lapsed::Ends, 0);
    let seen: Vec<_> = told.into_iter().map(|answer| answer.sighting.seen).collect();
    assert_eq!(seen, [held(), Seen::Free, held()]);
}
