use super::slots::{Slots, Ticket, Unconfirmed};

#[test]
fn asking_while_a_read_runs_is_served_by_the_next() {
    let slots = Slots::new();
    let (first, start) = slots.ask();
    assert!(start);
    assert!(slots.begin());
    let later: Vec<Ticket> = (0..256)
        .map(|_| slots.ask())
        .map(|(ticket, start)| (!start).then_some(ticket).unwrap())
        .collect();
    assert!(later.iter().all(|ticket| *ticket > first));
    slots.finish(Ok(()));
    assert!(slots.outcome(first).is_some() && slots.outcome(later[0]).is_none());
    assert!(slots.begin());
    slots.finish(Err(Unconfirmed::Deadline));
    assert!(
        later
            .iter()
            .all(|ticket| matches!(slots.outcome(*ticket), Some(Err(Unconfirmed::Deadline))))
    );
    assert!(!slots.begin());
    assert!(slots.ask().1, "the next one who asks sets a task on it again");
}

#[test]
fn joining_takes_a_read_that_runs_already() {
    let slots = Slots::new();
    let (first, _) = slots.ask();
    slots.begin();
    assert_eq!(slots.join(), (first, false));
    slots.finish(Ok(()));
    assert!(!slots.begin());
    assert!(slots.join().0 > first);
}
