//! Termination modes.

use super::names::named;

named! {
    /// Mode of a termination, by its trigger. Terminations of different modes are never pooled.
    pub enum Mode else UnknownMode "unknown mode {0:?}" {
        /// One pod at a time, with recovery in between.
        Isolated = "isolated",
        /// A rolling update.
        Rollout = "rollout",
        /// A workload scale-down.
        ScaleDown = "scale_down",
        /// A node drain.
        Drain = "drain",
        /// A node shutdown.
        NodeShutdown = "node_shutdown",
        /// Anything else.
        Other = "other",
    }
}

/// Serialized form of an action's mode, with `none` for an action that terminates no pod.
pub(super) mod or_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Mode;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum WrittenMode {
        NoEnd(NoEnd),
        Mode(Mode),
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum NoEnd {
        None,
    }

    pub(crate) fn serialize<S: Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
        mode.map_or(WrittenMode::NoEnd(NoEnd::None), WrittenMode::Mode).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
        Ok(match WrittenMode::deserialize(deserializer)? {
            WrittenMode::NoEnd(NoEnd::None) => None,
            WrittenMode::Mode(mode) => Some(mode),
        })
    }
}
