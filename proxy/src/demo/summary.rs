//! The end of the story: what reached the worker, what did not, and what would have happened.

use super::client::{Refusal, Write};
use super::expect_that;
use super::narrator::{Narrator, Tone};

/// Tells it, given the writes in the order in which they arrived at the proxy, each with its refusal
/// if it was refused.
pub(super) fn tell(
    narrator: &Narrator,
    arrivals: &[(&Write, Option<&Refusal>)],
) -> anyhow::Result<()> {
    narrator.heading("What happened, in the order of arrival")?;
    narrator.say(&row([
        "write",
        "token",
        "fencepost",
        "worker",
        "balance",
        "without fencepost",
    ]))?;
    let mut balance = 0;
    let mut unfenced_balance = 0;
    for (write, refusal) in arrivals {
        // A worker that stands alone applies what comes.
        unfenced_balance = write.balance;
        let (tone, said, worker) = match refusal {
            None => {
                balance = write.balance;
                (Tone::Through, "forwarded".to_owned(), "applied")
            }
            Some(refusal) => {
                (Tone::KeptOut, format!("{} {}", refusal.status, refusal.reason), "never saw it")
            }
        };
        let token = format!("{}, {}", write.token.owner, write.token.revision);
        let (balance, unfenced) = (balance.to_string(), unfenced_balance.to_string());
        narrator.stress(tone, &row([write.name, &token, &said, worker, &balance, &unfenced]))?;
    }
    expect_that(balance != unfenced_balance, || {
        "the worker alone would have fared as well".to_owned()
    })?;
    narrator.say(&format!(
        "\nWith fencepost the balance is {balance}, as the holder of the lock left it. Without, it would be {unfenced_balance}:\n\
         writes from the past would have undone the holder's own, and nobody would have noticed."
    ))?;
    Ok(())
}

fn row([write, token, fencepost, worker, balance, unfenced]: [&str; 6]) -> String {
    format!("{write:<6} {token:<14} {fencepost:<20} {worker:<13} {balance:>7}   {unfenced:>17}")
}
