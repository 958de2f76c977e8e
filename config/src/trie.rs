//! Finds, among many templates, those that may have something in common with another.

use std::collections::BTreeMap;

/// What a segment of a template takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// This text and nothing else.
    Text(String),
    /// Whatever begins with this text.
    BeginsWith(String),
}

/// How many steps of a template are looked at. No more: a template may have thousands, and each is
/// a call within the one before.
pub(crate) const STEPS_MAX: usize = 32;

/// The numbers of templates, by their steps.
///
/// Of what it finds, each has to be held against the other template itself: it may have nothing in
/// common with it after all.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    /// Of those that end here.
    numbers: Vec<usize>,
    below_text: BTreeMap<String, Trie>,
    below_beginning: BTreeMap<String, Trie>,
}

impl Trie {
    pub(crate) fn insert(&mut self, number: usize, steps: &[Step]) {
        let end = steps.iter().take(STEPS_MAX).fold(self, |node, step| match step {
            Step::Text(text) => node.below_text.entry(text.clone()).or_default(),
            Step::BeginsWith(text) => node.below_beginning.entry(text.clone()).or_default(),
        });
        end.numbers.push(number);
    }

    /// The numbers of all of which one may begin like the other, in order.
    pub(crate) fn alike(&self, steps: &[Step]) -> Vec<usize> {
        self.find(steps, true)
    }

    /// The numbers of all that may take whatever begins with something that the other takes, in
    /// order.
    pub(crate) fn covering(&self, steps: &[Step]) -> Vec<usize> {
        self.find(steps, false)
    }

    fn find(&self, steps: &[Step], with_covered: bool) -> Vec<usize> {
        let mut found = Vec::new();
        self.collect(&steps[..steps.len().min(STEPS_MAX)], with_covered, &mut found);
        found.sort_unstable();
        found
    }

    fn collect(&self, steps: &[Step], with_covered: bool, found: &mut Vec<usize>) {
        found.extend(&self.numbers);
        if let Some((step, rest)) = steps.split_first() {
            self.covering_children(step).for_each(|child| child.collect(rest, with_covered, found));
            let covered = with_covered.then(|| self.covered_children(step)).into_iter().flatten();
            covered.for_each(|child| child.collect(rest, with_covered, found));
        } else if with_covered {
            let below = self.below_text.values().chain(self.below_beginning.values());
            below.for_each(|child| child.collect(&[], true, found));
        }
    }

    /// What is below steps that take all that this one takes.
    fn covering_children<'t>(&'t self, step: &'t Step) -> impl Iterator<Item = &'t Trie> {
        let (text, same) = match step {
            Step::Text(text) => (text, self.below_text.get(text)),
            Step::BeginsWith(text) => (text, None),
        };
        let beginnings = (0..=text.len()).filter_map(|end| text.get(..end));
        beginnings.filter_map(|beginning| self.below_beginning.get(beginning)).chain(same)
    }

    /// What is below steps that take some of what this one takes, and nothing else.
    fn covered_children<'t>(&'t self, step: &'t Step) -> impl Iterator<Item = &'t Trie> {
        let beginning = match step {
            Step::Text(_) => None,
            Step::BeginsWith(text) => Some(text),
        };
        beginning.into_iter().flat_map(|beginning| {
            let longer = below(&self.below_beginning, beginning);
            let longer = longer.filter(move |(text, _)| *text != beginning);
            below(&self.below_text, beginning).chain(longer).map(|(_, child)| child)
        })
    }
}

/// What is below texts that begin so.
fn below<'t>(
    children: &'t BTreeMap<String, Trie>,
    beginning: &'t String,
) -> impl Iterator<Item = (&'t String, &'t Trie)> {
    let from = children.range::<String, _>(beginning..);
    from.take_while(move |(text, _)| text.starts_with(beginning))
}

#[cfg(test)]
#[path = "trie_tests.rs"]
mod tests;
