//! What a run of takeovers found, told to programs and to people.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::Report;
use crate::Conclusion;
use crate::answer::Answer;
use crate::worker::{AtWorker, Breaches};

impl Report {
    /// The same for a program.
    pub(crate) fn as_json(&self) -> Value {
        let answers = |answers: &BTreeMap<Answer, u64>| -> Value {
            answers
                .iter()
                .map(|(answer, count)| (answer.to_string(), json!(count)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        json!({
            "as_expected": self.conclusion() == Conclusion::AsExpected,
            "layout": format!("{:?}", self.layout).to_lowercase(),
            "takeovers": self.done(),
            "takeovers_wanted": self.wanted,
            "false_refusals": self.false_refusals(),
            "put_off": self.put_off(),
            "failures": self.failures(),
            "false_admissions": self.false_admissions(),
            "first_answers": answers(&self.first),
            "late_answers": answers(&self.late),
            "acquire_to_answer": self.latencies.percentiles().map(|percentiles| percentiles.as_json()),
            "handoffs": self.handoffs.as_json(),
            "worker": self.worker.as_ref().map(|worker| json!({
                "requests": worker.begun,
                "done_elsewhere": self.missing(),
                "reached_though_refused": self.uninvited(),
                "breaches": worker.breaches.as_json(),
            })),
            "broke_off": self.broke_off,
            "findings": self.findings,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "takeovers          {} of {}, layout {:?}", self.done(), self.wanted, self.layout)?;
        writeln!(
            f,
            "first requests     {} done, {} falsely refused, {} failed, {} put off",
            self.admitted(),
            self.false_refusals(),
            self.failures(),
            self.put_off()
        )?;
        write_answers(f, &self.first)?;
        writeln!(
            f,
            "late requests      {} refused, {} falsely admitted",
            self.late_refusals(),
            self.false_admissions()
        )?;
        write_answers(f, &self.late)?;
        if let Some(percentiles) = self.latencies.percentiles() {
            writeln!(f, "acquire to answer  {percentiles}")?;
        }
        self.handoffs.fmt(f)?;
        match &self.worker {
            Some(AtWorker { begun, breaches }) if breaches.is_none() => {
                writeln!(f, "at the worker      {begun} requests, revisions never went down")?;
            }
            Some(AtWorker { begun, breaches }) => {
                let Breaches { went_down, after_successor, overlapped, shared_revision } = breaches;
                writeln!(f, "at the worker      {begun} requests; OUT OF ORDER:")?;
                writeln!(f, "  began after a higher revision had begun          {went_down}")?;
                writeln!(f, "  began after a higher revision had been answered  {after_successor}")?;
                writeln!(f, "  began while a lower revision was at the worker   {overlapped}")?;
                writeln!(f, "  came under another owner's revision              {shared_revision}")?;
            }
            None => writeln!(f, "at the worker      not looked at (--worker-listen)")?,
        }
        for finding in &self.findings {
            writeln!(f, "found: {finding}")?;
        }
        if let Some(why) = &self.broke_off {
            writeln!(f, "BROKEN OFF: {why}")?;
        }
        f.write_str(match self.conclusion() {
            Conclusion::AsExpected => "All as it should be.\n",
            Conclusion::PutOff => "Nothing was wrong, but not every holder was served: some were put off with 503.\n",
            Conclusion::NotAsExpected => "NOT as it should be.\n",
        })
    }
}

fn write_answers(f: &mut fmt::Formatter<'_>, answers: &BTreeMap<Answer, u64>) -> fmt::Result {
    answers.iter().try_for_each(|(answer, count)| writeln!(f, "  {count:>10}  {answer}"))
}
