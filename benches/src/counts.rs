//! The counts that were agreed on, and what has become of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use toml::Table;

/// Instructions of each case, by its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts(pub BTreeMap<String, f64>);

/// How much more a case may take than was agreed on, in percent.
const TOLERANCE_PERCENT: f64 = 3.0;

/// What has become of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It takes as many instructions as it did, more or less.
    None,
    /// It takes fewer by more than the tolerance: worth to be agreed on.
    Better,
    /// It takes more by more than the tolerance, or nothing was agreed on.
    Worse,
}

impl Counts {
    /// As the file has them.
    pub fn parse(text: &str) -> anyhow::Result<Counts> {
        let file: Table = text.parse()?;
        let cases = file.get("instructions").and_then(|cases| cases.as_table());
        let mut counts = BTreeMap::new();
        for (name, count) in cases.context("it has no table `instructions`")? {
            let Some(count) = count.as_float() else {
                bail!("the count of {name} is no number with a point")
            };
            counts.insert(name.clone(), count);
        }
        Ok(Counts(counts))
    }

    /// The file of these counts, of a step or a request, that a command compares with what there
    /// is.
    pub fn file(&self, what: &str, command: &str, compiler: &str) -> String {
        let mut text = format!(
            "# Instructions of each {what}, without those of the C library: `{command}` fails if one takes {TOLERANCE_PERCENT} % more,\n\
             # and `{command} --update` writes this file. For x86-64.\n\
             compiler = \"{compiler}\"\n\n[instructions]\n"
        );
        for (name, count) in &self.0 {
            writeln!(text, "{name} = {count:.1}").expect("text can be written");
        }
        text
    }

    /// What has become of a case that takes so many now.
    pub fn change(&self, name: &str, now: f64) -> Change {
        let Some(agreed) = self.0.get(name) else { return Change::Worse };
        let tolerated = agreed * TOLERANCE_PERCENT / 100.0;
        if now > agreed + tolerated {
            Change::Worse
        } else if now < agreed - tolerated {
            Change::Better
        } else {
            Change::None
        }
    }
}

/// Whether what was agreed on is of machines like this one; says so if it is not.
pub fn of_this_machine() -> bool {
    if !cfg!(target_arch = "x86_64") {
        println!(
            "The counts that were agreed on are of x86-64: nothing to compare with on this machine."
        );
    }
    cfg!(target_arch = "x86_64")
}

/// The compiler of this machine, which is the one that has built this.
pub fn compiler() -> anyhow::Result<String> {
    let printed =
        Command::new("rustc").arg("--version").output().context("rustc cannot be started")?;
    Ok(String::from_utf8_lossy(&printed.stdout).trim().to_owned())
}

/// Prints what a command has counted beside what was agreed on: a failure if anything takes more.
pub fn held_against(agreed: &Counts, now: &Counts, command: &str) -> anyhow::Result<ExitCode> {
    println!("{:<24} {:>10} {:>10} {:>8}", "instructions", "agreed on", "now", "ratio");
    let (mut worse, mut better) = (0, 0);
    for (name, now) in &now.0 {
        let before = agreed.0.get(name).copied().unwrap_or(f64::NAN);
        let word = match agreed.change(name, *now) {
            Change::None => "",
            Change::Better => "  better",
            Change::Worse => "  WORSE",
        };
        worse += u32::from(word.contains("WORSE"));
        better += u32::from(word.contains("better"));
        println!("{name:<24} {before:>10.1} {now:>10.1} {:>8.4}{word}", now / before);
    }
    if worse + better > 0 {
        println!(
            "\nIf that is meant: {command} --update. Another compiler than {} changes counts too.",
            compiler()?
        );
    }
    Ok(if worse > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_three_percent_more_is_worse() {
        let agreed = Counts([("a".to_owned(), 100.0)].into());
        for (now, change) in [
            (100.0, Change::None),
            (103.0, Change::None),
            (97.5, Change::None),
            (103.1, Change::Worse),
            (200.0, Change::Worse),
            (96.0, Change::Better),
        ] {
            assert_eq!(agreed.change("a", now), change, "{now}");
        }
        assert_eq!(agreed.change("new", 1.0), Change::Worse, "what nobody agreed on");
    }

    #[test]
    fn a_file_has_what_was_written() {
        let counts = Counts([("a".to_owned(), 100.0), ("b-c".to_owned(), 38.5)].into());
        assert_eq!(Counts::parse(&counts.file("step", "count", "rustc 1.95.0")).unwrap(), counts);
        for wrong in ["", "[instructions]\na = 7\n", "instructions = 1\n", "["] {
            assert!(Counts::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_page_on_performance_has_the_counts_that_were_agreed_on() {
        let agreed = Counts::parse(include_str!("../instructions.toml")).unwrap();
        let page = include_str!("../../docs/performance.md");
        let section = page.split("| step | instructions |").nth(1).expect("the page has the table");
        let rows = section.lines().skip(2).take_while(|line| line.starts_with('|'));
        let figures = rows
            .filter_map(|row| row.split('|').nth(2)?.trim().replace(',', "").parse::<f64>().ok());
        let names = crate::Case::ALL.map(crate::Case::name);
        let on_page = [
            "judge-holder",
            "judge-stale",
            "gate-pass",
            "gate-pass-among-others",
            "token",
            "route",
        ];
        assert_eq!(names, on_page, "rows are in this order");
        assert_eq!(figures.collect::<Vec<_>>(), on_page.map(|name| agreed.0[name].round()));
    }

    #[test]
    fn the_page_on_performance_has_the_counts_of_whole_requests() {
        let agreed = Counts::parse(include_str!("../requests.toml")).unwrap();
        let page = include_str!("../../docs/performance.md");
        let section =
            page.split("| request | instructions |").nth(1).expect("the page has the table");
        let rows = section.lines().skip(2).take_while(|line| line.starts_with('|'));
        let figures = rows
            .filter_map(|row| row.split('|').nth(2)?.trim().replace(',', "").parse::<f64>().ok());
        let on_page = ["get", "post1k", "stale", "stale-post1k"];
        assert_eq!(agreed.0.keys().collect::<Vec<_>>(), on_page);
        assert_eq!(figures.collect::<Vec<_>>(), on_page.map(|name| agreed.0[name].round()));
    }

    #[test]
    fn something_was_agreed_on_for_each_case_and_for_nothing_else() {
        let agreed = Counts::parse(include_str!("../instructions.toml")).unwrap();
        let mut names: Vec<&str> = crate::Case::ALL.iter().map(|case| case.name()).collect();
        names.sort_unstable();
        assert_eq!(agreed.0.keys().collect::<Vec<_>>(), names);
    }
}
