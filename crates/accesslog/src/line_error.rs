//! Errors for lines that cannot be parsed.

use crate::LONGEST_LINE;

/// Reason why a line was refused. It quotes nothing from the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is longer than [`LONGEST_LINE`].
    #[error("line is longer than {} KiB", LONGEST_LINE / 1024)]
    TooLong,
    /// The line is not a JSON object.
    #[error("line is not a JSON object")]
    NotJson,
    /// The named field is missing, or does not fit the format.
    #[error("field {0} is missing or malformed")]
    Field(&'static str),
}
