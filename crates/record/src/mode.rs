//! How terminations come.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// How a termination came. Terminations of different modes are never pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One pod at a time, with recovery in between.
    Isolated,
    /// A rolling update.
    Rollout,
    /// A Service scaled down.
    ScaleDown,
    /// A node drained.
    Drain,
    /// A node shut down.
    NodeShutdown,
    /// Anything else.
    Other,
}

impl Mode {
    /// The name used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Isolated => "isolated",
            Mode::Rollout => "rollout",
            Mode::ScaleDown => "scale_down",
            Mode::Drain => "drain",
            Mode::NodeShutdown => "node_shutdown",
            Mode::Other => "other",
        }
    }
}

impl Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an action is written in files: its mode, or `none` where no pod ends by it.
pub(super) mod or_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Mode;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Written {
        NoEnd(NoEnd),
        Mode(Mode),
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum NoEnd {
        None,
    }

    pub(crate) fn serialize<S: Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
        mode.map_or(Written::NoEnd(NoEnd::None), Written::Mode).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::NoEnd(NoEnd::None) => None,
            Written::Mode(mode) => Some(mode),
        })
    }
}
