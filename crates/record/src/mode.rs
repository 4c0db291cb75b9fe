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

/// Serialised form of an action's mode, with `none` for an action that terminates no pod.
pub(super) mod or_none {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Mode;

    const NONE: &str = "none";

    pub(crate) fn serialize<S: Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.map_or(NONE, Mode::as_str))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mode>, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            NONE => Ok(None),
            name => name.parse().map(Some).map_err(de::Error::custom),
        }
    }
}
