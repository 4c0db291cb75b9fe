//! Text that must not appear in any log, error or run file.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text that may be secret, such as a header value or a key. It is never printed. It is serialized only for a load
/// worker's orders; `run.json` contains [`LoadPlan`](crate::load::LoadPlan), which has no secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Returns the text itself, for sending.
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
