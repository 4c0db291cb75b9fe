//! Texts that no log, error or file of a run may show.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that may be a secret, such as the value of a header or a key: it is never printed. serde writes it, for a
/// load worker's orders only; `run.json` has [`LoadPlan`](crate::load::LoadPlan), which has no secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Returns the text itself, to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}
