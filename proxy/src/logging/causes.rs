//! Errors with their causes, in one line.

use std::error::Error;
use std::fmt;

/// An error with its causes. The log would have them of an error itself, but not in JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WithCauses<'a>(pub(crate) &'a (dyn Error + 'static));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WithCauses(error) = *self;
        write!(f, "{error}")?;
        error.source().map_or(Ok(()), |cause| write!(f, ": {}", WithCauses(cause)))
    }
}
