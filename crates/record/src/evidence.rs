//! What else is asked about a load's connections than the answers that come back.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Evidence of where connections went, in addition to the answers themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The connection tracking of the kernel that the connections leave from.
    Conntrack,
}

impl Evidence {
    /// The name used in files and options.
    pub const fn as_str(self) -> &'static str {
        match self {
            Evidence::Conntrack => "conntrack",
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no [`Evidence`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a kind of evidence: use conntrack")]
pub struct UnknownEvidence(String);

impl FromStr for Evidence {
    type Err = UnknownEvidence;

    fn from_str(text: &str) -> Result<Self, UnknownEvidence> {
        match text {
            "conntrack" => Ok(Evidence::Conntrack),
            other => Err(UnknownEvidence(other.to_owned())),
        }
    }
}
