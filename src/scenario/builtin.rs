//! The scenarios that are compiled in.

/// A scenario that is compiled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builtin {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its text, as in `scenarios/NAME.yaml`.
    pub yaml: &'static str,
}

/// The scenario that `rolldrop run` runs when none is named.
pub(crate) const DEFAULT: &str = "naive-exit";
/// The scenario of `rolldrop tune` without arguments.
pub(crate) const ROLLOUT: &str = "naive-rollout";

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// Every built-in scenario, from the simplest on.
        pub(crate) const BUILTIN: &[Builtin] = &[
            $(Builtin { name: $name, yaml: include_str!(concat!("../../scenarios/", $name, ".yaml")) }),*
        ];
    };
}

builtin![
    "naive-exit",
    "no-sidecar",
    "prestop-sleep",
    "drain-in-app",
    "killed-in-flight",
    "idle-close",
    "naive-rollout",
    "gate"
];

/// The names, for messages.
pub(super) fn names() -> String {
    BUILTIN.iter().map(|b| b.name).collect::<Vec<_>>().join(", ")
}
