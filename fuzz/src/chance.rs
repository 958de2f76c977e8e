//! Bytes as a source of decisions.

/// Takes decisions from bytes, one after another. When they are used up, each is 0.
pub(crate) struct Chance<'b>(&'b [u8]);

impl<'b> Chance<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Chance<'b> {
        Chance(bytes)
    }

    /// Whether nothing is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % end
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
