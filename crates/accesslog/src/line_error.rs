//! Reasons why a line is refused.

use crate::LONGEST_LINE;

/// Reason why a line was refused. It contains nothing of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line is longer than [`LONGEST_LINE`].
    #[error("line is longer than {} KiB", LONGEST_LINE / 1024)]
    TooLong,
    /// The line is not a JSON object.
    #[error("line is not a JSON object")]
    NotJson,
    /// The named field is missing, or not what the format says.
    #[error("field {0} is missing or malformed")]
    Field(&'static str),
}
